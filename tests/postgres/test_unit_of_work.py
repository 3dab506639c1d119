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
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.tables import DEFAULT_SCHEMA, in_schema
from seekpoint.pipeline.batch import Batch
from seekpoint.records import Partition
from seekpoint.testing import Processed, kit, process, raw
from support.fixtures import NewEngine
from support.ledger_worker import applied, make_table, scalar
from support.service import driver

Handler = Callable[[Connection, Batch[Any, Any]], None]


class HandlerGroup:
    """A group whose handler first writes its records, then does what the test is about."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema, self.group = engine, schema, f"g-{schema[-8:]}"  # no other test's: sessions show it
        make_table(engine, schema)

    def write(self, tx: Connection, batch: Batch[Any, Any]) -> None:
        rows = [{"partition": r.partition, "record": r.offset, "by": r.value.decode()} for r in batch]
        tx.execute(applied.insert(), rows, execution_options=in_schema(self.schema))

    def run(self, handle: Handler, count: int = 3, **options: Any) -> Processed:
        """``count`` records through the real unit of work."""
        pipeline = Pipeline(self.group, topics="topic", value=Bytes(), handle=handle, **options)
        records = [raw(b"v%d" % n, offset=n, leader_epoch=4) for n in range(count)]
        return process(pipeline, self.engine, records, schema=self.schema, collect=True)

    def run_after_writing(self, then: Callable[[Connection], object]) -> Processed:
        def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
            self.write(tx, batch)
            then(tx)

        return self.run(handle)

    def rows(self) -> list[int]:
        with self.engine.connect() as tx:
            query = select(applied.c.record).order_by(applied.c.record)
            return list(tx.execute(query, execution_options=in_schema(self.schema)).scalars())

    def position(self) -> int:
        return GroupLedger(self.engine, self.group, schema=self.schema).read()[0].next_offset

    def holds(self, rows: int, position: int) -> None:
        assert (self.rows(), self.position()) == (list(range(rows)), position)


def controlled(tx: Connection) -> Session:
    """An ORM session that ends the transaction it joins, as soon as it has one."""
    session = Session(tx, join_transaction_mode="control_fully")
    session.execute(text("SELECT 1"))
    return session


@pytest.fixture
def handler_group(seekpoint_engine: Engine, seekpoint_schema: str) -> HandlerGroup:
    return HandlerGroup(seekpoint_engine, seekpoint_schema)


def test_rows_and_offset_are_one_transaction(handler_group: HandlerGroup) -> None:
    """I1: and what was applied is not applied again."""
    assert handler_group.run(handler_group.write).records == 3
    handler_group.holds(3, 3)
    assert handler_group.run(handler_group.write, 5).records == 2
    handler_group.holds(5, 5)


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
    "transaction.rollback": ("ended its transaction", lambda tx: tx.get_transaction().rollback()),
    "connection.close": (r"called close\(\)", lambda tx: tx.connection.close()),
    "connection.invalidate": (r"called invalidate\(\)", lambda tx: tx.connection.invalidate()),
    "connection.detach": (r"called detach\(\)", lambda tx: tx.connection.detach()),
    "literal rollback": ("ended its transaction", sends("ROLLBACK")),
    "pgconn in a pipeline": ("used pgconn while statements", in_pipeline(lambda pgconn: pgconn.exec_(b"ROLLBACK"))),
    "pgconn send in one": ("used pgconn while statements", in_pipeline(lambda pgconn: pgconn.send_query(b"SELECT 1"))),
}


@pytest.mark.parametrize("how", ENDS)
def test_ending_the_transaction_is_refused(handler_group: HandlerGroup, how: str) -> None:
    """I1: nothing reaches the table, the offset stays, and the error names what to do instead."""
    says, ends = ENDS[how]
    with pytest.raises((HandlerMisuse, psycopg.ProgrammingError), match=says):
        handler_group.run_after_writing(ends)
    handler_group.holds(0, 0)
    handler_group.run(handler_group.write)
    handler_group.holds(3, 3)


@pytest.mark.parametrize(
    ("says", "does"),
    [
        ("ended its transaction", lambda pgconn: pgconn.exec_(b"ROLLBACK")),
        ("left a command unfinished", lambda pgconn: pgconn.send_query(b"SELECT 1")),
        ("left a command unfinished", lambda pgconn: pgconn.enter_pipeline_mode()),
    ],
    ids=["rollback", "send", "pipeline"],
)
def test_calls_of_pgconn_come_to_a_clear_end(
    handler_group: HandlerGroup, says: str, does: Callable[[Any], object]
) -> None:
    """I1: what is sent by libpq's own calls is found when the handler has returned."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        handler_group.write(tx, batch)
        does(driver(tx).pgconn)

    with pytest.raises(HandlerMisuse, match=says):
        handler_group.run(handle)
    handler_group.holds(0, 0)


def test_a_connection_that_pgconn_closed_is_tried_again(handler_group: HandlerGroup) -> None:
    """I1: like one that was lost: nothing is written, and nothing is blamed."""
    calls: list[int] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        calls.append(len(batch))
        handler_group.write(tx, batch)
        if len(calls) == 1:
            driver(tx).pgconn.finish()

    assert handler_group.run(handle).records == 3
    assert calls == [3, 3]
    handler_group.holds(3, 3)


@pytest.mark.parametrize("isolating", [False, True])
def test_a_refused_commit_cannot_be_swallowed(handler_group: HandlerGroup, isolating: bool) -> None:
    """I1: the handler that catches the refusal, and continues, has committed nothing."""

    def swallow(tx: Connection, batch: Batch[Any, Any]) -> None:
        if isolating and len(batch) == 3:
            raise Poison("the first", *[r for r in batch if r.offset == 0])
        handler_group.write(tx, batch)
        with pytest.raises(HandlerMisuse):
            tx.get_transaction().commit()  # type: ignore[union-attr]

    with pytest.raises(HandlerMisuse, match="ended its transaction"):
        handler_group.run(swallow, on_poison="dead_letter")
    handler_group.holds(0, 0)


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
def test_a_commit_by_the_handler_stops_the_work(
    handler_group: HandlerGroup, commits: Callable[[Connection], None]
) -> None:
    """I1: what the handler committed by itself cannot be taken back: stop, say so, and never do it again."""
    calls: list[int] = []

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        calls.append(len(batch))
        handler_group.write(tx, batch)
        commits(tx)

    with pytest.raises(HandlerMisuse, match="half done"):
        handler_group.run(handle)
    assert calls == [3]
    handler_group.holds(3, 0)


def test_a_swallowed_database_error_is_heard(handler_group: HandlerGroup) -> None:
    """I1: the transaction is broken; to continue as if nothing had happened would lose the rows."""

    def swallow(tx: Connection) -> None:
        with pytest.raises(DBAPIError):
            tx.execute(text("SELECT 1 / 0"))

    with pytest.raises(HandlerMisuse, match="caught a database error and continued"):
        handler_group.run_after_writing(swallow)
    handler_group.holds(0, 0)


def test_a_savepoint_may_fail(handler_group: HandlerGroup) -> None:
    """I1: the part that failed is gone, the rest is committed with the offset."""

    def try_it(tx: Connection) -> None:
        with pytest.raises(DBAPIError), tx.begin_nested():
            tx.execute(text("SELECT 1 / 0"))

    assert handler_group.run_after_writing(try_it).records == 3
    handler_group.holds(3, 3)


def test_an_exception_of_the_handler_takes_everything_back(handler_group: HandlerGroup) -> None:
    """I1: it passes unwrapped, and the record will be tried again."""

    def fail(tx: Connection) -> None:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        handler_group.run_after_writing(fail)
    handler_group.holds(0, 0)


def test_misuse_leaves_no_open_transaction_in_the_pool(handler_group: HandlerGroup, seekpoint_engine: Engine) -> None:
    """I1: the next user of the pool does not find itself inside our transaction, nor do its rows vanish."""
    with pytest.raises(HandlerMisuse):
        handler_group.run_after_writing(lambda tx: tx.rollback())
    with seekpoint_engine.connect() as tx:
        raw_connection: Any = tx.connection.driver_connection
        assert raw_connection.info.transaction_status.name == "IDLE"
    query = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND application_name LIKE :n"
    assert scalar(seekpoint_engine, query, n=f"seekpoint % {handler_group.group}") == 0


class Base(DeclarativeBase):
    pass


class Applied(Base):
    __tablename__ = "applied"
    __table_args__ = ({"schema": DEFAULT_SCHEMA},)
    record: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    partition: Mapped[int] = mapped_column(Integer)
    by: Mapped[str] = mapped_column(Text)


@pytest.mark.parametrize("fails", [False, True])
def test_the_orm_joins_the_transaction(handler_group: HandlerGroup, fails: bool) -> None:
    """I1: a Session of the ORM commits into our transaction, and not through it: an error after it leaves nothing."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        joined = tx.execution_options(**in_schema(handler_group.schema))
        with Session(joined, join_transaction_mode="create_savepoint") as session:
            session.add_all(Applied(record=r.offset, partition=r.partition, by="orm") for r in batch)
            session.commit()
            assert handler_group.rows() == []  # committed to the savepoint: no other session sees it
            session.add(Applied(record=0, partition=0, by="gone"))
            session.rollback()
        if fails:
            raise ArithmeticError("after")

    if fails:
        with pytest.raises(ArithmeticError):
            handler_group.run(handle)
        handler_group.holds(0, 0)
    else:
        assert handler_group.run(handle).records == 3
        handler_group.holds(3, 3)


def test_options_that_a_handler_sets_do_not_outlive_its_batch(handler_group: HandlerGroup) -> None:
    """I1: the next transaction of the worker is READ COMMITTED, and its ledger the ledger, whatever came before."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execution_options(**in_schema("nowhere"))
        handler_group.write(tx, batch)

    assert handler_group.run(handle, 2).records == 2
    assert handler_group.run(handle, 3).records == 1
    handler_group.holds(3, 3)


def test_a_constraint_that_is_checked_at_commit_is_one_records_fault(handler_group: HandlerGroup) -> None:
    """I1: COMMIT itself may be refused: then the record is searched for, and rows and offset end before it."""
    with handler_group.engine.begin() as tx:
        table = f"{handler_group.schema}.applied"
        tx.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT once UNIQUE (by) DEFERRABLE INITIALLY DEFERRED"))
        tx.execute(text(f"INSERT INTO {table} VALUES (0, 99, 'v1')"))
    done = handler_group.run(handler_group.write)
    assert "UniqueViolation" in str(done.stopped[Partition("topic", 0)])
    assert (handler_group.rows(), handler_group.position()) == ([0, 99], 1)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda engine: engine.execution_options(isolation_level="AUTOCOMMIT"),
        lambda engine: create_engine(engine.url, isolation_level="AUTOCOMMIT"),
        lambda engine: create_engine(engine.url, execution_options={"isolation_level": "AUTOCOMMIT"}),
    ],
    ids=["option", "argument", "option of the argument"],
)
def test_an_engine_that_commits_by_itself_is_refused(
    handler_group: HandlerGroup, wrap: Callable[[Engine], Engine]
) -> None:
    """I1: AUTOCOMMIT would make rows and offset two transactions; said before anything is done."""
    handler_group.engine = wrap(handler_group.engine)
    with pytest.raises(ConfigError, match="the engine is in AUTOCOMMIT mode"):
        handler_group.run(handler_group.write)


@pytest.mark.parametrize("how", ["options", "driver"])
def test_a_connection_that_commits_by_itself_is_refused(
    handler_group: HandlerGroup, new_engine: NewEngine, how: str
) -> None:
    """I1: even if users own their loop, and the engine says nothing of it."""
    options = {"connect_args": {"autocommit": True}} if how == "driver" else {}
    engine = new_engine(handler_group.engine.url, **options)
    ledger = GroupLedger(engine, handler_group.group, schema=handler_group.schema)
    with engine.connect() as tx:
        if how == "options":
            tx.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigError, match="the connection is in AUTOCOMMIT mode"):
            ledger.hold(tx, [])
        with pytest.raises(ConfigError, match="the connection is in AUTOCOMMIT mode"):
            ledger.advance(tx, [])


@pytest.mark.parametrize("isolating", [False, True])
def test_an_exit_in_a_handler_is_said(
    handler_group: HandlerGroup, isolating: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Python ends a process for SystemExit without a word: the log says who asked for it, and that nothing is lost."""

    def leave(tx: Connection, batch: Batch[Any, Any]) -> None:
        if isolating and len(batch) == 3:
            raise Poison("one of them")
        handler_group.write(tx, batch)
        sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        handler_group.run(leave, on_poison="dead_letter")
    assert ended.value.code == 3
    (line,) = [line for line in caplog.records if line.name == "seekpoint.worker.unit_of_work"]
    assert line.levelno == logging.ERROR
    message = line.getMessage()
    for words in ("SystemExit(3)", "in leave", "topic/0 [0, 3)", "nothing of this batch was written", "Worker.stop()"):
        assert words in message
    handler_group.holds(0, 0)


def test_an_error_of_the_client_after_commit_is_not_the_batchs(
    handler_group: HandlerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition ends at a poison record, and the client cannot stop reading it: the records before are written."""

    def write(tx: Connection, batch: Batch[Any, Any]) -> None:
        if b"v2" in [r.value for r in batch]:
            raise Poison("no")
        handler_group.write(tx, batch)

    def stop(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(kit.FixedClaims, "stop_or_reclaim", stop)
    with pytest.raises(KafkaException) as raised:
        handler_group.run(write)
    assert not getattr(raised.value, "__notes__", []), "it does not say that nothing was written"
    handler_group.holds(2, 2)
