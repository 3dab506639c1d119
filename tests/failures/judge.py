"""Run one kind of failure, one way of writing and one policy, and compare everything that can be seen afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from failures.kinds import TABLE, TRIGGER, Kind, good
from failures.strategies import key_of, pipeline_on
from seekpoint import Partition
from seekpoint.pipeline.policy import OnPoison, Retry
from seekpoint.records import Cause, RawRecord, State
from seekpoint.testing import Processed
from support.sink_tables import SinkTables

TOPIC = "records"
FIRST = 10  # the offset at which partition 0 begins
BAD = (12, 15)  # the offsets of its bad records
ENDS = {0: 18, 1: 5}
LONGEST = 1_100  # of an error's text, in characters
TRY_ONCE = Retry(attempts=1, on=(OSError, ArithmeticError))
OURS = Partition(TOPIC, 0)
DEAD_LETTERS = """
SELECT topic, partition, record_offset, key, value, header_names, header_values, timestamp_ms, leader_epoch, state,
  cause, error, traceback, sqlstate, attempts, version, dead_lettered_by IS NOT NULL AS is_by_someone
FROM dead_letter WHERE consumer_group = :group ORDER BY topic, partition, record_offset
"""
STOPPED = """
SELECT attempt_offset, attempts, attempt_error, attempt_policy, retry_at FROM partition_state
WHERE consumer_group = :group AND topic = :topic AND partition = 0
"""


@dataclass(frozen=True)
class Outcome:
    """What was seen, in words: a line of the table."""

    kind: str
    strategy: str
    policy: str
    cause: str
    sqlstate: str
    record: str
    good: str
    offset: str


def prepare(sink_tables: SinkTables) -> None:
    """What all tables of this schema refer to."""
    sink_tables.sql(f"CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1); {TRIGGER}")


def create(sink_tables: SinkTables, name: str) -> None:
    """A fresh table, and the one beside it."""
    sink_tables.sql(
        f"CREATE TABLE {name} ({TABLE}); CREATE TABLE {name}_too (seq bigint GENERATED ALWAYS AS IDENTITY, id bigint);"
        f"CREATE TRIGGER picky BEFORE INSERT ON {name} FOR EACH ROW WHEN (NEW.note = 'trigger')"
        " EXECUTE FUNCTION refuse();"
    )


def records_of(kind: Kind, topic: str = TOPIC) -> list[RawRecord]:
    """Partition 0 with two bad records among good ones, partition 1 with good ones; they interleave."""
    records = []
    for n in range(ENDS[0] - FIRST):
        offset = FIRST + n
        records.append(kind.bad(offset, FIRST, 0, offset, topic) if offset in BAD else good(offset, 0, offset, topic))
        if n < ENDS[1]:
            records.append(good(1000 + n, 1, n, topic))
    return records


def judge(sink_tables: SinkTables, kind: Kind, strategy: str, policy: OnPoison, name: str) -> Outcome:
    """Run it through the real unit of work; fails if anything is not as it must be."""
    create(sink_tables, name)
    records, group = records_of(kind), name
    pipeline = pipeline_on(strategy, sink_tables, name, topics=TOPIC, on_poison=policy, retry=TRY_ONCE, **key_of(kind))
    if kind.raises is not None:
        with pytest.raises(kind.raises, match=kind.message):
            sink_tables.process(pipeline, *records)
        _nothing_happened(sink_tables, group, name, pipeline_positions=sink_tables.positions(pipeline))
        return _outcome(
            kind, strategy, policy, "-", "-", f"the worker ends: {kind.raises.__name__}", "not yet", "stays"
        )
    done = sink_tables.process(pipeline, *records)
    cause = kind.cause_on(strategy)
    ends = {**ENDS, 0: BAD[0]} if cause is not None and policy is OnPoison.STOP else ENDS
    failed = () if cause is None or policy is OnPoison.STOP else BAD
    _holds(sink_tables, name, strategy, ends, failed if cause is not None else ())
    assert {p.number: position for p, position in sink_tables.positions(pipeline).items()} == ends, (
        "positions equal rows"
    )
    dead_letters = select(sink_tables, DEAD_LETTERS, group=group)
    assert [row.record_offset for row in dead_letters] == list(failed)
    for row in dead_letters:
        _check_reports(row, records, kind, strategy, policy)
    if cause is None:
        return _outcome(kind, strategy, policy, "-", "-", "applied", "applied", "passed")
    if policy is OnPoison.STOP:
        _stands_still(sink_tables, group, done, kind, cause)
    else:
        assert [(e.offset, e.state) for e in done.dead_letters] == [(offset, _STATE[policy]) for offset in BAD]
    again = sink_tables.process(pipeline, *records)
    assert (again.records, again.dead_letters) == (0, ()), "what was passed stays passed, what stood still stands there"
    _holds(sink_tables, name, strategy, ends, failed)
    assert {p.number: position for p, position in sink_tables.positions(pipeline).items()} == ends
    assert [row.record_offset for row in select(sink_tables, DEAD_LETTERS, group=group)] == list(failed)
    outcome = {OnPoison.STOP: "still in Kafka", OnPoison.DEAD_LETTER: "`parked`, whole", OnPoison.SKIP: "`skipped`"}
    stays = policy is OnPoison.STOP
    good_ones = "those before it applied" if stays else "all applied once, in order"
    offset = "before it" if stays else "after it"
    state = dead_letters[0].sqlstate if dead_letters else kind.sqlstate
    return _outcome(kind, strategy, policy, cause.value, state or "-", outcome[policy], good_ones, offset)


_STATE = {OnPoison.DEAD_LETTER: State.DEAD_LETTERED, OnPoison.SKIP: State.SKIPPED}


def _outcome(kind: Kind, strategy: str, policy: OnPoison, *seen: str) -> Outcome:
    return Outcome(kind.name, strategy, policy.value, *seen)


def select(sink_tables: SinkTables, query: str, **options: Any) -> Sequence[Any]:
    """Rows of the ledger's schema."""
    with sink_tables.engine.begin() as tx:
        tx.exec_driver_sql(f'SET LOCAL search_path = "{sink_tables.schema}"')
        return tx.execute(text(query), options).all()


def _nothing_happened(
    sink_tables: SinkTables, group: str, name: str, pipeline_positions: Mapping[Partition, int]
) -> None:
    assert {p.number: pipeline_position for p, pipeline_position in pipeline_positions.items()} == {0: FIRST, 1: 0}
    assert sink_tables.rows("id", name=name) == []
    assert select(sink_tables, DEAD_LETTERS, group=group) == []


def ids(partition: int, start: int, end: int, without: Sequence[int] = ()) -> list[int]:
    """The ids of the good records of a partition."""
    return [n if partition == 0 else 1000 + n for n in range(start, end) if n not in without or partition]


def _holds(sink_tables: SinkTables, name: str, strategy: str, ends: Mapping[int, int], without: Sequence[int]) -> None:
    """Each good record once, and each partition's in the order of the log."""
    wanted = [*ids(0, FIRST, ends[0], without), *ids(1, 0, ends[1])]
    for table in (name, f"{name}_too") if strategy == "two sinks" else (name,):
        written = [n for _, n in sink_tables.rows("seq", "id", name=table)]
        in_order = [n for n in written if n < 1000] + [n for n in written if n >= 1000]
        assert in_order == wanted, f"{table}: each once and in order"


def _check_reports(row: Any, records: Sequence[RawRecord], kind: Kind, strategy: str, policy: OnPoison) -> None:
    """A dead letter holds the whole record, and why."""
    (record,) = [r for r in records if (r.partition, r.offset) == (0, row.record_offset)]
    skipped = policy is OnPoison.SKIP
    assert (row.topic, row.partition, row.key) == (record.topic, 0, record.key)
    assert row.value == (None if skipped else record.value)
    assert list(zip(row.header_names, row.header_values, strict=True)) == [
        (header.encode(), value) for header, value in record.headers
    ]
    assert (row.timestamp_ms, row.leader_epoch) == (record.timestamp_ms, record.leader_epoch)
    assert row.state == _STATE[policy].value
    cause = kind.cause_on(strategy)
    assert cause is not None
    assert (row.cause, row.attempts, row.version) == (cause.value, 1, 1)
    assert row.is_by_someone
    assert row.sqlstate == kind.sqlstate
    assert re.search(kind.message, row.error), row.error
    assert len(row.error) < LONGEST
    assert "\n" not in row.error
    assert row.traceback
    assert row.error.split(":")[0] in row.traceback, "the traceback names the error"
    assert 'File "' in row.traceback, "and shows where it was raised"
    assert len(row.traceback) <= 30_000


def _stands_still(sink_tables: SinkTables, group: str, done: Processed, kind: Kind, cause: Cause) -> None:
    """Stopped before the first bad record, and it is on record why."""
    stop: Any = done.stopped[OURS]
    assert (list(done.stopped), stop.offset) == ([OURS], BAD[0])
    assert (stop.failure.cause, stop.failure.sqlstate) == (cause, kind.sqlstate)
    assert re.search(kind.message, str(stop))
    assert len(str(stop)) < 2 * LONGEST
    (row,) = select(sink_tables, STOPPED, group=group, topic=TOPIC)
    assert (row.attempt_offset, row.attempts, row.attempt_policy, row.retry_at) == (BAD[0], 1, "stop", None)
    assert re.search(kind.message, row.attempt_error)
