"""The partitions of one consumer, for a program with its own loop: reads records and advances offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection

from seekpoint import events
from seekpoint.errors import ConfigError, KafkaUnavailable, PartitionStopped
from seekpoint.events import Announcer, Observer
from seekpoint.kafka.client import Message
from seekpoint.ledger import Claim, Expected, Ledger, group_ledger
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.policy import StartAt
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition
from seekpoint.worker.assignment.chunk import Chunk, chain
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.worker_assignment import WorkerAssignment


class Assignment:
    """The partitions of one consumer, read from the ledger's offsets, for a program with its own loop.

    ``consumer`` is a ``confluent_kafka.Consumer`` made with :func:`seekpoint.consumer_config`; ``kafka`` is the same
    configuration, for the admin client that asks for topic ids. With ``partitions=[(topic, number), ...]`` there is
    no group: the ledger alone decides who owns a partition, and the newest claim wins. Leaving the ``with`` block
    releases the claims and closes the consumer.
    """

    def __init__(
        self,
        consumer: Any,
        ledger: Ledger,
        topics: Collection[str],
        *,
        kafka: Mapping[str, Any],
        start: StartAt = StartAt.earliest(),  # noqa: B008 -- immutable
        partitions: Iterable[tuple[str, int]] | None = None,
        observe: Sequence[Observer] = (),
    ) -> None:
        if isinstance(topics, Pattern):
            raise ConfigError("Assignment takes topics by name, and only a worker finds them by pattern")
        self._ledger, self._announce = ledger, Announcer(events.checked(observe))
        resources = Resources.of(consumer, kafka, group_ledger(ledger), self._announce)
        self._worker = WorkerAssignment(resources, topics, start, partitions)

    def __enter__(self) -> Self:
        self._worker.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.leave()

    @property
    def active(self) -> Mapping[Partition, Claim]:
        """The partitions that are read now, each with its claim."""
        return {partition: active.claim for partition, active in self._worker.active.items()}

    @property
    def stopped(self) -> Mapping[Partition, PartitionStopped]:
        """The partitions that wait for an operator's decision, and why."""
        return self._worker.stopped

    @property
    def is_claiming(self) -> bool:
        """Whether any assigned partition is not claimed yet."""
        return self._worker.is_claiming

    def lag(self) -> tuple[dict[Partition, int], frozenset[Partition]]:
        """The lag of each partition, active or stopped, in offsets; and the partitions whose lag is not known.

        A lag is not known if the position is past the log's end, the topic was recreated, or no broker answers for the
        log. Raises KafkaUnavailable if no broker answers for any active partition.
        """
        return self._worker.lag()

    def read(self, most: int, wait: float) -> list[Message]:
        """Read up to ``most`` messages: waits up to ``wait`` seconds for the first, and adds all that have arrived by
        then.

        Pass the result to :meth:`accept_poll`, even if it is empty.
        """
        return self._worker.client.read(most, wait)

    def accept_poll(self, messages: Iterable[Message]) -> Chunk[Message]:
        """Return those messages of :meth:`read` that are to be applied; call it after each read.

        Drops stale messages, releases, claims and activates the partitions that callbacks recorded, and notices resets.
        Raises ClusterChanged, HandlerOutdated, KafkaUnavailable, and database errors unchanged; after any of them the
        next call claims everything again.
        """
        chunk = self._worker.accept_messages(messages)
        try:
            self._worker.maintain()
        except BaseException:
            self.suspend()  # the caller never sees this chunk: read it again, from the ledger's position
            raise
        return chunk

    def advance(self, tx: Connection, *chunks: Chunk[Message]) -> list[Claim]:
        """Advance the offsets past these chunks, in your transaction; call it before your own statements.

        Asks for the topics' ids, then holds and advances. Raises Fenced (nothing may be written; call
        :meth:`resync`), TopicRecreated, KafkaUnavailable. Pass the result to :meth:`accept` after COMMIT.
        """
        reads = chain(chunks)
        answer = self._worker.identity.ask_after(
            max((chunk.read_by for chunk in chunks), default=0.0), {partition.topic for partition in reads}
        )
        transaction = self._ledger.hold(tx, [Expected(read.claim, read.start) for read in reads.values()])
        if mismatches := self._worker.topic_id_mismatches(answer, reads):
            if stop := next(filter(None, mismatches.values()), None):
                raise stop
            self._worker.stop_or_reclaim(mismatches)  # claimed again by a later accept_poll()
            topics = ", ".join(sorted({partition.topic for partition in mismatches}))
            raise KafkaUnavailable(f"unknown to the broker that was asked: {topics}; roll back and call accept_poll()")
        return self._ledger.advance(tx, [read.move() for read in reads.values()], transaction)

    def accept(self, moved: Iterable[Claim]) -> None:
        """Take over the claims that :meth:`advance` returned; call it after COMMIT."""
        self._worker.accept(moved)

    def resync(self) -> None:
        """Resume reading at the ledger's positions; call it after an exception around COMMIT.

        If the database does not answer, a later :meth:`accept_poll` claims everything again.
        """
        try:
            self._worker.reconcile({})
        except Exception as error:
            if not is_transient(error):
                raise
            self._announce(events.DatabaseTrouble(error=error))
            self.suspend()

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition until its offset is reset or it is assigned again; the others continue."""
        self._worker.stop_or_reclaim({partition: stop})

    def suspend(self) -> None:
        """Stop reading while database or brokers do not answer; stay in the group, and claim again later."""
        self._worker.suspend()
