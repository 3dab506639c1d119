"""A worker's own parts, moved by hand, and rivals that the worker does not know of."""

from __future__ import annotations

from typing import Any, Self

from seekpoint import Partition
from seekpoint.events import Announcer
from seekpoint.kafka.client import raw_record
from seekpoint.kafka.config import consumer_config, make_consumer
from seekpoint.ledger import Ledger
from seekpoint.ledger.tables import admin_action, in_schema
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.worker.assignment import Chunk, Resources, WorkerAssignment
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from support.events import Recorder
from support.kafka_postgres import QUICK, Scene
from support.ledger_desk import scalar
from support.waiting import until


def actions(scene: Scene) -> list[Any]:
    with scene.engine.connect() as tx:
        query = admin_action.select().order_by(admin_action.c.id)
        return list(tx.execute(query, execution_options=in_schema(scene.schema)))


def rival(scene: Scene, **options: Any) -> Ledger:
    """Another process of the same group, as far as the ledger can tell."""
    return Ledger(scene.engine, scene.group, schema=scene.schema, **options)


def seize(scene: Scene, by: Ledger, topic: str, *numbers: int) -> None:
    """Claim partitions that Kafka has not assigned, under the ids that the rows have."""
    stored = {row.partition: row for row in by.read()}
    wanted = [Partition(topic, n) for n in numbers]
    cluster = scalar(scene.engine, f"SELECT cluster_id FROM {scene.schema}.consumer_group")
    claimed = by.claim(wanted, {topic: stored[wanted[0]].topic_id}, cluster_id=cluster, start=lambda _: {})
    assert set(claimed.granted) == set(wanted)


class Bench:
    """The worker's own parts, moved by hand: to have exactly these records in one batch."""

    def __init__(self, scene: Scene, topic: str) -> None:
        self.seen = Recorder()
        self._announce = Announcer([self.seen])
        pipeline = scene.pipeline(topic)
        ledger = rival(scene)
        config = consumer_config({"bootstrap.servers": scene.broker, **QUICK}, group=scene.group)
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
        """One batch of exactly the next ``count`` records, of whatever partitions."""
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

        until(read, f"{count} records")
        chunk = self.held.accept_messages(messages)
        assert len(chunk) == count
        records = Chunk([raw_record(message) for message in chunk], chunk.reads, read_by=chunk.read_by)
        return OpenBatch(Buffer(records, lambda: None, self.held.topic_ids, Limits()))

    def commit(self, batch: OpenBatch) -> None:
        self._committer.commit(batch)
