"""What a handler sends on the connection it is lent: answers, errors and savepoints, and the round trips of a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Table, Text, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from seekpoint import Append, Batch, Pipeline, Poison, events
from seekpoint import Text as Utf8
from seekpoint.errors import HandlerMisuse, PoisonStop
from seekpoint.records import Cause
from seekpoint.sinks.insert import ROWS
from seekpoint.sinks.small_append import MOST_RECORDS_IN_ONE_INSERT
from seekpoint.testing import Processed, process
from support.fixtures import NewEngine
from support.ledger_worker import backend, wait_until_blocked
from support.postgres_proxy import PostgresProxy
from support.round_trips import RoundTrips, trips
from support.service import Row, driver
from support.sink_tables import SinkTables, orders, stopped_at

Tx = Connection
Then = Callable[[Connection, Batch[Any, Any]], Any]


class Counter:
    """A table ``t (id, v)`` in a schema of its own, and handlers over it."""

    def __init__(self, sink_tables: SinkTables, group: str) -> None:
        self.sink_tables, self.group = sink_tables, group
        sink_tables.create("id bigint PRIMARY KEY, v text CHECK (v <> 'bad')")
        self.t = f'"{sink_tables.schema}".t'
        self.insert = text(f"INSERT INTO {self.t} VALUES (:id, :v)")
        self.table = Table("t", MetaData(schema=sink_tables.schema), Column("id", BigInteger, primary_key=True),
                           Column("v", Text))  # fmt: skip
        self.calls: list[int] = []
        self.trips: list[int] = []
        self.seen: list[events.Event] = []

    def pipeline(self, handle: Then, **options: Any) -> Pipeline:
        def counted(tx: Tx, batch: Batch[Any, Any]) -> None:
            self.calls.append(len(batch))
            with trips(driver(tx)) as seen:
                handle(tx, batch)
            self.trips.append(seen.count)

        return Pipeline(self.group, topics="orders", value=Utf8(), handle=counted, **options)

    def run(self, handle: Then, *values: str, **options: Any) -> Processed:
        """Records with these values, handed to this handler."""
        return self.process(self.pipeline(handle, **options), *values)

    def append(self, *values: str) -> Processed:
        """Records with these values, appended to the table."""
        return self.process(Pipeline(self.group, topics="orders", value=Utf8(), sinks=[self.sink]), *values)

    def process(self, pipeline: Pipeline, *values: str) -> Processed:
        """Records with these values, through the real unit of work."""
        return self.sink_tables.process(pipeline, *orders(*map(str.encode, values)), observe=(self.seen.append,))

    @property
    def sink(self) -> Append:
        """Writes a row per record."""
        return Append((self.sink_tables.schema, "t"), columns=["id", "v"], row=lambda r: (r.offset, r.value))

    def each(self, tx: Tx, batch: Batch[Any, Any]) -> None:
        """A row per record, by a statement per record."""
        for r in batch:
            tx.execute(self.insert, {"id": r.offset, "v": r.value})

    def each_in_a_pipeline(self, tx: Tx, batch: Batch[Any, Any]) -> None:
        """As :meth:`each`, in a pipeline of the driver's."""
        with driver(tx).pipeline():
            for r in batch:
                driver(tx).execute(f"INSERT INTO {self.t} VALUES (%s, %s)", (r.offset, r.value))

    def rows(self) -> list[tuple[Any, ...]]:
        return self.sink_tables.rows("id", "v")


@pytest.fixture
def counter(seekpoint_engine: Engine, seekpoint_schema: str, group: str) -> Counter:
    return Counter(SinkTables(seekpoint_engine, seekpoint_schema), group)


HUNDRED = [f"v{n}" for n in range(100)]


# -- a pipeline --------------------------------------------------------------------------------------------------


def test_a_pipeline_of_the_handlers_own_is_one_round_trip(counter: Counter) -> None:
    assert counter.run(counter.each_in_a_pipeline, *HUNDRED).records == 100
    assert counter.trips == [1]
    assert counter.rows() == list(enumerate(HUNDRED))


def test_a_bad_row_in_a_pipeline_is_its_own_records_fault(counter: Counter) -> None:
    stop = stopped_at(counter.run(counter.each_in_a_pipeline, *HUNDRED[:40], "bad", *HUNDRED[41:]), 0, 40)
    assert isinstance(stop, PoisonStop)
    assert (stop.failure.cause, stop.failure.sqlstate) == (Cause.DATABASE, "23514")
    assert counter.rows() == list(enumerate(HUNDRED[:40]))


@pytest.mark.parametrize(
    ("statement", "logged"),
    [
        ("INSERT INTO {t} VALUES (0, 'bad')", []),
        ("SELECT pg_terminate_backend(pg_backend_pid())", []),
        ("SELECT 1 / 0", ["division by zero"]),
    ],
    ids=["refused row", "lost connection", "another error"],
)
def test_psycopg_logs_no_error_of_a_pipeline_again(
    counter: Counter, caplog: pytest.LogCaptureFixture, statement: str, logged: list[str]
) -> None:
    """psycopg logs a statement's error if the handler has raised another one before it is known."""

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        with driver(tx).pipeline():
            driver(tx).execute(f"INSERT INTO {counter.t} VALUES (1, 'good')")
            driver(tx).execute(statement.format(t=counter.t))
            if logged:
                raise ValueError("of the handler")
            driver(tx).execute("SELECT 1").fetchone()

    with suppress(psycopg.Error, ValueError):
        counter.run(handle, "v0")
    warnings = [line.getMessage() for line in caplog.records if line.name == "psycopg"]
    assert [text.rsplit(": ", 1)[-1] for text in warnings] == logged


@pytest.mark.parametrize("catches", ["once", "each"])
def test_an_error_that_is_caught_in_a_pipeline_is_heard(counter: Counter, catches: str) -> None:
    """The server skips the rest of the pipeline: what the driver raises then is no lost connection."""

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        caught = 0
        with driver(tx).pipeline():
            for r in batch:
                try:
                    driver(tx).execute(f"INSERT INTO {counter.t} VALUES (%s, %s)", (r.offset, r.value))
                    if r.value == "bad":
                        driver(tx).execute("SELECT 1").fetchone()
                except psycopg.Error:
                    caught += 1
                    if catches == "once" and caught > 1:
                        raise

    with pytest.raises(HandlerMisuse, match="caught a database error and continued"):
        counter.run(handle, "v0", "bad", "v2", "v3")
    assert counter.calls == [4]
    assert counter.rows() == []


def test_a_pipeline_in_a_savepoint_may_fail(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        with suppress(psycopg.Error), tx.begin_nested():
            counter.each_in_a_pipeline(tx, batch)
        tx.execute(counter.insert, {"id": 50, "v": "after"})

    assert counter.run(handle, "v0", "bad", "v2").records == 3
    assert counter.calls == [3]
    assert counter.rows() == [(50, "after")]


# -- answers ------------------------------------------------------------------------------------------------------


def test_rowcount_is_right_whenever_it_is_read(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        updated = tx.execute(text(f"UPDATE {counter.t} SET v = 'w' WHERE id < :n"), {"n": 3})
        nothing = tx.execute(counter.table.update().where(counter.table.c.id > 99).values(v="x"))
        inserted = tx.execute(counter.insert, {"id": 50, "v": "y"})
        several = tx.execute(counter.insert, [{"id": n, "v": "y"} for n in (51, 52)])
        deleted = tx.exec_driver_sql(f"DELETE FROM {counter.t} WHERE id >= %s", (51,))
        assert (deleted.rowcount, several.rowcount, inserted.rowcount) == (2, 2, 1)
        assert (nothing.rowcount, updated.rowcount) == (0, 3)
        raw = driver(tx).execute(f"UPDATE {counter.t} SET v = 'z' WHERE id = 50")
        assert (raw.description, raw.rowcount, raw.statusmessage) == (None, 1, "UPDATE 1")
        assert not updated.returns_rows

    assert counter.run(handle, *HUNDRED[:5]).records == 5
    assert counter.rows() == [(0, "w"), (1, "w"), (2, "w"), (3, "v3"), (4, "v4"), (50, "z")]


def test_rows_that_a_statement_returns_are_there(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        returned = tx.execute(text(f"INSERT INTO {counter.t} VALUES (50, 'r') RETURNING id, v")).one()
        assert tuple(returned) == (50, "r")
        many = tx.execute(counter.table.insert().returning(counter.table.c.id), [{"id": 60}, {"id": 61}])
        assert sorted(many.scalars()) == [60, 61]
        cursor = driver(tx).execute(f"SELECT v FROM {counter.t} WHERE id = 1")
        assert cursor.description is not None
        assert cursor.fetchall() == [("v1",)]
        assert tx.scalar(text(f"SELECT count(*) FROM {counter.t}")) == 6
        rows = tx.execute(
            text(f"WITH gone AS (DELETE FROM {counter.t} WHERE id >= 50 RETURNING id) SELECT * FROM gone")
        )
        assert sorted(rows.scalars()) == [50, 60, 61]

    counter.run(handle, "v0", "v1", "v2")
    assert counter.rows() == [(0, "v0"), (1, "v1"), (2, "v2")]


def test_rows_that_come_by_and_by_are_read_beside_writing(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        lazily = tx.execution_options(stream_results=True).execute(text(f"SELECT id FROM {counter.t} ORDER BY id"))
        for n in lazily.scalars():
            driver(tx).execute(f"UPDATE {counter.t} SET v = 'seen' WHERE id = %s", (n,))

    counter.run(handle, "v0", "v1", "v2")
    assert counter.rows() == [(0, "seen"), (1, "seen"), (2, "seen")]


def test_copy_waits_for_what_was_sent_before(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        with driver(tx).cursor() as cursor, cursor.copy(f"COPY {counter.t} FROM STDIN") as copy:
            copy.write_row((50, "copied"))
        tx.execute(counter.insert, {"id": 51, "v": "behind"})

    counter.run(handle, "v0", "v1")
    assert counter.rows() == [(0, "v0"), (1, "v1"), (50, "copied"), (51, "behind")]


def test_a_pipeline_of_the_handlers_own_is_left_alone(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        with driver(tx).pipeline() as pipeline, driver(tx).cursor() as cursor:
            cursor.execute(f"INSERT INTO {counter.t} VALUES (50, 'own')")
            pipeline.sync()
            cursor.execute(f"SELECT count(*) FROM {counter.t}")
            assert cursor.fetchone() == (3,)
        tx.execute(counter.insert, {"id": 51, "v": "behind"})

    counter.run(handle, "v0", "v1")
    assert [n for n, _ in counter.rows()] == [0, 1, 50, 51]


def test_several_commands_in_one_text_run_as_ever(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        tx.exec_driver_sql(f"INSERT INTO {counter.t} VALUES (50, 'one'); INSERT INTO {counter.t} VALUES (51, 'two')")

    counter.run(handle, "v0")
    assert [n for n, _ in counter.rows()] == [0, 50, 51]


# -- savepoints and the ORM ---------------------------------------------------------------------------------------


def sqlalchemy_savepoint(tx: Tx) -> Any:
    return tx.begin_nested()


def psycopg_savepoint(tx: Tx) -> Any:
    return driver(tx).transaction()


@pytest.mark.parametrize("savepoint", [sqlalchemy_savepoint, psycopg_savepoint])
@pytest.mark.parametrize("ahead", [True, False], ids=["something is outstanding", "nothing is outstanding"])
def test_an_error_in_a_savepoint_is_raised_in_it(counter: Counter, savepoint: Callable[[Tx], Any], ahead: bool) -> None:
    """What a handler tries and gives up is gone; what it wrote before and after is there, in one attempt."""
    lines: list[str] = []

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for r in batch:
            if ahead:
                tx.execute(counter.insert, {"id": r.offset, "v": r.value})
            with suppress(DBAPIError, psycopg.Error), savepoint(tx):
                tx.execute(counter.insert, {"id": 100 + r.offset, "v": "good"})
                if r.offset % 2:
                    tx.execute(counter.insert, {"id": 200 + r.offset, "v": "bad"})
                    lines.append("behind the bad one")

    assert counter.run(handle, "v0", "v1", "v2").records == 3
    assert counter.calls == [3]
    assert lines == []
    before = [(n, f"v{n}") for n in range(3)] if ahead else []
    assert counter.rows() == [*before, (100, "good"), (102, "good")]


def test_savepoints_by_hand(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for r in batch:
            tx.execute(counter.insert, {"id": r.offset, "v": "kept"})
            tx.exec_driver_sql("SAVEPOINT mine")
            try:
                tx.execute(counter.insert, {"id": r.offset + 100, "v": r.value})
                tx.exec_driver_sql("RELEASE mine")
            except IntegrityError:
                tx.exec_driver_sql("ROLLBACK TO mine")

    assert counter.run(handle, "v0", "bad", "v2").records == 3
    assert counter.calls == [3]
    assert counter.rows() == [(0, "kept"), (1, "kept"), (2, "kept"), (100, "v0"), (102, "v2")]


@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only"])
def test_the_orm_reads_its_own_rowcounts(counter: Counter, mode: Any) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        joined = tx.execution_options(schema_translate_map={"here": counter.sink_tables.schema})
        with Session(joined, join_transaction_mode=mode) as session:
            row = session.get_one(Row, 0)
            row.v = "changed"
            session.add_all(Row(id=50 + n, v="new") for n in range(3))
            session.flush()
            session.delete(session.get_one(Row, 1))
            session.commit()
            gone = session.get_one(Row, 2)
            tx.execute(text(f"DELETE FROM {counter.t} WHERE id = 2"))
            gone.v = "too late"
            with pytest.raises(StaleDataError):
                session.flush()
            session.rollback()
        if mode == "create_savepoint":
            tx.execute(text(f"DELETE FROM {counter.t} WHERE id = 2"))

    if mode == "rollback_only":  # a session's rollback is the transaction's then: the handler may not
        with pytest.raises(HandlerMisuse, match="ended its transaction"):
            counter.run(handle, "v0", "v1", "v2")
        assert counter.rows() == []
    else:
        assert counter.run(handle, "v0", "v1", "v2").records == 3
        assert counter.rows() == [(0, "changed"), (50, "new"), (51, "new"), (52, "new")]


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [False, True], ids=["met at the end", "met at a question"])
def test_a_bad_row_in_the_middle_is_its_own_records_fault(counter: Counter, asks: bool) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        if asks:
            tx.execute(text("SELECT 1")).scalar_one()

    values = [*HUNDRED[:40], "bad", *HUNDRED[41:]]
    stop = stopped_at(counter.run(handle, *values), 0, 40)
    assert isinstance(stop, PoisonStop)
    assert (stop.failure.cause, stop.failure.sqlstate) == (Cause.DATABASE, "23514")
    assert counter.rows() == [(n, f"v{n}") for n in range(40)]
    assert counter.calls[:2] == [100, 50]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_handler_that_names_the_record_at_hand_names_the_right_one(counter: Counter, count: int) -> None:
    """The error comes out while a later record is in hand: what the handler makes of it then is not believed."""

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for r in batch:
            try:
                tx.execute(counter.insert, {"id": r.offset, "v": r.value})
                if r.offset % 3 == 2:
                    tx.execute(text("SELECT 1"))
            except IntegrityError as error:
                raise Poison("no such thing", r) from error

    values = [f"v{n}" for n in range(count)]
    values[count // 2] = "bad"
    stop = stopped_at(counter.run(handle, *values), 0, count // 2)
    assert isinstance(stop, PoisonStop)
    assert stop.failure.cause is Cause.POISON
    assert len(counter.rows()) == count // 2


def test_only_the_record_that_a_handler_names_is_left_out(counter: Counter) -> None:
    """No other batch is tried to find it."""

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        if bad := [r for r in batch if r.value == "no"]:
            raise Poison("no", *bad)

    stop = stopped_at(counter.run(handle, "v0", "v1", "no", "v3"), 0, 2)
    assert isinstance(stop, PoisonStop)
    assert stop.failure.cause is Cause.POISON
    assert counter.calls == [4, 2]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_that_is_caught_is_heard(counter: Counter, count: int) -> None:

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for _ in batch:
            with suppress(DBAPIError):
                tx.execute(counter.insert, {"id": 1, "v": "bad"})
                tx.execute(text("SELECT 1"))

    with pytest.raises(HandlerMisuse, match="caught a database error and continued"):
        counter.run(handle, *HUNDRED[:count])
    assert counter.rows() == []


def test_an_error_before_a_savepoint_is_the_records(counter: Counter) -> None:

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for r in batch:
            tx.execute(counter.insert, {"id": r.offset, "v": r.value})
            with suppress(DBAPIError), tx.begin_nested():
                tx.execute(counter.insert, {"id": r.offset, "v": "twice"})

    stop = stopped_at(counter.run(handle, "v0", "bad", "v2"), 0, 1)
    assert isinstance(stop, PoisonStop)
    assert counter.rows() == [(0, "v0")]


@pytest.mark.parametrize("ends", [lambda tx: tx.commit(), lambda tx: tx.rollback(), lambda tx: tx.close()])
def test_the_transaction_is_not_ended_by_the_handler(counter: Counter, ends: Callable[[Tx], None]) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        ends(tx)

    with pytest.raises(HandlerMisuse, match="on its connection"):
        counter.run(handle, "v0", "v1")
    assert counter.calls == [2]
    assert counter.rows() == []


def test_a_commit_by_a_statement_is_no_reason_to_try_again(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        driver(tx).execute("COMMIT")
        tx.execute(counter.insert, {"id": 50, "v": "behind"})

    with pytest.raises(HandlerMisuse, match=r"half done"):
        counter.run(handle, "v0", "v1")
    assert counter.calls == [2]


def test_a_statement_that_is_wrong_in_itself_is_raised_with_its_text(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        tx.execute(text(f"INSERT INTO {counter.t} (nowhere) VALUES (1)"))
        tx.execute(text("SELECT 1"))

    with pytest.raises(DBAPIError, match="nowhere") as caught:
        counter.run(handle, "v0", "v1")
    assert "INSERT INTO" in str(caught.value.statement)
    assert counter.rows() == []


def test_a_value_that_cannot_be_written_is_refused_at_its_own_line(counter: Counter) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        for r in batch:
            with suppress(psycopg.Error, DBAPIError):  # it never reached the server: the transaction is whole
                driver(tx).execute(f"INSERT INTO {counter.t} VALUES (%s, %s)", (r.offset, object()))
            tx.execute(counter.insert, {"id": r.offset, "v": r.value})

    assert counter.run(handle, "v0", "v1").records == 2
    assert counter.calls == [2]
    assert counter.rows() == [(0, "v0"), (1, "v1")]


def test_a_deadlock_is_tried_again(counter: Counter, seekpoint_engine: Engine) -> None:
    counter.sink_tables.sql("INSERT INTO t VALUES (1000, 'a'), (1001, 'b')")
    update = text(f"UPDATE {counter.t} SET v = :v WHERE id = :id")
    first = threading.Event()

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        tx.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
        assert tx.execute(update, {"id": 1000, "v": "ours"}).rowcount == 1
        if not first.is_set():
            first.set()
            wait_until_blocked(seekpoint_engine, by=backend(tx))  # the server looks once, 10 ms after ours waits
        tx.execute(update, {"id": 1001, "v": "ours"})
        counter.each(tx, batch)

    def rival() -> None:
        with seekpoint_engine.begin() as tx:
            tx.execute(text("SET LOCAL deadlock_timeout = '1min'"))
            tx.execute(update, {"id": 1001, "v": "theirs"})
            assert first.wait(30)
            tx.execute(update, {"id": 1000, "v": "theirs"})

    thread = threading.Thread(target=rival)
    thread.start()
    assert counter.run(handle, "v0", "v1").records == 2
    thread.join()
    assert counter.calls == [2, 2]
    (trouble,) = [e for e in counter.seen if isinstance(e, events.DatabaseTrouble)]
    assert "deadlock detected" in str(trouble.error)
    assert [n for n, _ in counter.rows()] == [0, 1, 1000, 1001]


@pytest.mark.parametrize("skip", [0, 3, 9])
def test_a_cut_connection_is_replaced(counter: Counter, proxy: PostgresProxy, new_engine: NewEngine, skip: int) -> None:
    proxy.arm("at_statement", f"INSERT INTO {counter.t}", skip=skip)
    counter.sink_tables.engine = new_engine(proxy.dsn)
    assert counter.run(counter.each, *HUNDRED[:10]).records == 10
    assert proxy.fired.is_set()
    assert counter.calls == [10, 10]
    assert [n for n, _ in counter.rows()] == list(range(10))
    assert [e for e in counter.seen if isinstance(e, events.DatabaseTrouble | events.Bisecting)] != []
    assert not any(isinstance(e, events.CommitUnknown | events.Bisecting) for e in counter.seen)


def test_a_cut_that_is_caught_is_heard(counter: Counter, proxy: PostgresProxy, new_engine: NewEngine) -> None:
    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        with suppress(OperationalError):
            tx.execute(text("SELECT 1"))

    proxy.arm("at_statement", f"INSERT INTO {counter.t}", skip=3)
    counter.sink_tables.engine = new_engine(proxy.dsn)
    counter.run(handle, *HUNDRED[:10])
    assert proxy.fired.is_set()
    assert [n for n, _ in counter.rows()] == list(range(10))


def test_a_session_that_was_ended_while_answers_were_outstanding(counter: Counter, seekpoint_engine: Engine) -> None:
    """A statement waits for a lock at the server, and the handler does not wait."""
    counter.sink_tables.sql("INSERT INTO t VALUES (1000, 'a')")
    held, ended = threading.Event(), threading.Event()

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        counter.each(tx, batch)
        if len(counter.calls) == 1:
            assert held.wait(20)
        tx.execute(text(f"UPDATE {counter.t} SET v = 'ours' WHERE id = 1000"))

    def rival() -> None:
        with seekpoint_engine.begin() as tx:
            tx.execute(text(f"UPDATE {counter.t} SET v = 'theirs' WHERE id = 1000"))
            pid = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
            held.set()
            waits = wait_until_blocked(seekpoint_engine, by=pid)
            assert tx.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": waits}).scalar_one()
        ended.set()

    thread = threading.Thread(target=rival)
    thread.start()
    assert counter.run(handle, "v0", "v1").records == 2
    thread.join()
    assert ended.is_set()
    assert counter.calls == [2, 2]
    assert counter.rows() == [(0, "v0"), (1, "v1"), (1000, "ours")]


# -- the whole unit of work ---------------------------------------------------------------------------------------


def unit_of_work(counter: Counter, count: int, **options: Any) -> int:
    """The round trips of one transaction with so many records, from its begin to its COMMIT."""
    engine = create_engine(counter.sink_tables.engine.url, pool_size=1, max_overflow=0)
    pipeline = Pipeline(counter.group, topics="orders", value=Utf8(), **options)
    tracing, counted = ExitStack(), list[RoundTrips]()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.BatchOpened):
            with engine.connect() as connection:  # the pool's only one: the batch will have it, too
                counted.append(tracing.enter_context(trips(driver(connection))))
        if isinstance(event, events.Committed):
            tracing.close()

    try:
        for n in range(2):  # in the first, the sink may ask for what it remembers then
            records = orders(*(b"v%d" % k for k in range(count)), start=n * count)
            process(pipeline, engine, records, schema=counter.sink_tables.schema, observe=(observe,))
    finally:
        engine.dispose()
    return counted[-1].count


KEYS = {"keep_key_order": True, "on_poison": "dead_letter"}


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (1, {}, 2),
        (MOST_RECORDS_IN_ONE_INSERT, {}, 2),
        (MOST_RECORDS_IN_ONE_INSERT + 1, {}, 6),
        (MOST_RECORDS_IN_ONE_INSERT, KEYS, 4),
        (MOST_RECORDS_IN_ONE_INSERT + 1, KEYS, 7),
    ],
    ids=["one row", "small", "by COPY", "small in key order", "in key order"],
)
def test_round_trips_of_a_batch(counter: Counter, count: int, options: dict[str, Any], expected: int) -> None:
    """Small: BEGIN, hold, advance and rows; COMMIT. Else BEGIN with hold, the writes, advance, COMMIT."""
    assert unit_of_work(counter, count, sinks=[counter.sink], **options) == expected
    assert len(counter.rows()) == 2 * count


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_bad_row_among_few_is_its_own_records_fault(counter: Counter, count: int) -> None:
    values = [f"v{n}" for n in range(count)]
    values[count // 2] = "bad"
    stop = stopped_at(counter.append(*values), 0, count // 2)
    assert isinstance(stop, PoisonStop)
    assert (stop.failure.cause, stop.failure.sqlstate) == (Cause.DATABASE, "23514")
    assert len(counter.rows()) == count // 2
    assert not any(isinstance(e, events.Refused) for e in counter.seen)


@pytest.mark.parametrize("by", ["rows", "statements", "one cursor", "a list"])
def test_a_row_that_speaks_like_the_fence_is_no_refusal(counter: Counter, by: str) -> None:
    """What the ledger refuses is known by its words: a value with the same words is a bad value, and no more."""
    path = counter.sink_tables.create("n int", "numbers")
    insert = text(f'INSERT INTO "{path[0]}".numbers VALUES (CAST(CAST(:n AS text) AS int))')

    def handle(tx: Tx, batch: Batch[Any, Any]) -> None:
        if by == "a list":
            tx.execute(insert, [{"n": r.value} for r in batch])
        cursor = driver(tx).cursor()
        for r in batch:
            if by == "statements":
                tx.execute(insert, {"n": r.value})
            if by == "one cursor":
                cursor.execute(f'INSERT INTO "{path[0]}".numbers VALUES (CAST(CAST(%s AS text) AS int))', (r.value,))

    sinks = [Append(path, columns=["n"], row=lambda r: (r.value,))] if by == "rows" else []
    pipeline = Pipeline(
        counter.group, topics="orders", value=Utf8(), sinks=sinks, handle=None if by == "rows" else handle
    )
    done = counter.process(pipeline, "1", "seekpoint: claim or position is not the expected one; rows advanced: 0")
    stop = stopped_at(done, 0, 1)
    assert isinstance(stop, PoisonStop)
    assert stop.failure.sqlstate == "22P02"
    assert not any(isinstance(e, events.Refused) for e in counter.seen)
    assert counter.sink_tables.rows("n", name="numbers") == [(1,)]


@pytest.mark.parametrize("words", ['COPY "', "WITH moving"])
def test_a_connection_cut_between_rows_and_offset(
    counter: Counter, proxy: PostgresProxy, new_engine: NewEngine, words: str
) -> None:
    counter.sink_tables.engine = new_engine(proxy.dsn)
    proxy.arm("at_statement", words)
    assert counter.append("v0", "v1").records == 2
    assert proxy.fired.is_set()
    assert counter.rows() == [(0, "v0"), (1, "v1")]
    assert [e.attempt for e in counter.seen if isinstance(e, events.BatchOpened)] == [1, 2]
    assert not any(isinstance(e, events.CommitUnknown | events.Bisecting) for e in counter.seen)


def repeated(row: tuple[Any, ...], count: int) -> Callable[[Any], list[tuple[Any, ...]]]:
    return lambda _: [row] * count


@pytest.mark.long
def test_values_mean_the_same_in_few_rows_and_in_many(counter: Counter) -> None:
    """Text of no type, read by the column's own: not rounded, cut or cast on the way, as COPY does not."""
    values = [
        ("int", "12.5"), ("int", True), ("numeric(6,1)", "12.56"), ("varchar(3)", "abcd"), ("char(3)", "ab"),
        ("text", 5), ("text", {"a": [1]}), ("jsonb", {"a": [1]}), ("int[]", [1, None]), ("bool", "yes"),
        ("bytea", b"\x00\xff"),
        ("timestamptz", "2026-01-01T00:00:00Z"), ("float8", "NaN"), ("money", "12.50"), ("inet", "10.0.0.1"),
        ("int GENERATED ALWAYS AS IDENTITY", 7), ("int", None), ("text", "\\N"), ("text", "tab\there"),
    ]  # fmt: skip
    for n, (kind, value) in enumerate(values):
        outcomes = []
        for rows in (1, ROWS + 1):
            name = f"t_{n}_{rows}"
            counter.sink_tables.create(f'"a%b" {kind}', name)
            sink = Append((counter.sink_tables.schema, name), columns=["a%b"], rows=repeated((value,), rows))
            pipeline = Pipeline(f"{counter.group}-{name}", topics="orders", value=Utf8(), sinks=[sink])
            counter.process(pipeline, "x")  # the connection knows the table from here on
            done = counter.sink_tables.process(pipeline, *orders(b"x", start=1))
            states = [stop.failure.sqlstate for stop in done.stopped.values() if isinstance(stop, PoisonStop)]
            outcomes.append((counter.sink_tables.rows("a%b", name=name)[:1], states))
        assert repr(outcomes[0]) == repr(outcomes[1]), (kind, value)
