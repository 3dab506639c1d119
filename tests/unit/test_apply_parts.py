"""The search for records that fail: what is applied, what fails, and how many calls that takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seekpoint import Batch, Bytes, Partition, Pipeline, Poison
from seekpoint.errors import PoisonStop
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim
from seekpoint.pipeline.policy import Limits, Retry
from seekpoint.pipeline.sink import Sink, SinkWriter
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Cause, RawRecord, State
from seekpoint.testing import raw
from seekpoint.worker import parts
from seekpoint.worker.apply import apply
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.bisect import LEAST, Strides
from seekpoint.worker.failed import TRIES, Failed, Mode
from seekpoint.worker.open_batch import Buffer, OpenBatch


class Tx:
    """A transaction that is a list, with savepoints."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.kept = 0

    def keep(self) -> None:
        self.kept = len(self.rows)

    def undo(self) -> None:
        del self.rows[self.kept :]

    @contextmanager
    def lent(self, _who: str) -> Iterator[None]:
        yield

    def check(self) -> None:
        pass


@pytest.fixture(autouse=True, scope="module")
def savepoints() -> Iterator[None]:
    """The transaction has its savepoints itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PartSavepoints", lambda tx, **_: tx)
        yield


Handle = Callable[[Any, Batch[Any, Any]], None]


def opened(records: Sequence[RawRecord]) -> OpenBatch:
    reads: dict[Partition, Read] = {}
    for record in records:
        partition = Partition(record.topic, record.partition)
        reads[partition] = Read(Claim(partition, uuid4(), 1, 0, None, uuid4()), 0, record.offset + 1)
    return OpenBatch(Buffer(Chunk(records, reads), lambda: None, lambda *_: Answer(), Limits()))


def records_of(count: int, partitions: int = 1) -> list[RawRecord]:
    return [raw(b"v", topic="t", partition=n % partitions, offset=n // partitions) for n in range(count)]


class Handler:
    """Writes each record's id, and raises what is asked for at some of them."""

    def __init__(self, bad: dict[str, Exception], *, names: bool = False) -> None:
        self.bad, self.names = bad, names
        self.calls = self.handed = 0

    def __call__(self, tx: Any, batch: Batch[Any, Any]) -> None:
        self.calls += 1
        self.handed += len(batch)
        for record in batch:
            if record.id in self.bad:
                error = self.bad[record.id]
                raise Poison("named", record) if self.names else error
            tx.rows.append(record.id)


def isolated(
    handle: Handle, records: Sequence[RawRecord], strides: Strides | None = None, **options: Any
) -> tuple[Tx, OpenBatch, int]:
    tx, batch = Tx(), opened(records)
    pipeline = Pipeline("g", topics="t", value=Bytes(), handle=handle, **{"on_poison": "dead_letter", **options})
    return tx, batch, in_parts(strides or Strides(), pipeline, batch, tx)


def in_parts(strides: Strides, pipeline: Pipeline, batch: OpenBatch, tx: Tx | None = None) -> int:
    """Apply a batch after its last try as a whole."""
    mode = Mode(attempt=TRIES + 1, is_bisecting=True)
    return apply(tx or Tx(), PipelineWriters(pipeline), batch, mode, strides).applied  # type: ignore[arg-type]


@given(
    count=st.integers(1, 80),
    partitions=st.integers(1, 3),
    bad=st.sets(st.integers(0, 79), max_size=20),
    named=st.booleans(),
)
def test_good_records_are_applied_once_and_in_order(count: int, partitions: int, bad: set[int], named: bool) -> None:
    records = records_of(count, partitions)
    wrong = {records[n].id for n in bad if n < count}
    handler = Handler({i: Poison("no") for i in wrong}, names=named)
    tx, batch, applied = isolated(handler, records)
    assert tx.rows == [r.id for r in records if r.id not in wrong]
    assert applied == len(tx.rows)
    assert {aside.record.id for aside in batch.outcome.dead_letters} == wrong
    assert all(a.state is State.DEAD_LETTERED and a.failure.cause is Cause.POISON for a in batch.outcome.dead_letters)
    assert not batch.outcome.ends


@pytest.mark.parametrize("count", [2, 16, 1024, 10_000])
@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
def test_one_bad_record_costs_about_log2_calls(count: int, place: float) -> None:
    records = records_of(count)
    handler = Handler({records[round(place * (count - 1))].id: Poison("no")})
    isolated(handler, records)
    assert handler.calls <= math.log2(count) + 7


def test_in_parts_no_record_is_blamed_for_a_statement_of_before_an_alter() -> None:
    """A single-record attempt, or a batch in which failures are expected: the statement is made again first."""
    (record,) = records_of(1)
    error = psycopg.errors.DatatypeMismatch('column "v" is of type jsonb but expression is of type integer')
    batch = opened([record])
    pipeline = Pipeline("g", topics="t", value=Bytes(), handle=Handler({record.id: error}), on_poison="dead_letter")
    with pytest.raises(Failed) as failed:
        apply(Tx(), PipelineWriters(pipeline), batch, Mode(is_bisecting=True), Strides())  # type: ignore[arg-type]
    assert failed.value.is_of_before_alter
    assert not batch.outcome.dead_letters
    apply(Tx(), PipelineWriters(pipeline), batch, Mode(attempt=2, is_bisecting=True), Strides())  # type: ignore[arg-type]
    assert [aside.record.id for aside in batch.outcome.dead_letters] == [record.id]


def test_a_record_that_the_handler_names_costs_one_call() -> None:
    records = records_of(1024)
    handler = Handler({records[600].id: Poison("no")}, names=True)
    isolated(handler, records)
    assert handler.calls == 2


@pytest.mark.repeats("every")
@pytest.mark.parametrize("every", [10, 100, 1000])
def test_many_bad_records_do_not_make_the_work_grow_with_the_batch(every: int) -> None:
    """The first batch finds out how far apart they come; the next ones are cut into parts from the beginning."""
    strides, count = Strides(), max(4_000, 20 * every)
    handed, records = [], records_of(count)
    for _ in range(3):
        handler = Handler({records[n].id: Poison("no") for n in range(every // 2, count, every)})
        tx, batch, applied = isolated(handler, records, strides)
        assert len(batch.outcome.dead_letters) == count // every
        assert applied == len(tx.rows) == count - count // every
        assert strides.expects_failures
        handed.append(handler.handed / count)
    assert handed[0] <= 8
    assert max(handed[1:]) <= (2.2 if every > LEAST else 5)


def test_after_a_clean_batch_the_next_one_is_tried_whole_again() -> None:
    strides, records = Strides(), records_of(1000)
    isolated(Handler({r.id: Poison("no") for r in records[::100]}), records, strides, on_poison="skip")
    assert strides.expects_failures
    isolated(Handler({}), records, strides)
    assert not strides.expects_failures


def test_an_exception_ends_its_partition_alone() -> None:
    records = records_of(30, 3)
    handler = Handler({"t/1/4": ConnectionError("no answer")})
    tx, batch, _ = isolated(handler, records)
    assert tx.rows == [r.id for r in records if r.partition != 1 or r.offset < 4]
    stop = batch.outcome.ends[Partition("t", 1)]
    assert isinstance(stop, RetryLater)
    assert (stop.offset, stop.failure.attempts, stop.failure.cause) == (4, 1, Cause.HANDLER)
    assert not batch.outcome.dead_letters


def test_an_error_that_no_record_alone_makes_is_no_records_fault() -> None:
    """A handler that cannot take more than three at once is called with parts, and no record is blamed."""
    records = records_of(20)

    def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        if len(batch) > 3:
            raise ValueError("too many")
        tx.rows += [r.id for r in batch]

    tx, batch, applied = isolated(handle, records)
    assert tx.rows == [r.id for r in records]
    assert applied == 20
    assert not batch.outcome.ends
    assert not batch.outcome.dead_letters


def test_stop_applies_what_is_in_front_and_the_other_partitions() -> None:
    records = records_of(20, 2)
    tx, batch, _ = isolated(Handler({"t/0/3": Poison("no")}), records, on_poison="stop")
    assert tx.rows == [r.id for r in records if r.partition or r.offset < 3]
    assert isinstance(batch.outcome.ends[Partition("t", 0)], PoisonStop)


def test_the_errors_that_are_not_to_be_tried_again_are_poison_at_once() -> None:
    records = records_of(4)
    handler = Handler({"t/0/2": KeyError("x")})
    _, batch, _ = isolated(handler, records, retry=Retry(on=(ConnectionError,)))
    assert [(a.record.offset, a.failure.cause, a.failure.attempts) for a in batch.outcome.dead_letters] == [
        (2, Cause.HANDLER, 1)
    ]


def test_several_that_are_named_at_once_need_no_search() -> None:
    records = records_of(100)
    calls = 0

    def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        nonlocal calls
        calls += 1
        if bad := [r for r in batch if r.offset % 10 == 7]:
            raise Poison("sevens", *bad)
        tx.rows += [r.id for r in batch]

    tx, batch, _ = isolated(handle, records)
    assert calls <= 1 + math.ceil(100 / LEAST)
    assert len(batch.outcome.dead_letters) == 10
    assert len(tx.rows) == 90


def test_a_part_that_fails_only_as_a_whole_is_applied_after_one_with_a_bad_record() -> None:
    """What was learned of the part before says nothing about this one."""
    records = records_of(40)

    def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        if any(record.offset == 30 for record in batch):
            raise Poison("no")
        if len(batch) == 9:
            raise OSError("not all at once")
        tx.rows.extend(record.id for record in batch)

    tx, batch, applied = isolated(handle, records)
    assert tx.rows == [r.id for r in records if r.offset != 30]
    assert (applied, [aside.record.offset for aside in batch.outcome.dead_letters]) == (39, [30])


def test_a_short_batch_without_a_failure_does_not_end_the_expectation() -> None:
    """Batches are as short as the queue: what matters is how many records came since the last failure."""
    strides, records = Strides(), records_of(1000)
    isolated(Handler({r.id: Poison("no") for r in records[::100]}), records, strides, on_poison="skip")
    for _ in range(5):
        isolated(Handler({}), records_of(100), strides)
    assert strides.expects_failures


def too_long() -> Exception:
    return psycopg.errors.QueryCanceled("canceling statement due to statement timeout")


def test_parts_are_halved_once_for_what_takes_too_long_and_grow_again() -> None:
    """At most 300 at once for one batch, then any number: soon whole batches are written again."""
    strides, limits = Strides(), [300]
    records, sizes = records_of(10_000), list[int]()

    def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        if len(batch) > limits[-1]:
            raise too_long()
        sizes.append(len(batch))
        tx.rows += [r.id for r in batch]

    isolated(handle, records, strides)
    assert strides.expects_failures
    assert 64 <= max(sizes) <= 300
    limits.append(10**6)
    for _ in range(5):
        isolated(handle, records, strides)
    assert not strides.expects_failures


def test_where_statements_still_take_too_long_few_parts_fail() -> None:
    strides, records, failed, written = Strides(), records_of(3_000), 0, 0

    def handle(tx: Any, batch: Batch[Any, Any]) -> None:
        nonlocal failed, written
        if len(batch) > 300:
            failed += 1
            raise too_long()
        written += 1

    for _ in range(10):
        isolated(handle, records, strides)
    assert failed <= 20
    assert written <= 10 * 3_000 / 64


def test_what_one_record_takes_alone_says_nothing_of_the_size() -> None:
    strides = Strides()
    _, batch, _ = isolated(Handler({"t/0/7": too_long()}), records_of(100), strides)
    stop = batch.outcome.ends[Partition("t", 0)]
    assert isinstance(stop, RetryLater)
    assert (stop.offset, stop.failure.cause) == (7, Cause.TRANSIENT)
    assert not strides.expects_failures


@pytest.mark.parametrize("error", [psycopg.errors.UndefinedFunction("no"), psycopg.errors.SerializationFailure("no")])
def test_an_error_that_may_be_no_records_is_raised_where_no_other_record_is_applied(error: psycopg.Error) -> None:
    records = records_of(1000)
    handler = Handler({r.id: error for r in records})
    with pytest.raises(type(error)):
        isolated(handler, records)
    assert handler.calls <= math.log2(len(records)) + 2 + 40


def test_a_mistake_in_one_sink_is_no_records_because_another_sink_wrote() -> None:
    """Every row of the second sink is refused: that the first one takes them shows nothing."""

    class Writes(Sink, SinkWriter):
        tables = ("t",)

        def __init__(self, error: Exception | None) -> None:
            self.error = error

        def writer(self) -> Any:
            return self

        def takes(self, topic: str) -> bool:
            return True

        def rows(self, record: Any) -> list[tuple[int]]:
            return [(1,)]

        @contextmanager
        def open(self, tx: Any) -> Iterator[Any]:
            yield self

        def write(self, rows: Sequence[Any]) -> None:
            if self.error is not None and rows:
                raise self.error

    sinks: Any = [Writes(None), Writes(psycopg.errors.UndefinedTable("none"))]
    pipeline = Pipeline("g", topics="t", value=Bytes(), sinks=sinks)
    with pytest.raises(psycopg.errors.UndefinedTable):
        in_parts(Strides(), pipeline, opened(records_of(10)))
