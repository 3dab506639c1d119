"""A worker's parts, driven by the test, and rival processes that claim its partitions."""

from __future__ import annotations

from typing import Any, Self

from seekpoint import Partition
from seekpoint.events import Announcer
from seekpoint.kafka.client import raw_record
from seekpoint.kafka.config import consumer_config, make_consumer
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.tables import admin_action, in_schema
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.worker.assignment import Chunk, Resources, WorkerAssignment
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from support.events import Recorder
from support.ledger_worker import scalar
from support.waiting import until
from support.worker_group import QUICK, WorkerGroup


def actions(worker_group: WorkerGroup) -> list[Any]:
    with worker_group.engine.connect() as tx:
        query = admin_action.select().order_by(admin_action.c.id)
        return list(tx.execute(query, execution_options=in_schema(worker_group.schema)))


def rival(worker_group: WorkerGroup, **options: Any) -> GroupLedger:
    """The group's ledger with another owner, as in another process."""
    return GroupLedger(worker_group.engine, worker_group.group, schema=worker_group.schema, **options)


def seize(worker_group: WorkerGroup, by: GroupLedger, topic: str, *numbers: int) -> None:
    """Claim partitions for ``by`` that Kafka has not assigned, under the stored ids."""
    stored = {row.partition: row for row in by.read()}
    wanted = [Partition(topic, n) for n in numbers]
    cluster = scalar(worker_group.engine, f"SELECT cluster_id FROM {worker_group.schema}.consumer_group")
    claimed = by.claim(wanted, {topic: stored[wanted[0]].topic_id}, cluster_id=cluster, start=lambda _: {})
    assert set(claimed.granted) == set(wanted)


class ManualWorker:
    """A worker's parts, driven by the test, so that a batch has exactly the wanted records."""

    def __init__(self, worker_group: WorkerGroup, topic: str, **kafka: Any) -> None:
        self.seen = Recorder()
        self._announce = Announcer([self.seen])
        pipeline = worker_group.pipeline(topic)
        ledger = rival(worker_group)
        config = consumer_config({"bootstrap.servers": worker_group.broker, **QUICK, **kafka}, group=worker_group.group)
        resources = Resources.of(make_consumer(config), config, ledger, self._announce)
        self.held = WorkerAssignment(resources, [topic], pipeline.start, None)
        self._committer = Committer(ledger, PipelineWriters(pipeline), self.held, self._announce)

    def __enter__(self) -> Self:
        self.held.join()
        return self

    def __exit__(self, *_: object) -> None:
        self._committer.close()
        self.held.leave()

    def batch(self, count: int) -> OpenBatch:
        """A batch of exactly the next ``count`` records, of any partitions."""
        batch = self.batch_unless_stopped(count)
        assert batch is not None, self.held.stopped
        return batch

    def batch_unless_stopped(self, count: int) -> OpenBatch | None:
        """As :meth:`batch`, but None if a partition stops before."""
        messages: list[Any] = []
        tokens: set[Any] = set()

        def read() -> bool:
            self.held.maintain()
            now = {placed.claim.token for placed in self.held.active.values()}
            if now != tokens:  # an eager placement assigns all again: what was not taken yet is read again
                messages.clear()
                tokens.clear()
                tokens.update(now)
            messages.extend(m for m in self.held.client.read(count - len(messages), 0.1) if m.error() is None)
            return len(messages) == count

        until(lambda: read() or self.held.stopped, f"{count} records")
        if self.held.stopped:
            return None
        chunk = self.held.accept_messages(messages)
        assert len(chunk) == count
        records = Chunk([raw_record(message) for message in chunk], chunk.reads, read_by=chunk.read_by)
        return OpenBatch(Buffer(records, lambda: None, self.held.topic_ids, Limits()))

    def commit(self, batch: OpenBatch) -> None:
        self._committer.commit(batch)
