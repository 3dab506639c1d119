"""All kinds of failure in one stream, through a real worker: the good arrive, each bad one ends where it must."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import Connection, Engine

from failures.judge import DEAD_LETTERS, create, prepare, select
from failures.kinds import EVERY, HANDLERS, KINDS, Item, Kind, good
from failures.strategies import BY_NAME, pipeline_on
from kafka.test_odd_records import produce_by_hand
from seekpoint import Batch, Limits, Partition, Text, events
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import DeadLetterLimits, OnPoison, Retry
from seekpoint.records import AnyRecord, Cause, RawRecord
from support.events import Run
from support.sink_tables import SinkTables
from support.worker_group import QUICK

TRIES = 3
RETRY = Retry(attempts=TRIES, wait_initial=0.05, jitter=0, on=(OSError, ArithmeticError))
NO_LIMITS = DeadLetterLimits(consecutive=None, ratio=None)
SOON = Limits(idle_check=0.1)
HEADER = Kind("header name that is not UTF-8", Cause.DECODE, "headers cannot be read")


class RetriedFailure:
    """Fails until its retry was announced twice."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.kind = Kind("exception that passes at the third try", None, strategies=HANDLERS, act=self._act)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RetryScheduled):
            self.seen[event.offset] = event.attempt

    def _act(self, tx: Connection, batch: Batch[Item, Any], bad: Sequence[AnyRecord]) -> Any:
        if any(self.seen.get(r.offset, 0) < TRIES - 1 for r in bad):
            raise OSError("not yet")
        return None


class Stream:
    """The log of one topic: partition 0 with every kind once among good records, partition 1 with good ones."""

    def __init__(self, broker: str, topic: str, kinds: Sequence[Kind]) -> None:
        self.topic, self.kinds = topic, dict[int, Kind]()
        self.records: list[RawRecord] = []
        self._producer = Producer(
            {"bootstrap.servers": broker, "message.max.bytes": 20_000_000, "enable.idempotence": True, "log_level": 0}
        )
        for n, kind in enumerate(kinds):
            self._good(0, 3)
            self._good(1, 2)
            self.kinds[self._end(0)] = kind
            if kind is HEADER:
                self._producer.flush(30)
                produce_by_hand(broker, topic, b"{}", b"\xff\xfe", 1_785_587_400_000 + n)
                self.records.append(RawRecord(topic, 0, self._end(0), 1_785_587_400_000 + n, None, b"{}"))
            else:
                self._append(kind.bad(self._end(0), 0, 0, self._end(0), topic))
        self._good(0, 3)
        assert self._producer.flush(60) == 0

    def _end(self, partition: int) -> int:
        return sum(r.partition == partition for r in self.records)

    def _good(self, partition: int, count: int) -> None:
        for _ in range(count):
            end = self._end(partition)
            self._append(good(end + 1000 * 1000 * partition, partition, end, self.topic))

    def _append(self, record: RawRecord) -> None:
        self._producer.produce(
            self.topic, record.value, record.key, partition=record.partition, timestamp=record.timestamp_ms or 0,
            headers=list(record.headers),
        )  # fmt: skip
        self._producer.poll(0)
        self.records.append(record)

    @property
    def ends(self) -> dict[Partition, int]:
        return {Partition(self.topic, n): self._end(n) for n in (0, 1)}

    def applied(self, partition: int, failed: set[int]) -> list[int]:
        """The ids that must be in the table, in the order of the log."""
        return [
            r.offset + 1000 * 1000 * partition
            for r in self.records
            if r.partition == partition and not (partition == 0 and r.offset in failed)
        ]


@pytest.fixture
def sink_tables(seekpoint_engine: Engine, seekpoint_schema: str) -> SinkTables:
    sink_tables = SinkTables(seekpoint_engine, seekpoint_schema)
    prepare(sink_tables)
    create(sink_tables, "t")
    return sink_tables


@pytest.fixture
def retried_failure() -> Any:
    retried_failure = RetriedFailure()
    BY_NAME[retried_failure.kind.name] = retried_failure.kind
    yield retried_failure
    del BY_NAME[retried_failure.kind.name]


@pytest.fixture
def start(
    sink_tables: SinkTables,
    retried_failure: RetriedFailure,
    run_worker: Callable[..., Run],
    topic: Callable[..., str],
    seekpoint_broker: str,
) -> Callable[..., tuple[Stream, Pipeline, Run]]:
    """A worker over a new stream of these kinds."""

    def run(strategy: str, policy: OnPoison, kinds: Sequence[Kind]) -> tuple[Stream, Pipeline, Run]:
        name = topic(2, config={"max.message.bytes": "20000000"})
        stream = Stream(seekpoint_broker, name, kinds)
        pipeline = pipeline_on(
            strategy,
            sink_tables,
            "t",
            topics=name,
            key=Text(),
            on_poison=policy,
            retry=RETRY,
            dead_letter_limits=NO_LIMITS,
        )
        where = {"partitions": [(name, 0), (name, 1)], "kafka": QUICK, "limits": SOON}
        return stream, pipeline, run_worker(pipeline, observe=[retried_failure], **where)

    return run


def failing_on(strategy: str, retried_failure: RetriedFailure) -> list[Kind]:
    """Every kind that is some record's fault, on this path."""
    kinds = [*KINDS, HEADER, retried_failure.kind]
    return [k for k in kinds if strategy in k.strategies and k.raises is None]


@pytest.mark.repeats("policy")
@pytest.mark.parametrize("policy", [OnPoison.DEAD_LETTER, OnPoison.SKIP])
@pytest.mark.parametrize("strategy", EVERY)
def test_all_kinds_in_one_stream(
    start: Callable[..., tuple[Stream, Pipeline, Run]],
    sink_tables: SinkTables,
    retried_failure: RetriedFailure,
    strategy: str,
    policy: OnPoison,
) -> None:
    stream, pipeline, run = start(strategy, policy, failing_on(strategy, retried_failure))
    for partition, end in stream.ends.items():
        run.reached(stream.topic, end, partition.number)
    run.stop()
    failed = {offset for offset, kind in stream.kinds.items() if kind.cause is not None}
    holds(sink_tables, stream, failed)
    assert sink_tables.positions(pipeline) == stream.ends
    dead_letters = select(sink_tables, DEAD_LETTERS, group=pipeline.group)
    assert [row.record_offset for row in dead_letters] == sorted(failed)
    by_offset = {r.offset: r for r in stream.records if r.partition == 0}
    for row in dead_letters:
        kind, record = stream.kinds[row.record_offset], by_offset[row.record_offset]
        check_reports(row, kind, record, strategy, policy)


def holds(sink_tables: SinkTables, stream: Stream, failed: set[int]) -> None:
    """Each good record once, each partition's in the order of the log."""
    written = [n for _, n in sink_tables.rows("seq", "id")]
    for partition in (0, 1):
        of_it = [n for n in written if (n >= 1000 * 1000) == bool(partition)]
        assert of_it == stream.applied(partition, failed)


def check_reports(row: Any, kind: Kind, record: RawRecord, strategy: str, policy: OnPoison) -> None:
    """The whole record, and why it failed, how often it was tried."""
    cause = kind.cause_on(strategy)
    assert (row.cause, row.sqlstate) == (cause, kind.sqlstate), kind.name
    assert re.search(kind.message, row.error), row.error
    assert row.state == ("dead_lettered" if policy is OnPoison.DEAD_LETTER else "skipped")
    assert row.attempts == (TRIES if cause is Cause.HANDLER and "Retry.on" not in kind.name else 1), kind.name
    assert row.value == (record.value if policy is OnPoison.DEAD_LETTER else None)
    assert (row.key, row.timestamp_ms) == (record.key, record.timestamp_ms)
    headers = [] if kind is HEADER else [(name.encode(), value) for name, value in record.headers]
    assert list(zip(row.header_names, row.header_values, strict=True)) == headers
    assert row.traceback
    assert row.leader_epoch is not None


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["streamed Append", "executemany"])
def test_each_kind_stops_its_partition_until_it_is_passed_by_hand(
    start: Callable[..., tuple[Stream, Pipeline, Run]],
    sink_tables: SinkTables,
    retried_failure: RetriedFailure,
    strategy: str,
) -> None:
    stream, pipeline, run = start(strategy, OnPoison.STOP, failing_on(strategy, retried_failure))
    ledger = GroupLedger(sink_tables.engine, pipeline.group, schema=sink_tables.schema)
    failed = {offset for offset, kind in stream.kinds.items() if kind.cause is not None}
    run.reached(stream.topic, stream.ends[Partition(stream.topic, 1)], 1)
    mark = 0
    for offset in sorted(failed):
        parked = run.seen.wait_for(events.PartitionStopped, since=mark)
        mark = run.seen.mark()
        assert (parked.partition, parked.error.offset) == (Partition(stream.topic, 0), offset)
        assert re.search(stream.kinds[offset].message, str(parked.error))
        ledger.reset_offset(stream.topic, 0, offset + 1, expected=offset, lost="poison", log=None, reason="a test")
    run.finish(stream.topic, stream.ends[Partition(stream.topic, 0)], 0)
    holds(sink_tables, stream, failed)
    assert select(sink_tables, DEAD_LETTERS, group=pipeline.group) == []
    lost = select(sink_tables, "SELECT from_offset FROM lost_range WHERE consumer_group = :group", group=pipeline.group)
    assert sorted(row.from_offset for row in lost) == sorted(failed)


@pytest.mark.repeats("kind")
@pytest.mark.parametrize("kind", [k for k in KINDS if k.raises is not None], ids=str)
def test_a_mistake_of_the_program_ends_the_worker_and_moves_nothing(
    start: Callable[..., tuple[Stream, Pipeline, Run]], sink_tables: SinkTables, kind: Kind
) -> None:
    assert kind.raises is not None
    _, pipeline, run = start("executemany", OnPoison.DEAD_LETTER, [kind])
    run.seen.wait_for(events.WorkerStopped)
    with pytest.raises(kind.raises, match=kind.message):
        run.stop()
    assert not run.health().live
    assert sink_tables.rows("id") == []
    assert set(sink_tables.positions(pipeline).values()) == {0}
    assert select(sink_tables, DEAD_LETTERS, group=pipeline.group) == []
