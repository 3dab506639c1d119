"""The connection that handlers write with, inside a worker's transaction, which they cannot end."""

from __future__ import annotations

import asyncio
import logging
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, NoReturn, Self
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from sqlalchemy import Connection, Engine, PoolProxiedConnection, Transaction
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import HandlerMisuse
from seekpoint.postgres.round_trip import (
    Query,
    Statement,
    StatementFailed,
    begin_and_run,
    values_of,
    with_values,
)
from seekpoint.postgres.sqlstates import INVALID_SQL_STATEMENT_NAME

CANCEL = 1.0  # seconds to wait for a server that may be down
CANCEL_AGAIN = 0.1  # seconds until the request is repeated: one that arrives before the statement has no effect

Misuse = Callable[[str], NoReturn]
"""Raises HandlerMisuse; its argument is the call that the handler made."""


class Proxy:
    """Wraps the pool's proxy or the driver's connection; ``ways`` replaces, by name, methods that would end it.

    For isinstance() it is an object of the wrapped class.
    """

    def __init__(self, target: Any, ways: Mapping[str, Any]) -> None:
        vars(self).update(ways, _target=target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    __class__ = property(lambda self: type(self._target))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.rollback() if kind is not None else self.commit()
        self.close()


def lent_driver(driver: psycopg.Connection[Any], misuse: Misuse) -> Any:
    """The driver's connection for a handler: ``commit()`` and ``close()`` raise HandlerMisuse."""
    return Proxy(driver, {name: partial(misuse, f"{name}()") for name in ("commit", "close")})


_lent: WeakKeyDictionary[psycopg.Connection[Any], Any] = WeakKeyDictionary()  # the running handler's wrapper


class _OfLent:
    """Mixin for cursors whose ``connection`` is the one that the handler got."""

    @property
    def connection(self) -> Any:
        driver = super().connection  # type: ignore[misc]
        return _lent.get(driver, driver)


class _LentCursor(_OfLent, psycopg.Cursor[Any]):
    """psycopg's cursor, with the handler's connection."""


class _LentServerCursor(_OfLent, psycopg.ServerCursor[Any]):
    """psycopg's server-side cursor, with the handler's connection."""


def lend_cursors(driver: psycopg.Connection[Any]) -> None:
    """Let a handler's cursors refer to its connection, unless the application has set cursor classes."""
    if driver.cursor_factory is psycopg.Cursor:
        driver.cursor_factory = _LentCursor
    if driver.server_cursor_factory is psycopg.ServerCursor:
        driver.server_cursor_factory = _LentServerCursor


def lent_proxy(proxied: PoolProxiedConnection, driver: Any, misuse: Misuse) -> Any:
    """The pool's proxy for a handler: committing, closing, detaching and invalidating it raise HandlerMisuse."""
    ends = ("commit", "close", "detach", "invalidate")
    refused = {name: lambda *_, _name=name, **__: misuse(f"{_name}()") for name in ends}
    return Proxy(proxied, {**refused, "driver_connection": driver, "dbapi_connection": driver})


@contextmanager
def repeated_errors_unlogged() -> Iterator[None]:
    """In the block, keep psycopg from logging this thread's errors that only repeat a raised one.

    When psycopg ends a pipeline after an error, it logs "error ignored terminating" because the server has skipped the
    rest, or the connection is lost. A statement's own error is still logged, because it appears nowhere else.
    """
    logger, thread = logging.getLogger("psycopg"), threading.get_ident()

    def is_logged(record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        is_ending = record.thread == thread and any(isinstance(argument, psycopg.Pipeline) for argument in arguments)
        return not is_ending or not any(map(_is_repeated, arguments))

    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)


def _is_repeated(error: object) -> bool:
    is_lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return is_lost or isinstance(error, psycopg.errors.PipelineAborted)


@contextmanager
def savepoints_ended(tx: Connection) -> Iterator[None]:
    """Release the savepoints that the block leaves open; roll them back on any exception."""
    outer = tx.get_nested_transaction()
    try:
        yield
    except BaseException:
        while (savepoint := tx.get_nested_transaction()) is not None and savepoint is not outer:
            savepoint.rollback()
        raise
    while (savepoint := tx.get_nested_transaction()) is not None and savepoint is not outer:
        savepoint.commit()


def cancel_statement(driver: psycopg.Connection[Any]) -> None:
    """Ask the server to cancel this connection's running statement.

    While a statement runs, the server does not notice a closed connection.

    May be called from any thread. A request that arrives before the statement does nothing. Raises psycopg's error if
    the server cannot be reached.
    """
    if _runs_a_statement(driver):
        driver.cancel_safe(timeout=CANCEL)


def end_statement(driver: psycopg.Connection[Any]) -> None:
    """Repeat :func:`cancel_statement` until the statement is answered, for ``CANCEL`` seconds at most."""
    until, answer = monotonic() + CANCEL, select.poll()
    while _runs_a_statement(driver) and monotonic() < until:
        driver.cancel_safe(timeout=CANCEL)
        answer.register(driver.fileno(), select.POLLIN)
        if answer.poll(1000 * CANCEL_AGAIN):
            return


def _runs_a_statement(driver: psycopg.Connection[Any]) -> bool:
    return not driver.closed and driver.info.transaction_status == TransactionStatus.ACTIVE


@contextmanager
def settings_kept(driver: psycopg.Connection[Any]) -> Iterator[None]:
    """Restore the settings of the driver's connection after the block."""
    names = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold", "prepared_max")
    before = {name: getattr(driver, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(driver, name, value)


class HandlerConnection(Connection):
    """A SQLAlchemy connection inside Seekpoint's transaction.

    Use it like any other; for the ORM, ``Session(tx, join_transaction_mode="create_savepoint")``. Savepoints
    (``tx.begin_nested()``) are yours. Ending the transaction or the connection, also through the transaction, the
    driver's connection or an ORM session, raises HandlerMisuse before anything reaches the server, because rows and
    offset would not be committed together (I1).

    ``was_lent``: a handler has had the connection, so it never returns to the pool; ``was_lent_now``: a handler had it
    in this transaction. ``locked`` are the tables whose column types were read under a lock of the transaction, and so
    do not change; None if user code may release the locks.
    """

    was_lent_now: bool
    locked: set[tuple[str, ...]] | None
    was_lent = False
    _lent: Any = None  # the wrapper of the driver's connection that the running handler has
    _commits: Callable[[], object] | None = None
    _who = "the handler"
    _options: Any  # the execution options when the transaction began

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.begins()
        self._options = None  # options may still be set between here and BEGIN

    def _misuse(self, call: str) -> NoReturn:
        raise HandlerMisuse(
            f"{self._who} called {call} on its connection: the worker commits rows and offset together, after the "
            "handler returns. For a part that may fail, use `with tx.begin_nested():`"
        )

    def commit(self) -> None:
        self._misuse("commit()")

    def rollback(self) -> None:
        self._misuse("rollback()")

    def close(self) -> None:
        self._misuse("close()")

    def detach(self) -> None:
        self._misuse("detach()")

    def invalidate(self, exception: BaseException | None = None) -> None:
        if exception is None:
            self._misuse("invalidate()")
        if isinstance(exception, asyncio.CancelledError) and not self.driver.closed:
            return  # a task was cancelled: its statement was never sent, or its answer was read (`postgres.awaited`)
        with suppress(psycopg.Error):
            end_statement(self.driver)  # a signal may have interrupted the statement
        super().invalidate(exception)  # SQLAlchemy's own call: the connection is lost, or a signal arrived

    @property
    def connection(self) -> Any:
        """As in SQLAlchemy, but a handler cannot commit, close or detach it."""
        if self._commits is not None:  # within commit_by(): SQLAlchemy calls commit() on it
            return Proxy(super().connection, {"commit": self._commits})
        return super().connection if self._lent is None else lent_proxy(super().connection, self._lent, self._misuse)

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """The driver's connection. Raises psycopg.OperationalError, as a statement would, if it was lost."""
        driver = None if self.invalidated else super().connection.driver_connection
        if driver is None:
            raise psycopg.OperationalError("the connection was lost within the transaction")
        assert isinstance(driver, psycopg.Connection)
        return driver

    def commit_by(self, transaction: Transaction, commits: Callable[[], object]) -> None:
        """Commit the transaction with ``commits`` instead of the driver's ``commit()``."""
        self._commits = commits
        try:
            transaction.commit()
        finally:
            self._commits = None

    def begins(self) -> None:
        """Reset the state of the last transaction, before the next one begins."""
        self.was_lent_now, self.locked = False, None
        self._options = self._execution_options

    @contextmanager
    def lent(self, name: str = "the handler") -> Iterator[None]:
        """Lend the connection to a handler for the block. Open savepoints of the handler end with the block.

        ``name`` is the handler's name in messages. The options of SQLAlchemy's and of the driver's connection are
        restored before the handler begins and after it ends.
        """
        self._who, driver = name, self.driver
        self._options = self._execution_options if self._options is None else self._options
        self.restore_options()
        self.was_lent = self.was_lent_now = True
        self._lent = _lent[driver] = lent_driver(driver, self._misuse)
        try:
            with repeated_errors_unlogged(), settings_kept(driver), savepoints_ended(self):
                lend_cursors(driver)
                yield
        finally:
            self._lent = None
            _lent.pop(driver, None)
            self.restore_options()

    def restore_options(self) -> None:
        """Undo options that a handler or a sink has set for its own statements."""
        if self._options is not None:
            self._execution_options = self._options

    def run_with(self, questions: Sequence[Query], following: Sequence[Statement]) -> list[tuple[Any, ...]]:
        """Run the ledger's ``questions``, then ``following``, in one round trip; after BEGIN if no transaction is open.

        Returns the only row of each ledger statement. Raises the ledger's error unchanged, and StatementFailed if the
        statements of ``following`` might succeed when run in another way.
        """
        driver = self.driver
        statements = [with_values(*question, driver.info.encoding) for question in questions]
        try:
            results = begin_and_run(driver, [*statements, *following])
        except StatementFailed as failed:
            if failed.number >= len(statements) or failed.error.sqlstate == INVALID_SQL_STATEMENT_NAME:
                raise  # they might succeed when run in another way
            raise failed.error from None
        return [rows[0] for rows in values_of(driver, results[: len(statements)])]

    def check(self) -> None:
        """Raise HandlerMisuse if a handler has ended or broken the transaction."""
        transaction = self.get_transaction()
        has_ended = transaction is None or not transaction.is_active or self.closed
        info = None if has_ended else self.driver.info
        if info is None or info.transaction_status == TransactionStatus.IDLE:
            raise HandlerMisuse(
                f"{self._who} ended its transaction; what it wrote before may be half done: remove COMMIT, "
                "ROLLBACK and PREPARE TRANSACTION from its code and its SQL, and compare its tables with these records"
            )
        if info.transaction_status == TransactionStatus.ACTIVE or info.pipeline_status != PipelineStatus.OFF:
            raise HandlerMisuse(
                f"{self._who} left a command unfinished on its connection (a COPY, a pipeline, or a query "
                "of pgconn whose results were not read): end it before the handler returns"
            )
        if info.transaction_status == TransactionStatus.INERROR:
            raise self.error_was_caught()

    def error_was_caught(self) -> HandlerMisuse:
        """The error for a handler that has caught a database error."""
        return HandlerMisuse(
            f"{self._who} caught a database error and continued: the transaction is broken, nothing was written. Let "
            "the error out, or put the statement that may fail into `with tx.begin_nested():`"
        )

    def put_back(self, *, broken: bool = False) -> None:
        """Return the connection to the pool; close it instead if it is broken, or a handler has had it."""
        if broken:
            with suppress(psycopg.Error):
                end_statement(self.driver)
        with suppress(DBAPIError):  # it was lost; the pool discards it
            if broken or self.was_lent:
                super().invalidate()  # rolls the transaction back
            super().close()
