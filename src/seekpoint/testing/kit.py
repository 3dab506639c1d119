"""Records made by hand, and the real unit of work without a broker. There is no fake ledger: the fence is real SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from seekpoint.ledger import Claim, Expected, Ledger
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
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer

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
    """A record as Kafka holds it: key and value are bytes or None."""
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
    """A decoded record, as handlers and ``row=`` get it."""
    return Record(topic, partition, offset, _milliseconds(timestamp), key, value, tuple(headers), leader_epoch)


def batch(*records: Record[Any, Any]) -> Batch[Any, Any]:
    """A batch as handlers get it; its spans reach from each partition's first record to after its last."""
    spans: dict[Partition, Span] = {}
    for one in records:
        at = Partition(one.topic, one.partition)
        before = spans.get(at)
        spans[at] = Span(at, one.offset if before is None else before.start, one.offset + 1)
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
    """What one transaction did: the spans it advanced, how many records it applied, and what it did not.

    ``stopped`` are partitions that wait in front of a poison record; ``dead_letters`` the records that are dead letters
    now, with their state and failure.
    """

    spans: tuple[Span, ...] = ()
    records: int = 0
    stopped: Mapping[Partition, PartitionStopped] = field(default_factory=dict)
    dead_letters: tuple[events.DeadLettered, ...] = ()


def process(
    pipeline: Pipeline,
    engine: Engine | URL | str,
    records: Iterable[RawRecord],
    *,
    schema: str = DEFAULT_SCHEMA,
    observe: Iterable[Observer] = (),
) -> Processed:
    """Apply raw records through the real unit of work: claim, hold, sinks and handler, advance, COMMIT.

    Offsets of one partition must rise. The first call stores each partition's first position; records below
    the stored position are left out, as after a restart: calling it twice applies them once. A poison record is in
    ``stopped`` or in ``dead_letters``, as the pipeline's policy says. Where a worker would wait and try again, the
    handler's exception is raised, with the records before it applied, as a worker does. Raises what a
    worker would raise, and ConfigError for records that no log could hold, or of topics that the pipeline does
    not read.
    """
    given = list(records)
    grouped = _grouped(pipeline, given)
    if not grouped:
        return Processed()
    ledger = Ledger(
        engine,
        pipeline.group,
        schema=schema,
        version=pipeline.version,
        tables=pipeline.tables_by_topic(schema_translation(engine)),
        synchronous_commit=pipeline.synchronous_commit,
    )
    try:
        _check_schema(ledger.engine, schema)
        claims = ledger.claim(
            grouped,
            {p.topic: topic_id(p.topic) for p in grouped},
            cluster_id=CLUSTER,
            start=lambda topic: {p: found[0].offset for p, found in grouped.items() if p.topic == topic},
        )
        try:
            for stop in claims.refused.values():
                raise stop
            if claims.stalled:
                raise Fenced(f"{', '.join(map(str, claims.stalled))}: another transaction is writing there")
            return _commit(ledger, pipeline, _chunk(given, claims.granted), claims.granted, observe)
        finally:
            ledger.release(claims.granted.values())
    finally:
        if not isinstance(engine, Engine):
            ledger.engine.dispose()  # it was made here


def _check_schema(engine: Engine, schema: str) -> None:
    try:
        with first_connection(engine) as connection:
            check(connection, schema)
    except SchemaMismatch as error:
        if schema != DEFAULT_SCHEMA:
            raise
        raise SchemaMismatch(f"{error}; in a test, pass schema=seekpoint_schema, the plugin's fixture") from None


def _grouped(pipeline: Pipeline, records: Sequence[RawRecord]) -> Mapping[Partition, Sequence[RawRecord]]:
    for one in records:
        if not isinstance(one.value, bytes | None):
            raise ConfigError(
                f"process() takes raw records, as the log has them, got one whose value is a "
                f"{type(one.value).__name__}: make it with raw(b'...', topic={one.topic!r})"
            )
    grouped = Batch(records).by_partition()
    for partition, found in grouped.items():
        if partition.topic not in pipeline.topics:
            raise ConfigError(
                f"{pipeline!r} does not read topic {partition.topic!r}: make its records with raw(..., topic=)"
            )
        for one, following in pairwise(found):
            if one.offset >= following.offset:
                raise ConfigError(
                    f"the offsets of {partition} must rise from record to record, and {following.offset} comes after "
                    f"{one.offset}: make them with raw(..., offset=)"
                )
    return grouped


def _commit(
    ledger: Ledger,
    pipeline: Pipeline,
    chunk: Chunk[RawRecord],
    claims: Mapping[Partition, Claim],
    observe: Iterable[Observer],
) -> Processed:
    if not len(chunk):
        return Processed()
    seen, held = _Seen(), FixedClaims(ledger, claims)
    committer = Committer(ledger, PipelineWriters(pipeline), held, Announcer((seen, *observe)))
    try:
        committer.commit(OpenBatch(Buffer(chunk, lambda: None, _known, Limits())))
    finally:
        committer.close()
    for retry in held.waiting:
        raise retry.error
    return Processed(seen.spans, seen.records, held.stopped, tuple(seen.dead_letters))


def _chunk(records: Sequence[RawRecord], claims: Mapping[Partition, Claim]) -> Chunk[RawRecord]:
    """The records that are not applied yet, in the order in which they were given."""
    kept: list[RawRecord] = []
    reads: dict[Partition, Read] = {}
    for one in records:
        claim = claims[Partition(one.topic, one.partition)]
        if one.offset < claim.next_offset:
            continue
        kept.append(one)
        start, end = claim.next_offset, one.offset + 1
        reads[claim.partition] = Read(claim, start, end, one.leader_epoch, one.timestamp_ms)
    return Chunk(_lazy(kept), reads)


def _lazy(records: list[RawRecord]) -> LazyRecords:
    """The records as a worker has them."""
    topics = {one.topic for one in records}
    size = sum(len(part) for one in records for part in (one.key, one.value) if part is not None)
    topic = topics.pop() if len(topics) == 1 else None
    return LazyRecords(
        [r.value for r in records],
        [r.offset for r in records],
        lambda: records,
        topic=topic,
        partitions=[r.partition for r in records],
        size=size,
    )


def _known(_read_by: float, _topics: set[str]) -> Answer:
    """No broker is asked: the topics are the ones that were claimed."""
    return Answer()


class _Seen:
    """What the one transaction committed."""

    def __init__(self) -> None:
        self.spans: tuple[Span, ...] = ()
        self.records = 0
        self.dead_letters: list[events.DeadLettered] = []

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Committed):
            self.spans, self.records = event.spans, event.records
        if isinstance(event, events.DeadLettered):
            self.dead_letters.append(event)


class FixedClaims:
    """Holds these claims in the place of a consumer's assignment."""

    def __init__(self, ledger: Ledger, claims: Mapping[Partition, Claim]) -> None:
        self._ledger, self.claims = ledger, dict(claims)
        self.stopped: dict[Partition, PartitionStopped] = {}
        self.waiting: list[RetryLater] = []

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        return [Expected(self.claims[p], at) for p, at in starts.items()]

    def accept(self, moved: Iterable[Claim]) -> None:
        self.claims.update((claim.partition, claim) for claim in moved)

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        rows = self._ledger.positions_of(starts)
        return {p for p, at in starts.items() if rows[p].token != self.claims[p].token or rows[p].next_offset != at}

    def topic_id_mismatches(
        self, _answer: Answer, _partitions: Iterable[Partition]
    ) -> Mapping[Partition, PartitionStopped | None]:
        return {}

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        self.stopped.update((partition, stop) for partition, stop in stops.items() if stop is not None)

    def schedule_retry(self, retry: RetryLater, _records: Sequence[RawRecord], _position: int) -> None:
        self.waiting.append(retry)
