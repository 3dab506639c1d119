"""Async handlers: the worker's own transaction is awaited, in turns, and the loop runs until Postgres answers."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, Connection, Engine, Text, text
from sqlalchemy.exc import DBAPIError, MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.ext.asyncio.exc import AsyncContextNotStarted
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from seekpoint import Batch, Pipeline, Poison, Retry
from seekpoint import Text as Utf8
from seekpoint.errors import ConfigError, HandlerMisuse, PoisonStop
from seekpoint.events import WaitingForRetry
from seekpoint.records import Cause
from seekpoint.testing import Processed
from seekpoint.worker import async_handler
from support.ledger_worker import backend, scalar, wait_until_blocked
from support.service import driver
from support.sink_tables import SinkTables, orders, stopped_at
from support.waiting import until

Tx = AsyncConnection
Records = Batch[str, Any]
Handle = Callable[..., Awaitable[Any]]


ANSWERED = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND state <> 'active' AND query LIKE 'INSERT%'"


class ProviderAway(Exception):  # noqa: N818 -- as in the guide
    """Another service did not answer."""


class Table:
    """A table ``t (id, v)`` in a schema of its own, and async handlers over it."""

    def __init__(self, sink_tables: SinkTables, group: str) -> None:
        self.sink_tables, self.group = sink_tables, group
        sink_tables.create("id bigint PRIMARY KEY, v text CHECK (v <> 'bad'), place bigserial")
        self.insert = text(f'INSERT INTO "{sink_tables.schema}".t VALUES (:id, :v)')

    def run(self, handle: Handle, *values: str, **options: Any) -> Processed:
        """Records with these values, through the real unit of work."""
        pipeline = Pipeline(self.group, topics="orders", value=Utf8(), handle=handle, **options)
        return self.sink_tables.process(pipeline, *orders(*map(str.encode, values)))

    async def each(self, tx: Tx, batch: Records) -> None:
        """A row per record, by a statement per record."""
        for record in batch:
            await tx.execute(self.insert, {"id": record.offset, "v": record.value})

    async def together(self, tx: Tx, batch: Records) -> None:
        """A row per record, by a task per record."""
        async with asyncio.TaskGroup() as tasks:
            for record in batch:
                tasks.create_task(tx.execute(self.insert, {"id": record.offset, "v": record.value}))

    def rows(self) -> list[tuple[Any, ...]]:
        return self.sink_tables.rows("id", "v")


@pytest.fixture
def table(seekpoint_engine: Engine, seekpoint_schema: str, group: str) -> Table:
    return Table(SinkTables(seekpoint_engine, seekpoint_schema), group)


def test_statements_are_awaited_in_the_transaction_of_the_offset(table: Table) -> None:
    """I1: one of a later record that fails takes those before it back, and they are applied without it."""
    done = table.run(table.each, "a", "b", "bad", "c", on_poison="dead_letter")
    assert table.rows() == [(0, "a"), (1, "b"), (3, "c")]
    [dead_letter] = done.dead_letters
    assert (dead_letter.offset, dead_letter.failure.cause) == (2, Cause.DATABASE)


def test_tasks_write_by_turns_in_the_order_of_their_statements(table: Table) -> None:
    values = [f"v{n}" for n in range(50)]
    table.run(table.together, *values)
    assert table.sink_tables.rows("place", "v") == [(n + 1, value) for n, value in enumerate(values)]


def test_a_statement_that_fails_in_a_task_is_its_own_records_fault(table: Table) -> None:
    stop = stopped_at(table.run(table.together, "a", "bad", "c"), 0, 1)
    assert isinstance(stop, PoisonStop)
    assert table.rows() == [(0, "a")]


def test_a_task_that_is_cancelled_leaves_no_pipeline_open(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rows of one statement are sent in a pipeline, and psycopg lets other tasks run once it is open."""
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", 0.0)

    async def handle(tx: Tx, batch: Records) -> None:
        rows = [{"id": record.offset, "v": record.value} for record in batch]
        async with asyncio.TaskGroup() as tasks:
            for part in filter(None, (rows[n::4] for n in range(4))):
                tasks.create_task(tx.execute(table.insert, part))

    values = ["bad" if n in {10, 35} else f"v{n}" for n in range(40)]
    table.run(handle, *values, on_poison="dead_letter")
    assert table.rows() == [(n, value) for n, value in enumerate(values) if value != "bad"]


def test_other_tasks_run_until_postgres_answers(table: Table) -> None:
    """One task waits for a lock, which another task lets go once Postgres says that the first one waits."""
    seen: list[str] = []

    async def handle(tx: Tx, batch: Records) -> None:
        async def let_go() -> None:
            await asyncio.to_thread(wait_until_blocked, table.sink_tables.engine, backend(holder))
            seen.append("another task ran")
            await asyncio.to_thread(holder.rollback)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(let_go())
            await table.each(tx, batch)
            seen.append("the row was written")

    with table.sink_tables.engine.connect() as holder:
        holder.execute(table.insert, {"id": 0, "v": "of another session"})
        table.run(handle, "a")
    assert table.rows() == [(0, "a")]
    assert seen == ["another task ran", "the row was written"]


def test_savepoints_and_sessions_of_the_orm(table: Table) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "t"
        __table_args__ = {"schema": table.sink_tables.schema}  # noqa: RUF012 -- as SQLAlchemy takes it
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
        v: Mapped[str] = mapped_column(Text)

    async def handle(tx: Tx, batch: Records) -> None:
        for record in batch:
            async with AsyncSession(bind=tx, join_transaction_mode="create_savepoint") as session:
                session.add(Order(id=record.offset, v=record.value))
                await session.commit()
        try:
            async with tx.begin_nested():
                await tx.execute(table.insert, {"id": 9, "v": "bad"})
        except DBAPIError:
            await tx.execute(table.insert, {"id": 10, "v": "after a savepoint"})

    table.run(handle, "a", "b")
    assert table.rows() == [(0, "a"), (1, "b"), (10, "after a savepoint")]


@pytest.mark.parametrize("other", ["before the rollback", "while it waits"])
def test_i3_a_savepoint_is_not_rolled_back_over_another_tasks_rows(table: Table, other: str) -> None:
    """Their records' offsets would be committed without them; it is refused although the handler catches it."""

    async def write(tx: Tx, record: Any) -> None:
        await tx.execute(table.insert, {"id": record.offset, "v": record.value})

    async def undo(tx: Tx, begun: asyncio.Event, written: asyncio.Event) -> None:
        with suppress(Exception):
            async with tx.begin_nested():
                begun.set()
                if other == "before the rollback":
                    await written.wait()
                raise ValueError("of the task's own")

    async def handle(tx: Tx, batch: Records) -> None:
        begun, written = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(undo(tx, begun, written))
            if other == "while it waits":
                tasks.create_task(tx.execute(text("SELECT pg_sleep(0.05)")))
            await begun.wait()
            await asyncio.gather(*(write(tx, record) for record in batch))
            written.set()

    with pytest.raises(HandlerMisuse, match="rolled a savepoint back while another task used the connection") as raised:
        table.run(handle, "a", "b")
    assert raised.value.__cause__ is not raised.value
    assert table.rows() == []


def test_tasks_that_are_started_within_a_savepoint_are_rolled_back_with_it(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        with suppress(ValueError):
            async with tx.begin_nested():
                await table.together(tx, batch)
                raise ValueError("none of them")
        async with tx.begin_nested(), asyncio.TaskGroup() as tasks:
            tasks.create_task(table.each(tx, batch))

    table.run(handle, "a", "b")
    assert table.rows() == [(0, "a"), (1, "b")]


async def by_group(tasks: list[Awaitable[Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(asyncio.wait_for(task, None))


async def by_gather(tasks: list[Awaitable[Any]]) -> None:
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("run_all", [by_group, by_gather])
@pytest.mark.parametrize(("on", "waits"), [(ProviderAway, True), (Exception, True), (TimeoutError, False)])
def test_an_error_of_a_task_is_retried_and_reported_as_itself(
    table: Table, run_all: Callable[[list[Awaitable[Any]]], Awaitable[None]], on: type[Exception], waits: bool
) -> None:
    """It was poison at once: ``Retry.on`` names the error, and asyncio.TaskGroup raises an ExceptionGroup."""
    done = table.run(asking(table, run_all), "a", "away", "c", **retried_by(on))
    assert table.rows() == [(0, "a"), (2, "c")]
    assert len(done.waiting) == waits
    reported: list[Any] = [*done.waiting, *done.dead_letters]
    assert [event.failure.error for event in reported] == ["ProviderAway: no answer"]


def test_a_group_that_is_named_is_retried_as_a_group(table: Table) -> None:
    done = table.run(asking(table, by_group), "away", **retried_by(ExceptionGroup))
    (waiting,) = done.waiting
    assert isinstance(waiting, WaitingForRetry)
    assert waiting.failure.error.startswith("ExceptionGroup: ")


def asking(table: Table, run_all: Callable[[list[Awaitable[Any]]], Awaitable[None]]) -> Handle:
    """A handler that asks a service for each record, in tasks."""

    async def ask(record: Any) -> None:
        if record.value == "away":
            raise ProviderAway("no answer")

    async def handle(tx: Tx, batch: Records) -> None:
        await run_all([ask(record) for record in batch])
        await table.each(tx, batch)

    return handle


def retried_by(error: type[Exception]) -> dict[str, Any]:
    return {"retry": Retry(attempts=3, on=(error,)), "retry_order": "none", "on_poison": "dead_letter"}


def test_several_errors_of_tasks_count_as_the_first_that_is_not_poison(table: Table) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def handle(tx: Tx, batch: Records) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(Poison("odd", *batch)))
            tasks.create_task(fail(KeyError("price")))
            tasks.create_task(fail(ProviderAway("no answer")))

    done = table.run(handle, "a", on_poison="dead_letter", retry=Retry(attempts=1))
    (dead_letter,) = done.dead_letters
    assert dead_letter.failure.error.startswith("KeyError: 'price' (the first of 3 errors: unhandled errors in a Task")


def test_a_misuse_in_a_task_group_ends_the_worker(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tx.commit())

    with pytest.raises(HandlerMisuse, match=r"called commit\(\) on its connection"):
        table.run(handle, "a", on_poison="dead_letter")


@pytest.mark.parametrize("run_all", [by_group, by_gather])
@pytest.mark.parametrize(("bad", "cause"), [("bad", Cause.DATABASE), ("odd", Cause.POISON)])
def test_a_task_that_fails_cancels_the_others_statements_and_they_are_applied_without_it(
    table: Table, run_all: Callable[[list[Awaitable[Any]]], Awaitable[None]], bad: str, cause: Cause
) -> None:
    """I1: the connection survives a statement that is cancelled, so the parts of the batch can be tried."""

    async def write(tx: Tx, record: Any) -> None:
        await tx.execute(table.insert, {"id": record.offset, "v": record.value})
        if record.value == "odd":
            raise Poison("odd")
        await tx.execute(text("SELECT pg_sleep(0.01)"))

    async def handle(tx: Tx, batch: Records) -> None:
        await run_all([write(tx, record) for record in batch])

    done = table.run(handle, "a", bad, "c", "d", bad, "f", on_poison="dead_letter")
    causes = [(dead_letter.offset, dead_letter.failure.cause) for dead_letter in done.dead_letters]
    assert causes == [(1, cause), (4, cause)]
    assert table.rows() == [(0, "a"), (2, "c"), (3, "d"), (5, "f")]


def test_a_timeout_ends_the_statement_at_the_server_and_nothing_is_written(table: Table) -> None:
    """I1: the batch is applied another time."""

    async def handle(tx: Tx, batch: Records) -> None:
        await table.each(tx, batch)
        async with asyncio.timeout(0.05):
            await tx.execute(text("SELECT pg_sleep(600)"))

    with pytest.raises(TimeoutError):
        table.run(handle, "a")
    assert table.rows() == []


@pytest.mark.parametrize("seen", ["while the loop waits", "within a call of the driver's"])
def test_a_second_signal_ends_the_statement_at_the_server(table: Table, seen: str) -> None:
    """Else its session keeps the partitions' rows locked until it is done, and the next worker waits."""
    pids: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt  # as the handler of a signal does

    def call_the_driver(tx: Connection) -> None:
        driver(tx).pgconn.send_query(b"SELECT pg_sleep(600)")
        try:
            interrupt()
        except KeyboardInterrupt as error:
            tx.invalidate(error)  # as SQLAlchemy does
            raise

    async def handle(tx: Tx, batch: Records) -> None:
        pids.append(await tx.run_sync(backend))
        if seen == "while the loop waits":
            asyncio.get_running_loop().call_later(0.05, interrupt)
            await tx.execute(text("SELECT pg_sleep(600)"))
        await tx.run_sync(call_the_driver)

    with pytest.raises(KeyboardInterrupt):
        table.run(handle, "a")
    is_there = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"
    until(lambda: not scalar(table.sink_tables.engine, is_there, pid=pids[-1]), "the end of the session")


@pytest.mark.parametrize("ends", ["a timeout", "a second signal"])
def test_the_server_is_asked_again_where_it_was_asked_before_it_saw_the_statement(
    table: Table, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores a request while it runs none; the session is stopped until the first one has reached it."""
    pids: list[int] = []
    asked: list[str] = []
    ask = psycopg.Connection.cancel_safe

    def ask_first(driver: Any, **options: Any) -> None:
        ask(driver, **options)
        asked.append("the server")
        os.kill(pids[-1], signal.SIGCONT)

    def interrupted(tx: Connection) -> None:
        driver(tx).pgconn.send_query(b"SELECT pg_sleep(20)")
        tx.invalidate(KeyboardInterrupt())  # as SQLAlchemy does
        raise KeyboardInterrupt

    async def handle(tx: Tx, batch: Records) -> None:
        pids.append(await tx.run_sync(backend))
        os.kill(pids[-1], signal.SIGSTOP)
        if ends == "a second signal":
            await tx.run_sync(interrupted)
        async with asyncio.timeout(0):
            await tx.execute(text("SELECT pg_sleep(20)"))

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", ask_first)
    with pytest.raises(TimeoutError if ends == "a timeout" else KeyboardInterrupt):
        table.run(handle, "a")
    assert len(asked) > 1
    is_there = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid AND query LIKE '%pg_sleep%' AND state = 'active'"
    until(lambda: not scalar(table.sink_tables.engine, is_there, pid=pids[-1]), "the end of the statement")


def test_a_timeout_is_rolled_back_to_a_savepoint(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2), tx.begin_nested():
                await tx.execute(table.insert, {"id": 9, "v": "taken back"})
                await tx.execute(text("SELECT pg_sleep(600)"))
        await table.each(tx, batch)

    table.run(handle, "a")
    assert table.rows() == [(0, "a")]


@pytest.mark.parametrize("continues", [True, False])
def test_a_timeout_that_is_caught_without_a_savepoint_is_raised_again(table: Table, continues: bool) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await tx.execute(text("SELECT pg_sleep(600)"))
        if continues:
            await table.each(tx, batch)

    with pytest.raises(TimeoutError, match=r"put the timeout around `async with tx\.begin_nested\(\):`"):
        table.run(handle, "a")
    assert table.rows() == []


def test_a_task_that_is_cancelled_before_its_statement_is_sent_changes_nothing(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        first = asyncio.create_task(tx.execute(text("SELECT pg_sleep(0.1)")))
        second = asyncio.create_task(tx.execute(table.insert, {"id": 9, "v": "never sent"}))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        await table.each(tx, batch)

    table.run(handle, "a")
    assert table.rows() == [(0, "a")]


def test_a_statement_that_was_done_when_it_was_cancelled_does_not_count(table: Table) -> None:
    """I1: its task believes that it was not; what it would write instead would be written in addition."""

    async def handle(tx: Tx, batch: Records) -> None:
        pid = await tx.run_sync(backend)
        task = asyncio.create_task(table.each(tx, batch))
        await asyncio.sleep(0)  # it is sent
        while not scalar(table.sink_tables.engine, ANSWERED, pid=pid):  # the loop does not run: the answer is not read
            pass
        task.cancel()
        await asyncio.wait([task])
        await table.each(tx, batch)

    with pytest.raises(TimeoutError, match="a statement was cancelled"):
        table.run(handle, "a")
    assert table.rows() == []


def test_a_connection_whose_loss_is_hidden_is_no_misuse(table: Table) -> None:
    """I1: the batch is applied again, on another connection."""
    calls: list[int] = []

    async def handle(tx: Tx, batch: Records) -> None:
        calls.append(len(batch))
        await table.each(tx, batch)
        if len(calls) == 1:
            with suppress(DBAPIError):
                await tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    table.run(handle, "a", "b")
    assert calls[0] == 2
    assert table.rows() == [(0, "a"), (1, "b")]


def test_rows_are_streamed(table: Table) -> None:
    read: list[int] = []

    async def handle(tx: Tx, batch: Records) -> None:
        async with tx.stream(text("SELECT generate_series(1, 2500)")) as rows:
            read.extend([row[0] async for row in rows])
        read.extend((await tx.execute(text("SELECT generate_series(1, 3)"))).scalars())

    table.run(handle, "a")
    assert read == [*range(1, 2501), 1, 2, 3]


def test_a_group_of_poison_is_each_records_own(table: Table) -> None:
    async def check(record: Any) -> None:
        if record.value.startswith("odd"):
            raise Poison("odd", record)

    async def handle(tx: Tx, batch: Records) -> None:
        done = await asyncio.gather(*map(check, batch), return_exceptions=True)
        if poison := [error for error in done if isinstance(error, Poison)]:
            raise ExceptionGroup("odd ones", poison)
        await table.each(tx, batch)

    done = table.run(handle, "a", "odd1", "b", "odd2", on_poison="dead_letter")
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [1, 3]
    assert table.rows() == [(0, "a"), (2, "b")]


# -- what ends or bypasses the transaction --------------------------------------------------------------------------


async def commits(tx: Tx, batch: Records) -> None:
    await tx.commit()


async def closes(tx: Tx, batch: Records) -> None:
    await tx.close()


async def connects_anew(tx: Tx, batch: Records) -> None:
    async with tx.engine.connect():
        pass


async def ends_by_sql(tx: Tx, batch: Records) -> None:
    await tx.exec_driver_sql("COMMIT")


async def leaves_a_task(tx: Tx, batch: Records) -> None:
    asyncio.create_task(asyncio.Event().wait(), name="left")  # noqa: RUF006 -- what is tested


async def forgets_to_await(tx: Tx, batch: Records) -> None:
    tx.execute(text("SELECT 1"))  # type: ignore[unused-coroutine]


async def awaits_only_the_second(tx: Tx, batch: Records) -> None:
    tx.run_sync(lambda tx: tx.execute(text("SELECT 1")))  # type: ignore[unused-coroutine]
    await tx.scalar(text("SELECT 2"))


async def returns_a_value(tx: Tx, batch: Records) -> int:
    return len(batch)


OTHER = asyncio.new_event_loop()
OF_OTHER = OTHER.create_future()


async def uses_another_loop(tx: Tx, batch: Records) -> None:
    await OF_OTHER


async def runs_a_loop(tx: Tx, batch: Records) -> None:
    loop = asyncio.get_running_loop()
    loop.run_until_complete(loop.create_future())


async def does_not_await(tx: Tx, batch: Records) -> None:
    assert tx.sync_connection is not None
    tx.sync_connection.execute(text("SELECT 1"))


async def starts_a_task_when_it_is_cancelled(tx: Tx, batch: Records) -> None:
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.create_task(tx.execute(text("SELECT 1")))  # noqa: RUF006 -- what is tested

    asyncio.create_task(waits())  # noqa: RUF006 -- what is tested
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (commits, r"called commit\(\) on its connection"),
        (closes, r"called close\(\) on its connection"),
        (connects_anew, r"opened another connection from tx.engine"),
        (ends_by_sql, r"ended its transaction"),
        (leaves_a_task, r"returned while tasks it had started were running \(Event\.wait\)\. They were cancelled"),
        (forgets_to_await, r"called tx\.execute\(…\) without await, so that it did not run: await tx\.execute"),
        (awaits_only_the_second, r"called tx\.run_sync\(…\) without await"),
        (returns_a_value, r"returned an int, which is never run"),
        (starts_a_task_when_it_is_cancelled, r"it had started were running \(AsyncConnection\.execute, .*waits\)"),
        (runs_a_loop, r"started an event loop inside the worker's \(This event loop is already .*await the coroutine"),
        (does_not_await, r"used the connection without await \(.*pass plain functions to tx\.run_sync\(\)"),
        (uses_another_loop, r"used an object of another event loop .*create clients, locks and queues in resources="),
    ],
)
def test_a_misuse_is_refused_and_nothing_is_written(table: Table, handle: Handle, message: str) -> None:
    async def writes_first(tx: Tx, batch: Records) -> object:
        if handle is not ends_by_sql:
            await table.each(tx, batch)
        return await handle(tx, batch)

    with pytest.raises(HandlerMisuse, match=message):
        table.run(writes_first, "a")
    assert table.rows() == []


def test_a_statement_that_is_not_awaited_is_refused_by_sqlalchemy(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        assert tx.sync_connection is not None
        with pytest.raises(MissingGreenlet):
            tx.sync_connection.execute(text("SELECT 1"))
        await table.each(tx, batch)

    table.run(handle, "a")
    assert table.rows() == [(0, "a")]


def test_the_connection_is_as_it_was_after_the_handler(table: Table) -> None:
    """A sink's statements, and the ledger's, do not wait by the loop of a handler that has returned."""
    waits: list[object] = []

    async def handle(tx: Tx, batch: Records) -> None:
        waits.append(await tx.run_sync(backend))
        await table.each(tx, batch)

    table.run(handle, "a")
    table.run(table.each, "a", "b")
    assert table.rows() == [(0, "a"), (1, "b")]
    assert len(waits) == 1


def test_an_error_of_the_programs_own_that_names_a_loop_is_its_records(table: Table) -> None:
    async def handle(tx: Tx, batch: Records) -> None:
        await table.each(tx, batch)
        if any(record.value == "worn out" for record in batch):
            raise RuntimeError("retry loop exhausted")

    done = table.run(handle, "a", "worn out", "c", on_poison="dead_letter", retry=Retry(attempts=1))
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [1]
    assert table.rows() == [(0, "a"), (2, "c")]


def test_a_connection_that_is_kept_is_refused_in_the_next_batch(table: Table) -> None:
    """I1: what it wrote there would be of another transaction."""
    kept: list[Tx] = []

    async def handle(tx: Tx, batch: Records) -> None:
        kept.append(tx)
        await table.each(kept[0], batch)

    table.run(handle, "a")
    with pytest.raises(AsyncContextNotStarted):
        table.run(handle, "a", "b")
    assert table.rows() == [(0, "a")]


# -- resources ------------------------------------------------------------------------------------------------------


def test_resources_are_entered_before_and_left_after(table: Table) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def clients() -> AsyncIterator[str]:
        async with asyncio.TaskGroup():  # must be left by the task that has entered it
            seen.append(asyncio.get_running_loop())
            yield "client"
            seen.append("left")

    async def handle(tx: Tx, batch: Records, client: str) -> None:
        seen.append((client, asyncio.get_running_loop()))
        await table.each(tx, batch)

    table.run(handle, "a", resources=clients)
    assert seen == [seen[0], ("client", seen[0]), "left"]
    assert seen[0].is_closed()


def test_resources_that_cannot_be_entered_are_no_records_fault(table: Table) -> None:
    called: list[Records] = []

    @asynccontextmanager
    async def clients() -> AsyncIterator[str]:
        if not called:
            raise ConnectionRefusedError("no such service")
        yield "client"

    async def handle(tx: Tx, batch: Records, client: str) -> None:
        called.append(batch)

    with pytest.raises(ConnectionRefusedError):
        table.run(handle, "a", resources=clients, on_poison="dead_letter")
    assert not called


def test_resources_that_are_not_async_are_refused(table: Table) -> None:
    @contextmanager
    def clients() -> Iterator[int]:
        yield 1

    async def handle(tx: Tx, batch: Records, client: int) -> None:
        """Never runs."""

    with pytest.raises(ConfigError, match=r"resources= returned .*, which is no async context manager: .*decorate it"):
        table.run(handle, "a", resources=clients)


def test_resources_that_end_while_the_worker_runs_end_it(table: Table) -> None:
    """No record is blamed for a client that was closed because another task of the resources failed."""

    async def fails() -> None:
        raise ConnectionResetError("the service closed it")

    @asynccontextmanager
    async def clients() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as tasks:
            yield tasks

    async def handle(tx: Tx, batch: Records, tasks: asyncio.TaskGroup) -> None:
        await table.each(tx, batch)
        tasks.create_task(fails())
        await asyncio.sleep(0)
        raise ValueError("so that it is called again")

    with pytest.raises(BaseExceptionGroup) as raised:
        table.run(handle, "a", "b", resources=clients, on_poison="dead_letter")
    assert raised.group_contains(ConnectionResetError)
    assert isinstance(raised.value.__context__, HandlerMisuse)
    assert "resources= ended while the worker ran" in str(raised.value.__context__)
    assert table.rows() == []


def test_tasks_of_the_resources_run_on_after_the_handler(table: Table) -> None:
    """A pool, say, reconnects while the handler waits: that task is not the handler's."""
    seen: list[object] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
        asked, started, stays = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def keeper() -> None:
            await asked.wait()
            seen.append(asyncio.create_task(stays.wait()))
            started.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper())
            yield asked, started
            stays.set()

    async def handle(tx: Tx, batch: Records, events: tuple[asyncio.Event, asyncio.Event]) -> None:
        asked, started = events
        asked.set()
        await started.wait()
        await table.each(tx, batch)

    table.run(handle, "a", resources=pool)
    assert table.rows() == [(0, "a")]
    [task] = seen
    assert isinstance(task, asyncio.Task)
    assert not task.cancelled()


@pytest.mark.parametrize("raises", [False, True])
def test_a_task_that_swallows_its_cancellation_does_not_hold_the_transaction(
    table: Table, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr(async_handler, "CANCEL_TASKS", 0.1)

    async def swallows() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def handle(tx: Tx, batch: Records) -> None:
        asyncio.create_task(swallows())  # noqa: RUF006 -- what is tested
        await table.each(tx, batch)
        if raises:
            raise ValueError("the task would run beside the next attempt")

    message = r"tasks it had started still run 0\.1 s after they were cancelled \(.*swallows\): let CancelledError out"
    with pytest.raises(HandlerMisuse, match=message):
        table.run(handle, "a", on_poison="dead_letter")
    assert table.rows() == []


def test_tasks_are_the_handlers_where_a_resource_sets_a_task_factory(table: Table) -> None:
    created: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        created.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    @asynccontextmanager
    async def sets_it() -> AsyncIterator[None]:
        asyncio.get_running_loop().set_task_factory(factory)
        yield

    async def handle(tx: Tx, batch: Records, _: None) -> None:
        await leaves_a_task(tx, batch)

    with pytest.raises(HandlerMisuse, match=r"tasks it had started were running \(Event\.wait\)"):
        table.run(handle, "a", resources=sets_it)
    assert "Event.wait" in created


# -- declarations ---------------------------------------------------------------------------------------------------


class Callee:
    async def __call__(self, tx: Tx, batch: Records) -> None:
        await tx.execute(text("SELECT 1"))


async def with_an_option(tx: Tx, batch: Records, *, seen: list[int]) -> None:
    seen.append(len(batch))


def test_objects_and_partial_functions_are_awaited_too(table: Table) -> None:
    seen: list[int] = []
    table.run(functools.partial(with_an_option, seen=seen), "a")
    table.run(Callee(), "a", "b")
    assert seen == [1]


def test_the_kit_in_a_running_loop_is_refused(table: Table) -> None:
    async def test() -> None:
        table.run(table.each, "a")

    with pytest.raises(ConfigError, match=r"but this thread already runs one: make this call in another thread"):
        asyncio.run(test())
