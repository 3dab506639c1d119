"""The connection for async handlers: its statements are awaited, and other tasks run until Postgres answers.

SQLAlchemy runs a synchronous call in a greenlet, which can await (``sqlalchemy.util.concurrency``), and psycopg can
wait with or without an event loop. So the worker's one connection serves both kinds of handlers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial, wraps
from typing import Any, NoReturn, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait, wait_async
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import AsyncAdaptedLock, await_only

from seekpoint.errors import HandlerMisuse
from seekpoint.postgres.connection import CANCEL_AGAIN, HandlerConnection
from seekpoint.postgres.sqlstates import driver_error
from seekpoint.postgres.task_savepoints import TaskSavepoints

Waits = Callable[..., Any]
"""Calls its first argument, a function that waits for the server's answer, with the other arguments."""

_ABORTED = (
    "a statement was cancelled (by asyncio.timeout, or with its task), and the transaction is aborted: let the error "
    "out, or put the timeout around `async with tx.begin_nested():`"
)
CANCEL = 5.0  # seconds to ask the server to end the statement of a cancelled task, as in psycopg


def engine_of_awaited() -> AsyncEngine:
    """The engine that an AsyncConnection requires; to connect with it raises HandlerMisuse."""
    return create_async_engine("postgresql+psycopg://", async_creator=_refuse)


async def _refuse() -> NoReturn:
    raise HandlerMisuse(
        "the handler opened another connection from tx.engine: rows written there would not be committed with the "
        "offset. Use tx itself, or your own engine"
    )


@contextmanager
def awaited(tx: HandlerConnection, engine: AsyncEngine, waits: Waits) -> Iterator[AsyncConnection]:
    """The connection as an AsyncConnection; awaits its statements one after another, each within ``waits``.

    A task's statement waits until the previous one is answered. A statement without ``await`` (by
    ``tx.sync_connection``) raises SQLAlchemy's MissingGreenlet. If a task is cancelled in the middle of a statement,
    the transaction is aborted, as by an error: it can be rolled back to a savepoint, unless other tasks have used the
    connection since (HandlerMisuse).
    """
    driver: Any = tx.driver  # within the block, this connection waits and locks in another way
    its_lock, its_wait = driver.lock, vars(driver).get("wait")
    was_cancelled, savepoints = asyncio.Event(), TaskSavepoints()
    driver.lock, driver.wait = AsyncAdaptedLock(), partial(waits, _wait, driver, was_cancelled, savepoints)
    driver.cursor_factory = _cursors(driver.cursor_factory)  # HandlerConnection.lent() restores the class
    connection = _LentConnection(engine, tx)
    try:
        with savepoints.watched(tx):
            yield connection
        connection.require_awaited()
        if was_cancelled.is_set() and driver.info.transaction_status == TransactionStatus.INERROR:
            raise TimeoutError(_ABORTED)
    except DBAPIError as error:
        if was_cancelled.is_set() and isinstance(driver_error(error), psycopg.errors.InFailedSqlTransaction):
            raise TimeoutError(_ABORTED) from error
        raise
    finally:
        connection.forget_calls()
        connection.sync_connection = None  # a later use would write in the next batch's transaction
        driver.lock = its_lock
        if its_wait is None:
            del driver.wait  # restores the class's method
        else:
            driver.wait = its_wait


def _wait(
    driver: psycopg.Connection[Any],
    was_cancelled: asyncio.Event,
    savepoints: TaskSavepoints,
    waits: Generator[Wait, Ready | int, Any],
    **options: Any,
) -> Any:
    """As ``driver.wait``, for a call in one of SQLAlchemy's greenlets."""
    savepoints.used()
    return await_only(_answer(driver, was_cancelled, waits, **options))


async def _answer(
    driver: psycopg.Connection[Any],
    was_cancelled: asyncio.Event,
    waits: Generator[Wait, Ready | int, Any],
    **options: Any,
) -> Any:
    # Not in psycopg's wait, which might let another task cancel this one: nothing would then close the statement's
    # pipeline if it was open.
    try:
        first = next(waits)
    except StopIteration as ended:
        return ended.value
    rest = _continued(first, waits)
    try:
        return await wait_async(rest, driver.fileno(), **options)
    except asyncio.CancelledError:
        was_cancelled.set()
        await _end_statement(driver, rest, **options)
        raise


def _continued(wait: Wait, waits: Generator[Wait, Ready | int, Any]) -> Generator[Wait, Ready | int, Any]:
    """``waits``, continued after its first item ``wait``."""
    while True:
        try:
            wait = waits.send((yield wait))
        except StopIteration as ended:
            return ended.value


async def _end_statement(
    driver: psycopg.Connection[Any], waits: Generator[Wait, Ready | int, Any], **options: Any
) -> None:
    """Cancel the statement at the server and read its answer; the transaction is aborted even if it had succeeded."""
    if driver.info.transaction_status == TransactionStatus.ACTIVE:
        try:
            async with asyncio.timeout(CANCEL):
                await _cancel_until_answered(driver, waits, **options)
        except psycopg.Error:
            pass  # the statement was cancelled, or had failed
        except (TimeoutError, asyncio.CancelledError):
            driver.close()  # a late answer would be read as the next statement's
    # The statement succeeded, but its task does not know.
    if driver.info.transaction_status == TransactionStatus.INTRANS:
        # Aborts the transaction: there is no such savepoint.
        driver.pgconn.exec_(b"ROLLBACK TO SAVEPOINT cancelled_with_its_task")


async def _cancel_until_answered(
    driver: psycopg.Connection[Any], waits: Generator[Wait, Ready | int, Any], **options: Any
) -> None:
    while True:
        driver.cancel_safe(timeout=CANCEL)
        with suppress(TimeoutError):  # a request that arrived before the statement had no effect
            async with asyncio.timeout(CANCEL_AGAIN):
                await wait_async(waits, driver.fileno(), **options)
            return


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _kept(method: _Method) -> _Method:
    """The method; its coroutine is appended to ``calls``."""

    @wraps(method)
    def call(connection: _LentConnection, *arguments: Any, **options: Any) -> Any:
        coroutine = method(connection, *arguments, **options)
        connection.calls.append(coroutine)
        return coroutine

    return cast("_Method", call)


class _LentConnection(AsyncConnection):
    """Keeps the coroutines of its statements, to find one that the handler has not awaited: it never ran."""

    def __init__(self, engine: AsyncEngine, tx: HandlerConnection) -> None:
        super().__init__(engine, tx)
        self.calls: list[Any] = []  # coroutines

    execute = _kept(AsyncConnection.execute)
    scalar = _kept(AsyncConnection.scalar)  # type: ignore[assignment, arg-type]  # it is overloaded
    scalars = _kept(AsyncConnection.scalars)
    exec_driver_sql = _kept(AsyncConnection.exec_driver_sql)
    run_sync = _kept(AsyncConnection.run_sync)

    def require_awaited(self) -> None:
        """Raise HandlerMisuse if a statement was not awaited; a task that was cancelled has closed its coroutine."""
        for call in self._not_run():
            name = f"tx.{call.__name__}(…)"
            raise HandlerMisuse(f"the handler called {name} without await, so that it did not run: await {name}")

    def forget_calls(self) -> None:
        """Close the coroutines that have not run, without Python's warning that they were never awaited."""
        for call in self._not_run():
            call.close()
        self.calls.clear()

    def _not_run(self) -> list[Any]:
        return [call for call in self.calls if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]


class _AllHere:
    """Mixin for cursors that have all rows once a statement is answered."""

    async def _async_soft_close(self) -> None:
        """SQLAlchemy's asyncio extension calls this on its adapters' cursors; there is nothing to close."""


@lru_cache(maxsize=8)
def _cursors(factory: type[psycopg.Cursor[Any]]) -> type[psycopg.Cursor[Any]]:
    return type(factory.__name__, (_AllHere, factory), {})
