"""One batch through sinks and handler, on a real Postgres: together or not at all, and a bad record stops itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, bindparam, text
from sqlalchemy.exc import ProgrammingError

from seekpoint import Append, Batch, Json, Limits, Pipeline, Poison, Retry, Text, events
from seekpoint.errors import ConfigError, HandlerMisuse, PoisonStop
from seekpoint.events import Announcer
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Cause, Partition, RawRecord, Record, Span
from seekpoint.testing import Processed, kit, raw, record
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.open_batch import Buffer, OpenBatch
from seekpoint.worker.unit_of_work import Committer
from support.sink_tables import TOPIC, SinkTables, orders, stopped_at

Handler = Callable[[Connection, Batch[Any, Any]], Any]


def numbers(*values: object, partition: int = 0, start: int = 0) -> list[RawRecord]:
    return orders(*(str(value).encode() for value in values), partition=partition, start=start)


class RecordingHandler:
    """A handler that writes what it is given, and remembers each call; ``then`` is what the test is about."""

    def __init__(self, sink_tables: SinkTables, then: Handler | None = None) -> None:
        sink_tables.create("p int, o bigint, v text", "book")
        self.calls: list[list[tuple[int, int]]] = []
        self.spans: list[tuple[Span, ...]] = []
        self._sink_tables, self.then = sink_tables, then
        self._insert = text(f'INSERT INTO "{sink_tables.schema}".book VALUES (:p, :o, :v)').bindparams(
            bindparam("p"), bindparam("o"), bindparam("v")
        )

    def __call__(self, tx: Connection, batch: Batch[Any, Any]) -> Any:
        self.calls.append([(r.partition, r.offset) for r in batch])
        self.spans.append(batch.spans)
        tx.execute(self._insert, [{"p": r.partition, "o": r.offset, "v": str(r.value)} for r in batch])
        return None if self.then is None else self.then(tx, batch)

    def rows(self) -> list[tuple[int, int]]:
        return [(p, o) for p, o in self._sink_tables.rows("p", "o", name="book")]


def handled(group: str, handle: Handler, *sinks: Append, value: Any = None) -> Pipeline:
    return Pipeline(group, topics=TOPIC, value=value or Json(), sinks=sinks, handle=handle)


def nothing_written(sink_tables: SinkTables, pipeline: Pipeline, *tables: str) -> None:
    assert set(sink_tables.positions(pipeline).values()) == {0}
    for table in tables:
        with sink_tables.engine.connect() as tx:
            assert tx.execute(text(f'SELECT count(*) FROM "{sink_tables.schema}".{table}')).scalar_one() == 0


# -- several sinks and a handler ----------------------------------------------------------------------------


def test_sinks_write_in_their_order_then_the_handler_all_in_one_transaction(
    sink_tables: SinkTables, group: str
) -> None:
    parents = sink_tables.append("id int PRIMARY KEY, xid text DEFAULT pg_current_xact_id()::text", name="parents",
                            columns=["id"], row=lambda r: (r.value,))  # fmt: skip
    children = sink_tables.append(
        f'id int REFERENCES "{sink_tables.schema}".parents, xid text DEFAULT pg_current_xact_id()::text',
        name="children", columns=["id"], rows=lambda r: [(r.value,), (r.value,)],
    )  # fmt: skip
    seen: list[int] = []

    def look(tx: Connection, batch: Batch[Any, Any]) -> None:
        seen.append(tx.execute(text(f'SELECT count(*) FROM "{sink_tables.schema}".children')).scalar_one())

    handler = RecordingHandler(sink_tables, look)
    pipeline = handled(group, handler, parents, children)
    done = sink_tables.process(pipeline, *numbers(1, 2), *numbers(3, partition=1))
    assert (done.records, seen) == (3, [6])
    assert handler.rows() == [(0, 0), (0, 1), (1, 0)]
    assert handler.spans == [(Span(Partition(TOPIC, 0), 0, 2), Span(Partition(TOPIC, 1), 0, 1))] == [done.spans]
    (shared,) = {xid for table in ("parents", "children") for (xid,) in sink_tables.rows("xid", name=table)}
    assert shared


def test_a_record_that_one_sink_cannot_take_goes_into_none(sink_tables: SinkTables, group: str) -> None:
    good = sink_tables.append("id int", name="good", columns=["id"], row=lambda r: (r.value,))
    picky = sink_tables.append("id int", name="picky", columns=["id"], row=lambda r: (10 // r.value,))
    handler = RecordingHandler(sink_tables)
    done = sink_tables.process(handled(group, handler, good, picky), *numbers(1, 0, 2), *numbers(5, partition=1))
    assert "ZeroDivisionError" in str(stopped_at(done, 0, 1))
    assert sink_tables.rows("id", name="good") == [(1,), (5,)]
    assert sink_tables.rows("id", name="picky") == [(2,), (10,)]
    assert handler.calls == [[(0, 0), (1, 0)]]


@pytest.mark.parametrize("constraint", ["CHECK (id <> 7)", "REFERENCES parent"])
def test_a_row_that_the_second_sink_is_refused_undoes_the_first(
    sink_tables: SinkTables, group: str, constraint: str
) -> None:
    sink_tables.sql("CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1), (2), (3), (5)")
    constraint = constraint.replace("parent", f'"{sink_tables.schema}".parent')
    first = sink_tables.append("id int", name="first", columns=["id"], row=lambda r: (r.value,))
    second = sink_tables.append(f"id int {constraint}", name="second", columns=["id"], row=lambda r: (r.value,))
    handler = RecordingHandler(sink_tables)
    done = sink_tables.process(handled(group, handler, first, second), *numbers(1, 2, 7, 3), *numbers(5, partition=1))
    assert "the database refused it: " in (message := str(stopped_at(done, 0, 2)))
    assert '"second"' in message
    assert sink_tables.rows("id", name="first") == sink_tables.rows("id", name="second") == [(1,), (2,), (5,)]
    assert handler.rows() == [(0, 0), (0, 1), (1, 0)]
    assert [offset for call in handler.calls for offset in call] == handler.rows(), (
        "the handler saw only the parts that held"
    )


def test_what_a_sink_defers_the_handler_may_still_fulfil(sink_tables: SinkTables, group: str) -> None:
    """Also in the attempt that searches for a bad row: no good one is blamed for what comes later."""
    sink_tables.sql("CREATE TABLE parent (id int PRIMARY KEY)")
    sink = sink_tables.append(
        f'id int UNIQUE DEFERRABLE REFERENCES "{sink_tables.schema}".parent DEFERRABLE INITIALLY DEFERRED',
        columns=["id"],
        row=lambda r: (r.value,),
    )

    def fulfil(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(
            text(f'INSERT INTO "{sink_tables.schema}".parent VALUES (:id) ON CONFLICT DO NOTHING'),
            [{"id": r.value} for r in batch],
        )

    done = sink_tables.process(handled(group, fulfil, sink), *numbers(1, 2, 1, 3), *numbers(5, partition=1))
    assert "duplicate key" in str(stopped_at(done, 0, 2))
    assert sink_tables.rows("id") == [(1,), (2,), (5,)]


# -- poison raised by a handler -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "ends"),
    [
        ({(0, 1)}, {0: 1, 1: 3}),
        ({(0, 0)}, {0: 0, 1: 3}),
        ({(0, 2), (0, 1), (1, 2)}, {0: 1, 1: 2}),
        ({(p, o) for p in (0, 1) for o in range(3)}, {0: 0, 1: 0}),
    ],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["all named", "one by one"])
def test_a_handler_names_its_poison_and_runs_again_without_it(
    sink_tables: SinkTables, group: str, bad: set[tuple[int, int]], ends: dict[int, int], at_once: bool
) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        if named := [r for r in batch if (r.partition, r.offset) in bad]:
            raise Poison("negative amount", *(named if at_once else named[:1]))

    handler = RecordingHandler(sink_tables, refuse)
    pipeline = handled(group, handler)
    done = sink_tables.process(pipeline, *numbers(1, 2, 3), *numbers(4, 5, 6, partition=1))
    for partition, end in ends.items():
        if end < 3:
            assert "the handler calls it poison: Poison: negative amount" in str(stopped_at(done, partition, end))
    assert handler.rows() == [(p, o) for p in (0, 1) for o in range(ends[p])]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, p): end for p, end in ends.items()}
    assert [] not in handler.calls, "never without a record"


def test_poison_that_names_no_record_is_searched_for(sink_tables: SinkTables, group: str) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value < 0 for r in batch):
            raise Poison("something in here")

    sink = sink_tables.append("id int", columns=["id"], row=lambda r: (r.value,))
    pipeline = handled(group, handler := RecordingHandler(sink_tables, refuse), sink)
    done = sink_tables.process(pipeline, *numbers(1, 2, -3, 4), *numbers(5, partition=1), *numbers(-6, partition=2))
    for partition, offset in [(0, 2), (2, 0)]:
        stop = stopped_at(done, partition, offset)
        assert "the handler calls it poison: Poison: something in here" in str(stop)
    assert handler.rows() == [(0, 0), (0, 1), (1, 0)]
    assert sink_tables.rows("id") == [(1,), (2,), (5,)]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 2, Partition(TOPIC, 1): 1, Partition(TOPIC, 2): 0}


def names_its_batch(error: BaseException) -> None:
    (note,) = error.__notes__
    assert note.startswith(f"while applying {TOPIC}/0 [0, 2), {TOPIC}/1 [0, 1)")
    assert "nothing of this batch was written, and it is read again from there" in note


@pytest.mark.parametrize("stranger", [record(1, topic="other"), record(1, topic=TOPIC, offset=99), "a text", None])
def test_poison_that_names_no_record_of_the_batch_is_refused(
    sink_tables: SinkTables, group: str, stranger: Any
) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        raise Poison("bad", stranger)

    pipeline = handled(group, handler := RecordingHandler(sink_tables, refuse))
    with pytest.raises(HandlerMisuse, match="names no record of this batch: pass records of the batch"):
        sink_tables.process(pipeline, *numbers(1, 2))
    nothing_written(sink_tables, pipeline, "book")
    assert len(handler.calls) == 1


def test_among_other_records_the_batchs_own_counts(sink_tables: SinkTables, group: str) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        if len(batch) > 1:
            raise Poison("bad", record(1, topic="other"), batch[1])

    done = sink_tables.process(handled(group, handler := RecordingHandler(sink_tables, refuse)), *numbers(1, 2))
    stopped_at(done, 0, 1)
    assert handler.rows() == [(0, 0)]


# -- other errors of a handler ------------------------------------------------------------------------------


class BrokenError(Exception):
    """A mistake in the user's code."""


@pytest.mark.parametrize("with_sink", [False, True])
def test_any_other_error_of_a_handler_is_raised_for_another_try(
    sink_tables: SinkTables, group: str, with_sink: bool
) -> None:
    """The partition waits before the record that failed; here, where no worker waits, the error is raised."""

    def fail(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value == 2 for r in batch):
            raise BrokenError("a mistake")

    sink = sink_tables.append("id int", columns=["id"], row=lambda r: (r.value,))
    pipeline = handled(group, handler := RecordingHandler(sink_tables, fail), *([sink] if with_sink else []))
    with pytest.raises(BrokenError, match="a mistake"):
        sink_tables.process(pipeline, *numbers(1, 2, 3), *numbers(4, partition=1))
    assert handler.rows() == [(0, 0), (1, 0)]
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 1, Partition(TOPIC, 1): 1}

    handler.then = None  # corrected: the same records come again
    assert sink_tables.process(pipeline, *numbers(1, 2, 3), *numbers(4, partition=1)).records == 2
    assert handler.rows() == [(0, 0), (0, 1), (0, 2), (1, 0)]
    if with_sink:
        assert sink_tables.rows("id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("SELECT 'seven'::int", "22P02"),
        ("SELECT 1 / 0", "22012"),
        ("INSERT INTO {t} VALUES (1), (1)", "23505"),
        ("INSERT INTO {t} VALUES (NULL)", "23502"),
        ("DO $$ BEGIN RAISE EXCEPTION 'not this one'; END $$", "P0001"),
    ],
)
@pytest.mark.parametrize("with_sink", [False, True])
def test_a_handlers_statement_that_the_database_refuses_is_its_records_fault(
    sink_tables: SinkTables, group: str, statement: str, sqlstate: str, with_sink: bool
) -> None:
    path = sink_tables.create("id int PRIMARY KEY", "once")

    def fail(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value < 0 for r in batch):
            tx.execute(text(statement.format(t=".".join(f'"{part}"' for part in path))))

    sink = sink_tables.append("id int", columns=["id"], row=lambda r: (r.value,))
    pipeline = handled(group, handler := RecordingHandler(sink_tables, fail), *([sink] if with_sink else []))
    done = sink_tables.process(pipeline, *numbers(1, -2, 3), *numbers(4, partition=1))
    stop = stopped_at(done, 0, 1)
    assert isinstance(stop, PoisonStop)
    assert (stop.failure.cause, stop.failure.sqlstate, stop.failure.attempts) == (Cause.DATABASE, sqlstate, 1)
    assert handler.rows() == [(0, 0), (1, 0)]
    assert sink_tables.rows("id", name="once") == []


@pytest.mark.parametrize("with_sink", [False, True])
def test_a_statement_that_is_wrong_in_itself_ends_the_work(
    sink_tables: SinkTables, group: str, with_sink: bool
) -> None:
    def fail(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(text("SELECT * FROM nowhere"))

    sink = sink_tables.append("id int", columns=["id"], row=lambda r: (r.value,))
    pipeline = handled(group, RecordingHandler(sink_tables, fail), *([sink] if with_sink else []))
    with pytest.raises(ProgrammingError) as caught:
        sink_tables.process(pipeline, *numbers(1, 2), *numbers(3, partition=1))
    names_its_batch(caught.value)
    nothing_written(sink_tables, pipeline, "book", "t")


@pytest.mark.parametrize("with_sink", [False, True])
def test_a_handlers_row_refused_at_commit_is_its_records_fault(
    sink_tables: SinkTables, group: str, with_sink: bool
) -> None:
    sink_tables.create("id int UNIQUE DEFERRABLE INITIALLY DEFERRED", "late")

    def enter(tx: Connection, batch: Batch[Any, Any]) -> None:
        rows = [{"id": r.value} for r in batch for _ in range(2 if r.value < 0 else 1)]
        tx.execute(text(f'INSERT INTO "{sink_tables.schema}".late VALUES (:id)'), rows)

    sink = sink_tables.append("id int", columns=["id"], row=lambda r: (r.value,))
    pipeline = handled(group, handler := RecordingHandler(sink_tables, enter), *([sink] if with_sink else []))
    seen: list[events.Event] = []
    done = sink_tables.process(pipeline, *numbers(1, -2, 3), *numbers(4, partition=1), observe=(seen.append,))
    assert "UniqueViolation" in str(stopped_at(done, 0, 1))
    assert handler.rows() == [(0, 0), (1, 0)]
    assert sink_tables.rows("id", name="late") == [(1,), (4,)]
    assert not any(isinstance(e, events.CommitUnknown) for e in seen), "a refusal is no unknown"


async def _later() -> None:
    """What an asynchronous function returns is a coroutine."""


def _lazily() -> Iterator[None]:
    """What a function with a yield returns is a generator."""
    yield


async def _lazily_later() -> AsyncIterator[None]:
    yield


class Promise:
    def __await__(self) -> Iterator[None]:
        yield


RETURNED: dict[str, Callable[[], Any]] = {
    "a coroutine": _later,
    "a generator": _lazily,
    "an async_generator": _lazily_later,
    "a map": lambda: map(print, [1]),
    "a filter": lambda: filter(print, [1]),
    "a zip": lambda: zip([1], [2], strict=True),
    "a partial": lambda: partial(print, 1),
    "a function": lambda: _later,
    "a Future": Future,
    "a Promise": Promise,
    "a list": list,
    "an int": lambda: 0,
    "a bool": lambda: False,
}


@pytest.mark.parametrize("what", RETURNED)
def test_what_a_handler_returns_is_not_thrown_away_in_silence(sink_tables: SinkTables, group: str, what: str) -> None:
    """I4: work that is returned, and not done, passes no offset; no coroutine is left that was never awaited."""
    handle = RecordingHandler(sink_tables, lambda tx, batch: RETURNED[what]())
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), handle=handle)
    with pytest.raises(
        HandlerMisuse, match=rf"the handler \S*test_apply\.RecordingHandler returned {what}, which is never run"
    ) as refused:
        sink_tables.process(pipeline, *numbers(1))
    assert "and return None" in str(refused.value)
    nothing_written(sink_tables, pipeline, "book")


def test_work_that_is_returned_for_one_record_is_refused_while_bisecting(sink_tables: SinkTables, group: str) -> None:
    def then(tx: Connection, batch: Batch[Any, Any]) -> Any:
        if len(batch) > 1:
            raise Poison("one of them")
        return map(print, batch)

    pipeline = handled(group, handler := RecordingHandler(sink_tables, then))
    with pytest.raises(HandlerMisuse, match=r"the handler \S*test_apply\.RecordingHandler returned a map"):
        sink_tables.process(pipeline, *numbers(1, 2))
    nothing_written(sink_tables, pipeline, "book")
    assert len(handler.calls) == 2


def test_the_result_of_a_last_statement_may_be_returned(sink_tables: SinkTables, group: str) -> None:
    def handle(tx: Connection, batch: Batch[Any, Any]) -> Any:
        return tx.execute(text("SELECT 1"))

    assert sink_tables.process(handled(group, RecordingHandler(sink_tables, handle)), *numbers(1)).records == 1


# -- poison in a group --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_a_group_of_poison_is_poison(sink_tables: SinkTables, group: str, nested: bool) -> None:
    """As a TaskGroup raises it; each record has the reason of its own."""

    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        bad = [Poison(f"negative: {r.value}", r) for r in batch if r.value < 0]
        if bad:
            raise ExceptionGroup("several", [ExceptionGroup("within", bad)] if nested else bad)

    pipeline = Pipeline(group, topics=TOPIC, value=Json(), handle=(handler := RecordingHandler(sink_tables, refuse)),
                        on_poison="dead_letter")  # fmt: skip
    done = sink_tables.process(pipeline, *numbers(1, -2, 3, -4))
    failures = [(aside.offset, aside.failure.cause, aside.failure.error) for aside in done.dead_letters]
    assert failures == [(1, Cause.POISON, "Poison: negative: -2"), (3, Cause.POISON, "Poison: negative: -4")]
    assert handler.rows() == [(0, 0), (0, 2)]
    assert len(handler.calls) == 2, "all are named: nothing is searched for"


def test_a_group_of_which_one_names_no_record(sink_tables: SinkTables, group: str) -> None:
    """What is named is a dead letter at once, the other one is searched for."""

    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        bad = [Poison("named", r) for r in batch if r.value == -1]
        if any(r.value == -2 for r in batch):
            bad.append(Poison("unnamed"))
        if bad:
            raise ExceptionGroup("several", bad)

    pipeline = Pipeline(group, topics=TOPIC, value=Json(), handle=(handler := RecordingHandler(sink_tables, refuse)),
                        on_poison="dead_letter")  # fmt: skip
    done = sink_tables.process(pipeline, *numbers(1, -1, 2, -2, 3))
    assert sorted((aside.offset, aside.failure.cause) for aside in done.dead_letters) == [
        (1, Cause.POISON), (3, Cause.POISON)
    ]  # fmt: skip
    assert handler.rows() == [(0, 0), (0, 2), (0, 4)]


def test_a_group_with_another_error_is_a_failure_like_any_other(sink_tables: SinkTables, group: str) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        raise ExceptionGroup("mixed", [Poison("bad", next(iter(batch))), ArithmeticError("no")])

    pipeline = handled(group, RecordingHandler(sink_tables, refuse))
    with pytest.raises(ArithmeticError, match="no"):
        sink_tables.process(pipeline, *numbers(1))
    nothing_written(sink_tables, pipeline, "book")


@pytest.mark.parametrize("odd", ["a text", 5, {"a": 1}, [None, "kept", 7]], ids=repr)
@pytest.mark.parametrize("error", [ArithmeticError, Poison])
def test_notes_of_an_exception_may_be_anything(
    sink_tables: SinkTables, group: str, odd: Any, error: type[Exception]
) -> None:
    def refuse(tx: Connection, batch: Batch[Any, Any]) -> None:
        if any(r.value == 2 for r in batch):
            raised = error("no")
            raised.__notes__ = odd
            raise raised

    pipeline = Pipeline(group, topics=TOPIC, value=Json(), handle=(handler := RecordingHandler(sink_tables, refuse)),
                        on_poison="dead_letter", retry=Retry(attempts=1))  # fmt: skip
    done = sink_tables.process(pipeline, *numbers(1, 2, 3))
    assert [aside.offset for aside in done.dead_letters] == [1]
    assert ("(kept)" in done.dead_letters[0].failure.error) == isinstance(odd, list)
    assert handler.rows() == [(0, 0), (0, 2)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_fails_no_record(
    sink_tables: SinkTables, group: str, interruption: type[BaseException]
) -> None:
    def row(r: Record[int, Any]) -> tuple[int]:
        if r.offset == 1:
            raise interruption
        return (r.value,)

    pipeline = Pipeline(
        group, topics=TOPIC, value=Json(), sinks=[sink_tables.append("id int", columns=["id"], row=row)]
    )
    with pytest.raises(interruption):
        sink_tables.process(pipeline, *numbers(1, 2, 3))
    nothing_written(sink_tables, pipeline, "t")


# -- no records ---------------------------------------------------------------------------------------------


def test_a_handler_is_not_called_without_records(sink_tables: SinkTables, group: str) -> None:
    """SQLAlchemy makes a row of defaults of an insert of no rows: a handler need not check for that."""
    calls: list[int] = []
    pipeline = handled(group, lambda tx, batch: calls.append(len(batch)))
    done = sink_tables.process(pipeline, *orders(b"{", b"1"), *orders(b"[", partition=1))
    stopped_at(done, 0, 0)
    stopped_at(done, 1, 0)
    assert (calls, done.records, done.spans) == ([], 0, ())
    assert set(sink_tables.positions(pipeline).values()) == {0}


def test_an_event_for_every_step_of_every_attempt(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int CHECK (id > 0)", columns=["id"], row=lambda r: (r.value,))
    seen: list[events.Event] = []
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[sink])
    sink_tables.process(pipeline, *numbers(1, 2, -3, 4), observe=(seen.append,))
    failed = next(n for n, event in enumerate(seen) if isinstance(event, events.Bisecting))
    # A few rows are sent and awaited with advance: the server's answer may come before or after their Applied.
    begun = [events.BatchOpened(attempt=1), events.Held(partitions=1)]
    assert seen[:failed] in (begun, [*begun, events.Applied(records=4)])
    assert isinstance(seen[-1], events.Committed)
    span = Span(Partition(TOPIC, 0), 0, 2)
    assert seen[failed + 1 :] == [
        events.BatchOpened(attempt=2),
        events.Held(partitions=1),
        events.Applied(records=2),
        events.Advanced(spans=(span,)),
        events.Committed(spans=(span,), records=2, seconds=seen[-1].seconds, rows={f"{sink_tables.schema}.t": 2}),
    ]


# -- chunk by chunk -----------------------------------------------------------------------------------------


def process_in_chunks(
    sink_tables: SinkTables, pipeline: Pipeline, records: Sequence[RawRecord], cuts: set[int]
) -> Processed:
    """As the worker does: the first chunk opens the batch, the others are drawn while it is applied."""
    ledger = GroupLedger(sink_tables.engine, pipeline.group, schema=sink_tables.schema)
    cursors = dict.fromkeys([Partition(TOPIC, n) for n in range(3)], 0)
    ids = {TOPIC: kit.topic_id(TOPIC)}
    claims = ledger.claim(list(cursors), ids, cluster_id=kit.CLUSTER, start=lambda _: dict(cursors)).granted
    chunks: list[Chunk[RawRecord]] = []
    edges = sorted({0, len(records), *(edge for edge in cuts if edge < len(records))})
    for start, end in pairwise(edges):
        reads: dict[Partition, Read] = {}
        for r in records[start:end]:
            partition = Partition(r.topic, r.partition)
            before = reads[partition].start if partition in reads else cursors[partition]
            reads[partition] = Read(claims[partition], before, r.offset + 1)
            cursors[partition] = r.offset + 1
        chunks.append(Chunk(records[start:end], reads))
    seen, hands = kit._Seen(), kit.FixedClaims(ledger, dict(claims))
    committer = Committer(ledger, PipelineWriters(pipeline), hands, Announcer([seen]))
    batch = OpenBatch(Buffer(chunks.pop(0), lambda: chunks.pop(0) if chunks else None, kit.same_topics, Limits()))
    try:
        committer.commit(batch)
    finally:
        committer.close()
        ledger.release(claims.values())
    assert not chunks, "all was drawn"
    return Processed(seen.spans, seen.records, hands.stopped)


class Entry(msgspec.Struct):
    p: int
    o: int
    v: str


GOOD, UNDECODABLE, NO_ROW, REFUSED, NOT_ADAPTED, ORPHAN = "1", "{", "no field v", "-1", "\ud800", "2"


def spelled(kind: str, partition: int, offset: int) -> bytes:
    field = {} if kind == NO_ROW else {"v": kind}
    return b"{" if kind == UNDECODABLE else json.dumps({"p": partition, "o": offset, **field}).encode()


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[RawRecord], dict[int, int], set[int]]:
    """Records of up to 3 partitions with gaps between their offsets, the first bad offset of each, and chunks' ends."""
    kinds = st.sampled_from([GOOD] * 15 + [UNDECODABLE, NO_ROW, REFUSED, NOT_ADAPTED, ORPHAN])
    order = draw(st.lists(st.tuples(st.integers(0, 2), kinds, st.integers(0, 2)), min_size=1, max_size=50))
    offsets, bad = [0, 0, 0], dict[int, int]()
    records = []
    for p, kind, gap in order:
        offset = offsets[p] + gap
        if kind != GOOD:
            bad.setdefault(p, offset)
        records.append(raw(spelled(kind, p, offset), topic=TOPIC, partition=p, offset=offset))
        offsets[p] = offset + 1
    return records, bad, draw(st.sets(st.integers(1, 49), max_size=6))


@pytest.mark.long
@pytest.mark.parametrize("path", ["values", "records", "whole"])
def test_rows_equal_the_records_before_each_first_bad_one(sink_tables: SinkTables, group: str, path: str) -> None:
    """Values alone, whole records, or a whole batch for a handler. Prints the failing stream and how to repeat it."""
    sink_tables.sql("CREATE TABLE parent (v text PRIMARY KEY); INSERT INTO parent VALUES ('1'), ('-1')")
    sink = sink_tables.append(
        f"p int, o bigint, v text CHECK (v <> '-1') REFERENCES \"{sink_tables.schema}\".parent",
        columns=None if path == "values" else ["p", "o", "v"],
        row=None if path == "values" else lambda r: r.value,
    )
    sink_tables.sql("CREATE TABLE handled (n bigint GENERATED ALWAYS AS IDENTITY, p int, o bigint)")
    handled_too = text(f'INSERT INTO "{sink_tables.schema}".handled (p, o) VALUES (:p, :o)')
    runs = iter(range(10**6))

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(handled_too, [{"p": r.partition, "o": r.offset} for r in batch])

    @settings(max_examples=40)
    @given(streams())
    def check(stream: tuple[list[RawRecord], dict[int, int], set[int]]) -> None:
        records, bad, cuts = stream
        sink_tables.sql("TRUNCATE t, handled")
        options: dict[str, Any] = {"value": Json(Entry) if path == "values" else json.loads}
        options["handle"] = handle if path == "whole" else None
        pipeline = Pipeline(f"{group}-{next(runs)}", topics=TOPIC, sinks=[sink], **options)
        done = process_in_chunks(sink_tables, pipeline, records, cuts)
        expected = [(r.partition, r.offset) for r in records if r.offset < bad.get(r.partition, 10**6)]
        assert sink_tables.rows("p", "o") == sorted(expected)
        assert done.records == len(expected)
        assert {p.number: stop.offset for p, stop in done.stopped.items()} == bad
        last = {p: o + 1 for p, o in expected}
        ends = {p: bad.get(p, last[p]) if p in last else 0 for p in range(3)}
        assert {p.number: position for p, position in sink_tables.positions(pipeline).items()} == ends
        if path == "whole":
            seen = [(p, o) for _, p, o in sink_tables.rows("n", "p", "o", name="handled")]
            assert seen == expected, "in the order of the batch, in however many parts"
        assert sink_tables.process(pipeline, *records).records == 0, "nothing twice"

    check()


def test_a_mistake_in_the_declaration_is_no_records_fault(sink_tables: SinkTables, group: str) -> None:
    """``row=`` may say so itself: the work ends, instead of stopping partition after partition."""

    def row(r: Record[str, Any]) -> tuple[str]:
        raise ConfigError("the table of rates is empty: fill it")

    pipeline = Pipeline(
        group, topics=TOPIC, value=Text(), sinks=[sink_tables.append("id int", columns=["id"], row=row)]
    )
    with pytest.raises(ConfigError, match="the table of rates is empty"):
        sink_tables.process(pipeline, *numbers(1))
    nothing_written(sink_tables, pipeline, "t")
