"""Hand-made records, and the real unit of work without a broker. There is no fake ledger: the fence is real SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import URL, Engine

from seekpoint import events
from seekpoint.errors import ConfigError, Fenced, PartitionStopped, SchemaMismatch
from seekpoint.events import Announcer, Observer
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim, Expected, GroupLedger
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.engine import first_connection, schema_translation
from seekpoint.records import EPOCH, LazyRecords, Partition, RawRecord, Record, Span
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.async_handler import callable_handler
from seekpoint.worker.engine_checks import require_engine
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from seekpoint.worker.waiting import Work

V = TypeVar("V")

CLUSTER = "seekpoint-testing"


def raw(
    value: bytes | None,
    *,
    topic: str = "topic",
    partition: int = 0,
    offset: int = 0,
    key: bytes | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    timestamp: datetime | None = None,
    leader_epoch: int | None = None,
) -> RawRecord:
    """A record as in Kafka's log: key and value are bytes or None."""
    return RawRecord(topic, partition, offset, _milliseconds(timestamp), key, value, tuple(headers), leader_epoch)


def record(
    value: V,
    *,
    topic: str = "topic",
    partition: int = 0,
    offset: int = 0,
    key: Any = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    timestamp: datetime | None = None,
    leader_epoch: int | None = None,
) -> Record[V, Any]:
    """A decoded record, as passed to handlers and ``row=``."""
    return Record(topic, partition, offset, _milliseconds(timestamp), key, value, tuple(headers), leader_epoch)


def batch(*records: Record[Any, Any]) -> Batch[Any, Any]:
    """A batch as passed to handlers; spans reach from each partition's first record to the offset after its last."""
    spans: dict[Partition, Span] = {}
    for entry in records:
        partition = Partition(entry.topic, entry.partition)
        before = spans.get(partition)
        spans[partition] = Span(partition, entry.offset if before is None else before.start, entry.offset + 1)
    return Batch(records, list(spans.values()))


def _milliseconds(timestamp: datetime | None) -> int | None:
    if timestamp is None:
        return None
    if timestamp.tzinfo is None:
        raise ConfigError(f"timestamp={timestamp!r}: give an aware time, e.g. datetime(..., tzinfo=UTC)")
    return (timestamp - EPOCH) // timedelta(milliseconds=1)


def topic_id(topic: str) -> UUID:
    """The id under which :func:`process` stores a topic's offsets."""
    return uuid5(NAMESPACE_URL, topic)


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of one transaction: the passed spans, and how many records it applied.

    ``stopped`` are partitions that stopped before a poison record, by ``process(..., collect=True)``; ``dead_letters``
    the records that were dead-lettered, with their state and failure; ``waiting`` those that wait for their retries.
    """

    spans: tuple[Span, ...] = ()
    records: int = 0
    stopped: Mapping[Partition, PartitionStopped] = field(default_factory=dict)
    dead_letters: tuple[events.DeadLettered, ...] = ()
    waiting: tuple[events.WaitingForRetry, ...] = ()


def process(
    pipeline: Pipeline,
    engine: Engine | URL | str,
    records: Iterable[RawRecord],
    *,
    schema: str = DEFAULT_SCHEMA,
    observe: Iterable[Observer] = (),
    collect: bool = False,
) -> Processed:
    """Apply raw records through the real unit of work: claim, hold, sinks and handler, advance, COMMIT.

    Offsets of one partition must rise. The first call stores each partition's first position. Records below the stored
    position are omitted, as after a restart: a second call with the same records applies none. The pipeline's policy
    decides about a poison record: it is in ``dead_letters``, or it stops its partition, and the records before it are
    applied. The first such stop is raised, or with ``collect=True`` all are in ``stopped``. If a record fails with an
    error after which a worker would wait and retry, the records before it are applied, and the handler's exception is
    raised; with ``retry_order="key"`` or ``"none"`` the record is in ``waiting``. Raises the errors of a running worker
    (for the checks at its start, call ``pipeline.check_tables``), and ConfigError for records that no log could hold,
    or of topics that the pipeline does not read.
    """
    raw_records = list(records)
    logs = grouped(pipeline.taken().require_names("the test kit"), raw_records)
    if not logs:
        return Processed()
    ledger = ledger_of(pipeline, engine, schema)
    try:
        _check_schema(ledger.engine, schema)
        claims = claimed(ledger, logs, {partition: entries[0].offset for partition, entries in logs.items()})
        try:
            processed = _commit(ledger, pipeline, chunk_of(raw_records, claims), claims, observe)
        finally:
            ledger.release(claims.values())
    finally:
        if not isinstance(engine, Engine):
            ledger.engine.dispose()  # the engine was made here
    for stop in () if collect else processed.stopped.values():
        raise stop
    return processed


def ledger_of(pipeline: Pipeline, engine: Engine | URL | str, schema: str) -> GroupLedger:
    """The ledger of a worker of the pipeline. Raises ConfigError for an engine that a worker would refuse."""
    require_engine(pipeline, engine)
    return GroupLedger(
        engine,
        pipeline.group,
        schema=schema,
        version=pipeline.version,
        tables=pipeline.tables_by_topic(schema_translation(engine)),
    )


def claimed(
    ledger: GroupLedger, partitions: Collection[Partition], firsts: Mapping[Partition, int]
) -> Mapping[Partition, Claim]:
    """Claim the partitions, which begin at ``firsts`` if they have no stored position.

    Raises the refusal of a partition, or Fenced if one is locked; no partition stays claimed then.
    """
    claims = ledger.claim(
        partitions,
        {partition.topic: topic_id(partition.topic) for partition in partitions},
        cluster_id=CLUSTER,
        start=lambda topic: {partition: first for partition, first in firsts.items() if partition.topic == topic},
    )
    refusals: list[Exception] = [*claims.refused.values()]
    if claims.stalled:
        refusals.append(Fenced(f"{', '.join(map(str, claims.stalled))}: another transaction is writing there"))
    for refusal in refusals:
        ledger.release(claims.granted.values())
        raise refusal
    return claims.granted


def apply_chunk(
    pipeline: Pipeline,
    held: FixedClaims,
    chunk: Chunk[RawRecord],
    observe: Iterable[Observer],
    meanwhile: Work | None = None,
) -> None:
    """Apply the chunk in one transaction under these claims; calls ``meanwhile`` during waits for the server."""
    with callable_handler(pipeline) as handler:
        writers = PipelineWriters(pipeline, handler)
        committer = Committer(held.ledger, writers, held, Announcer(tuple(observe)), meanwhile=meanwhile)
        try:
            committer.commit(OpenBatch(Buffer(chunk, lambda: None, same_topics, Limits())))
        finally:
            committer.close()


def _check_schema(engine: Engine, schema: str) -> None:
    try:
        with first_connection(engine) as connection:
            check(connection, schema)
    except SchemaMismatch as error:
        if schema != DEFAULT_SCHEMA:
            raise
        raise SchemaMismatch(f"{error.text}; in a test, pass schema=seekpoint_schema, the plugin's fixture") from None


def grouped(pipeline: Pipeline, records: Sequence[RawRecord]) -> Mapping[Partition, Sequence[RawRecord]]:
    """The records of each partition. Raises ConfigError for records that no log of the pipeline's topics could hold."""
    for raw_record in records:
        if not isinstance(raw_record.value, bytes | None):
            raise ConfigError(
                "process() takes raw records, as the log has them, got one whose value is a "
                f"{type(raw_record.value).__name__}: make it with raw(b'...', topic={raw_record.topic!r})"
            )
    logs = Batch(records).by_partition()
    for partition, entries in logs.items():
        if partition.topic not in pipeline.topics:
            raise ConfigError(
                f"{pipeline!r} does not read topic {partition.topic!r}: make its records with raw(..., topic=)"
            )
        for raw_record, following in pairwise(entries):
            if raw_record.offset >= following.offset:
                raise ConfigError(
                    f"the offsets of {partition} must rise from record to record, and {following.offset} comes after "
                    f"{raw_record.offset}: make them with raw(..., offset=)"
                )
    return logs


def _commit(
    ledger: GroupLedger,
    pipeline: Pipeline,
    chunk: Chunk[RawRecord],
    claims: Mapping[Partition, Claim],
    observe: Iterable[Observer],
) -> Processed:
    if not len(chunk):
        return Processed()
    seen, held = _Seen(), FixedClaims(ledger, claims)
    apply_chunk(pipeline, held, chunk, (seen, *observe))
    for retry in held.waiting:
        raise retry.error
    return Processed(seen.spans, seen.records, held.stopped, tuple(seen.dead_letters), tuple(seen.waiting))


def chunk_of(records: Sequence[RawRecord], claims: Mapping[Partition, Claim]) -> Chunk[RawRecord]:
    """The records that are not applied yet, in the given order."""
    unapplied: list[RawRecord] = []
    reads: dict[Partition, Read] = {}
    for raw_record in records:
        claim = claims[Partition(raw_record.topic, raw_record.partition)]
        if raw_record.offset < claim.next_offset:
            continue
        unapplied.append(raw_record)
        start, end = claim.next_offset, raw_record.offset + 1
        reads[claim.partition] = Read(claim, start, end, raw_record.leader_epoch, raw_record.timestamp_ms)
    return Chunk(_lazy(unapplied), reads)


def _lazy(records: list[RawRecord]) -> LazyRecords:
    """The records in the form in which a worker reads them."""
    topics = {raw_record.topic for raw_record in records}
    size = sum(len(part) for raw_record in records for part in (raw_record.key, raw_record.value) if part is not None)
    topic = topics.pop() if len(topics) == 1 else None
    offsets = [record.offset for record in records]
    return LazyRecords([r.value for r in records], lambda: records, lambda: offsets, topic=topic, size=size)


def same_topics(_read_by: float, _topics: set[str]) -> Answer:
    """Answers, without a broker, that the topics are the claimed ones."""
    return Answer()


class _Seen:
    """Observes what the transaction commits."""

    def __init__(self) -> None:
        self.spans: tuple[Span, ...] = ()
        self.records = 0
        self.dead_letters: list[events.DeadLettered] = []
        self.waiting: list[events.WaitingForRetry] = []

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Committed):
            self.spans, self.records = event.spans, event.records
        if isinstance(event, events.DeadLettered):
            self.dead_letters.append(event)
        if isinstance(event, events.WaitingForRetry):
            self.waiting.append(event)


class FixedClaims:
    """Uses these claims instead of a consumer's assignment."""

    def __init__(self, ledger: GroupLedger, claims: Mapping[Partition, Claim]) -> None:
        self.ledger, self.claims = ledger, dict(claims)
        self.stopped: dict[Partition, PartitionStopped] = {}
        self.waiting: list[RetryLater] = []

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        return [Expected(self.claims[partition], start) for partition, start in starts.items()]

    def accept(self, moved: Iterable[Claim]) -> None:
        self.claims.update((claim.partition, claim) for claim in moved)

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        rows = self.ledger.positions_of(starts)
        return {
            partition
            for partition, start in starts.items()
            if rows[partition].token != self.claims[partition].token or rows[partition].next_offset != start
        }

    def topic_id_mismatches(
        self, _answer: Answer, _partitions: Iterable[Partition]
    ) -> Mapping[Partition, PartitionStopped | None]:
        return {}

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        self.stopped.update((partition, stop) for partition, stop in stops.items() if stop is not None)

    def schedule_retry(self, retry: RetryLater, _records: Sequence[RawRecord], _position: int) -> None:
        self.waiting.append(retry)
