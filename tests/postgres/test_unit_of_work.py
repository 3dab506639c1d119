"""The connection that a handler is lent: it can write and fail with it, and never part the rows from the offset."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import BigInteger, Connection, Engine, Integer, Text, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from seekpoint import Bytes, Pipeline, Poison
from seekpoint.errors import ConfigError, HandlerMisuse
from seekpoint.ledger import Ledger
from seekpoint.ledger.tables import DEFAULT_SCHEMA, in_schema
from seekpoint.pipeline.batch import Batch
from seekpoint.records import Partition
from seekpoint.testing import Processed, kit, process, raw
from support.fixtures import NewEngine
from support.ledger_desk import applied, make_table, scalar
from support.service import driver

Handler = Callable[[Connection, Batch[Any, Any]], None]


class Work:
    """A group whose handler first books its records, then does what the test is about."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema, self.group = engine, schema, f"g-{schema[-8:]}"  # no other test's: sessions show it
        make_table(engine, schema)

    def book(self, tx: Connection, batch: Batch[Any, Any]) -> None:
        rows = [{"partition": r.partition, "record": r.offset, "by": r.value.decode()} for r in batch]
        tx.execute(applied.insert(), rows, execution_options=in_schema(self.schema))

    def run(self, handle: Handler, count: int = 3, **options: Any) -> Processed:
        """``count`` records through the real unit of work."""
        pipeline = Pipeline(self.group, topics="topic", value=Bytes(), handle=handle, **options)
        records = [raw(b"v%d" % n, offset=n, leader_epoch=4) for n in range(count)]
        return process(pipeline, self.engine, records, schema=self.schema)

    def run_after_booking(self, then: Callable[[Connection], object]) -> Processed:
        def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
            self.book(tx, batch)
            then(tx)

        return self.run(handle)

    def rows(self) -> list[int]:
        with self.engine.connect() as tx:
            query = select(applied.c.record).order_by(applied.c.record)
            return list(tx.execute(query, execution_options=in_schema(self.schema)).scalars())

    def position(self) -> int:
        return Ledger(self.engine, self.group, schema=self.schema).read()[0].next_offset

    def holds(self, rows: int, position: int) -> None:
        assert (self.rows(), self.position()) == (list(range(rows)), position)


def controlled(tx: Connection) -> Session:
    """An ORM session that ends the transaction it joins, as soon as it has one."""
    session = Session(tx, join_transaction_mode="control_fully")
    session.execute(text("SELECT 1"))
    return session


@pytest.fixture
def work(seekpoint_engine: Engine, seekpoint_schema: str) -> Work:
    return Work(seekpoint_engine, seekpoint_schema)


def test_rows_and_offset_are_one_transaction(work: Work) -> None:
    """I1: and what was applied is not applied again."""
    assert work.run(work.book).records == 3
    work.holds(3, 3)
    assert work.run(work.book, 5).records == 2
    work.holds(5, 5)


def sends(statement: str) -> Callable[[Any], object]:
    return lambda tx: tx.exec_driver_sql(statement)


def in_pipeline(call: Callable[[Any], object]) -> Callable[[Any], None]:
    def handle(tx: Connection) -> None:
        with driver(tx).pipeline():
            driver(tx).execute("SELECT 1")
            call(driver(tx).pgconn)

    return handle


ENDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "commit": (r"called commit\(\)", lambda tx: tx.commit()),
    "rollback": (r"called rollback\(\)", lambda tx: tx.rollback()),
    "close": (r"called close\(\)", lambda tx: tx.close()),
    "detach": (r"called detach\(\)", lambda tx: tx.detach()),
    "invalidate": (r"called invalidate\(\)", lambda tx: tx.invalidate()),
    "transaction.commit": (r"called commit\(\)", lambda tx: tx.get_transaction().commit()),
    "connection.commit": (r"called commit\(\)", lambda tx: tx.connection.commit()),
    "driver.commit": (r"called commit\(\)", lambda tx: driver(tx).commit()),
    "session.commit": (r"called commit\(\)", lambda tx: controlled(tx).commit()),
    "cursor.connection": (r"called commit\(\)", lambda tx: driver(tx).cursor().connection.commit()),
    "named cursor.connection": (r"called commit\(\)", lambda tx: driver(tx).cursor("c").connection.commit()),
    "execute().connection": (r"called commit\(\)", lambda tx: driver(tx).execute("SELECT 1").connection.commit()),
    "result's cursor": (r"called commit\(\)", lambda tx: tx.exec_driver_sql("SELECT 1").cursor.connection.commit()),
    "with driver": (r"called commit\(\)", lambda tx: driver(tx).__exit__(None, None, None)),
    "driver.close": (r"called close\(\)", lambda tx: driver(tx).close()),
    "driver.autocommit": ("can't change 'autocommit' now", lambda tx: setattr(driver(tx), "autocommit", True)),
    "transaction.rollback": ("ended the transaction it was lent", lambda tx: tx.get_transaction().rollback()),
    "connection.close": (r"called close\(\)", lambda tx: tx.connection.close()),
    "connection.invalidate": (r"called invalidate\(\)", lambda tx: tx.connection.invalidate()),
    "connection.detach": (r"called detach\(\)", lambda tx: tx.connection.detach()),
    "literal rollback": ("ended the transaction it was lent", sends("ROLLBACK")),
    "pgconn in a pipeline": ("used pgconn while statements", in_pipeline(lambda pgconn: pgconn.exec_(b"ROLLBACK"))),
    "pgconn send in one": ("used pgconn while statements", in_pipeline(lambda pgconn: pgconn.send_query(b"SELECT 1"))),
}


@pytest.mark.parametrize("how", ENDS)
def test_ending_the_transaction_is_refused(work: Work, how: str) -> None:
    """I1: nothing reaches the table, the offset stays, and the error names what to do instead."""
    says, ends = ENDS[how]
    with pytest.raises((HandlerMisuse, psycopg.ProgrammingError), match=says):
        work.run_after_booking(ends)
    work.holds(0, 0)
    work.run(work.book)
    work.holds(3, 3)


@pytest.mark.parametrize(
    ("says", "does"),
    [
        ("ended the transaction it was lent", lambda pgconn: pgconn.exec_(b"ROLLBACK")),
        ("left a command unfinished", lambda pgconn: pgconn.send_query(b"SELECT 1")),
        ("left a command unfinished", lambda pgconn: pgconn.enter_pipeline_mode()),
    ],
    ids=["rollback", "send", "pipeline"],
)
def test_calls_of_pgconn_come_to_a_clear_end(work: Work, says: str, does: Callable[[Any], object]) -> None:
    """I1: what is sent by libpq's own calls is found when the handler has returned."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        work.book(tx, batch)
        does(driver(tx).pgconn)

    with pytest.raises(HandlerMisuse, match=says):
        work.run(handle)
    work.holds(0, 0)


def test_a_connection_that_pgconn_closed_is_tried_again(work: Work) -> None:
    """I1: like one that was lost: nothing is written, and nothing is blamed."""
    calls: list[int] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        calls.append(len(batch))
        work.book(tx, batch)
        if len(calls) == 1:
            driver(tx).pgconn.finish()

    assert work.run(handle).records == 3
    assert calls == [3, 3]
    work.holds(3, 3)


@pytest.mark.parametrize("isolating", [False, True])
def test_a_refused_commit_cannot_be_swallowed(work: Work, isolating: bool) -> None:
    """I1: the handler that catches the refusal, and continues, has committed nothing."""

    def swallow(tx: Connection, batch: Batch[Any, Any]) -> None:
        if isolating and len(batch) == 3:
            raise Poison("the first", *[r for r in batch if r.offset == 0])
        work.book(tx, batch)
        with pytest.raises(HandlerMisuse):
            tx.get_transaction().commit()  # type: ignore[union-attr]

    with pytest.raises(HandlerMisuse, match="ended the transaction it was lent"):
        work.run(swallow, on_poison="dead_letter")
    work.holds(0, 0)


@pytest.mark.parametrize(
    "commits",
    [
        sends("COMMIT"),
        lambda tx: (tx.exec_driver_sql("COMMIT"), tx.exec_driver_sql("BEGIN")),
        sends("SELECT 1; COMMIT"),
        lambda tx: (tx.execute(text("SELECT 1")), driver(tx).pgconn.exec_(b"COMMIT")),
    ],
    ids=["literal commit", "literal commit and begin", "commit among others", "pgconn"],
)
def test_a_commit_by_the_handler_stops_the_work(work: Work, commits: Callable[[Connection], None]) -> None:
    """I1: what the handler committed by itself cannot be taken back: stop, say so, and never do it again."""
    calls: list[int] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        calls.append(len(batch))
        work.book(tx, batch)
        commits(tx)

    with pytest.raises(HandlerMisuse, match="half done"):
        work.run(handle)
    assert calls == [3]
    work.holds(3, 0)


def test_a_swallowed_database_error_is_heard(work: Work) -> None:
    """I1: the transaction is broken; to continue as if nothing had happened would lose the rows."""

    def swallow(tx: Connection) -> None:
        with pytest.raises(DBAPIError):
            tx.execute(text("SELECT 1 / 0"))

    with pytest.raises(HandlerMisuse, match="caught a database error and continued"):
        work.run_after_booking(swallow)
    work.holds(0, 0)


def test_a_savepoint_may_fail(work: Work) -> None:
    """I1: the part that failed is gone, the rest is committed with the offset."""

    def try_it(tx: Connection) -> None:
        with pytest.raises(DBAPIError), tx.begin_nested():
            tx.execute(text("SELECT 1 / 0"))

    assert work.run_after_booking(try_it).records == 3
    work.holds(3, 3)


def test_an_exception_of_the_handler_takes_everything_back(work: Work) -> None:
    """I1: it passes unwrapped, and the record will be tried again."""

    def fail(tx: Connection) -> None:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        work.run_after_booking(fail)
    work.holds(0, 0)


def test_misuse_leaves_no_open_transaction_in_the_pool(work: Work, seekpoint_engine: Engine) -> None:
    """I1: the next user of the pool does not find itself inside our transaction, nor do its rows vanish."""
    with pytest.raises(HandlerMisuse):
        work.run_after_booking(lambda tx: tx.rollback())
    with seekpoint_engine.connect() as tx:
        raw_connection: Any = tx.connection.driver_connection
        assert raw_connection.info.transaction_status.name == "IDLE"
    query = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND application_name LIKE :n"
    assert scalar(seekpoint_engine, query, n=f"seekpoint % {work.group}") == 0


class Base(DeclarativeBase):
    pass


class Applied(Base):
    __tablename__ = "applied"
    __table_args__ = ({"schema": DEFAULT_SCHEMA},)
    record: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    partition: Mapped[int] = mapped_column(Integer)
    by: Mapped[str] = mapped_column(Text)


@pytest.mark.parametrize("fails", [False, True])
def test_the_orm_joins_the_transaction(work: Work, fails: bool) -> None:
    """I1: a Session of the ORM commits into our transaction, and not through it: an error after it leaves nothing."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        joined = tx.execution_options(**in_schema(work.schema))
        with Session(joined, join_transaction_mode="create_savepoint") as session:
            session.add_all(Applied(record=r.offset, partition=r.partition, by="orm") for r in batch)
            session.commit()
            assert work.rows() == []  # committed to the savepoint: no other session sees it
            session.add(Applied(record=0, partition=0, by="gone"))
            session.rollback()
        if fails:
            raise ArithmeticError("after")

    if fails:
        with pytest.raises(ArithmeticError):
            work.run(handle)
        work.holds(0, 0)
    else:
        assert work.run(handle).records == 3
        work.holds(3, 3)


def test_options_that_a_handler_sets_do_not_outlive_its_batch(work: Work) -> None:
    """I1: the next transaction of the worker is READ COMMITTED, and its ledger the ledger, whatever came before."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execution_options(**in_schema("nowhere"))
        work.book(tx, batch)

    assert work.run(handle, 2).records == 2
    assert work.run(handle, 3).records == 1
    work.holds(3, 3)


def test_a_constraint_that_is_checked_at_commit_is_one_records_fault(work: Work) -> None:
    """I1: COMMIT itself may be refused: then the record is searched for, and rows and offset end in front of it."""
    with work.engine.begin() as tx:
        table = f"{work.schema}.applied"
        tx.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT once UNIQUE (by) DEFERRABLE INITIALLY DEFERRED"))
        tx.execute(text(f"INSERT INTO {table} VALUES (0, 99, 'v1')"))
    done = work.run(work.book)
    assert "UniqueViolation" in str(done.stopped[Partition("topic", 0)])
    assert (work.rows(), work.position()) == ([0, 99], 1)


@pytest.mark.parametrize(
    "made",
    [
        lambda engine: engine.execution_options(isolation_level="AUTOCOMMIT"),
        lambda engine: create_engine(engine.url, isolation_level="AUTOCOMMIT"),
        lambda engine: create_engine(engine.url, execution_options={"isolation_level": "AUTOCOMMIT"}),
    ],
    ids=["option", "argument", "option of the argument"],
)
def test_an_engine_that_commits_by_itself_is_refused(work: Work, made: Callable[[Engine], Engine]) -> None:
    """I1: AUTOCOMMIT would make rows and offset two transactions; said before anything is done."""
    work.engine = made(work.engine)
    with pytest.raises(ConfigError, match="the engine is set to AUTOCOMMIT"):
        work.run(work.book)


@pytest.mark.parametrize("how", ["options", "driver"])
def test_a_connection_that_commits_by_itself_is_refused(work: Work, new_engine: NewEngine, how: str) -> None:
    """I1: also where people own their loop, and the engine says nothing of it."""
    given = {"connect_args": {"autocommit": True}} if how == "driver" else {}
    engine = new_engine(work.engine.url, **given)
    ledger = Ledger(engine, work.group, schema=work.schema)
    with engine.connect() as tx:
        if how == "options":
            tx.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigError, match="the connection is set to AUTOCOMMIT"):
            ledger.hold(tx, [])
        with pytest.raises(ConfigError, match="the connection is set to AUTOCOMMIT"):
            ledger.advance(tx, [])


@pytest.mark.parametrize("isolating", [False, True])
def test_an_exit_in_a_handler_is_said(work: Work, isolating: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Python ends a process for SystemExit without a word: the log says who asked for it, and that nothing is lost."""

    def leave(tx: Connection, batch: Batch[Any, Any]) -> None:
        if isolating and len(batch) == 3:
            raise Poison("one of them")
        work.book(tx, batch)
        sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        work.run(leave, on_poison="dead_letter")
    assert ended.value.code == 3
    (line,) = [one for one in caplog.records if one.name == "seekpoint.worker.unit_of_work"]
    assert line.levelno == logging.ERROR
    said = line.getMessage()
    for words in ("SystemExit(3)", "in leave", "topic/0 [0, 3)", "nothing of this batch was written", "Worker.stop()"):
        assert words in said
    work.holds(0, 0)


def test_an_error_of_the_client_after_commit_is_not_the_batchs(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition ends at a poison record, and the client cannot stop reading it: the records before are written."""

    def book(tx: Connection, batch: Batch[Any, Any]) -> None:
        if b"v2" in [r.value for r in batch]:
            raise Poison("no")
        work.book(tx, batch)

    def stop(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(kit.FixedClaims, "stop_or_reclaim", stop)
    with pytest.raises(KafkaException) as raised:
        work.run(book)
    assert not getattr(raised.value, "__notes__", []), "it does not say that nothing was written"
    work.holds(2, 2)
