"""The connection that handlers write with, inside a worker's transaction, which they cannot end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, CursorResult, Engine

from seekpoint.errors import HandlerMisuse
from seekpoint.postgres.deferred import DeferredStatements
from seekpoint.postgres.handler_guard import GuardedProxy, ending_refused, savepoints_ended, settings_kept
from seekpoint.postgres.part_savepoints import PartSavepoints
from seekpoint.postgres.pipelining import PipelinedStatements, begin_with
from seekpoint.postgres.sent_statements import Sent
from seekpoint.postgres.session_state import SessionState


class HandlerConnection(Connection):
    """A SQLAlchemy connection inside Seekpoint's transaction.

    Use it like any other; for the ORM, ``Session(tx, join_transaction_mode="create_savepoint")``. Savepoints
    (``tx.begin_nested()``) are yours. Ending the transaction or the connection raises HandlerMisuse before anything
    reaches the server, because rows and offset would not be committed together (I1); also through the transaction, the
    driver's connection or an ORM session.

    ``deferred`` are the transaction's statements that are not awaited one by one, ``savepoints`` its parts. ``sent`` is
    what handlers sent in it; None where the driver's cursors are of another class, so that it is not known.
    ``was_lent``: a handler has had the connection, so it never returns to the pool; ``was_lent_now``: in this
    transaction.
    """

    deferred: DeferredStatements
    savepoints: PartSavepoints
    sent: Sent | None
    was_lent_now: bool
    was_lent = _is_lent = False
    unsurveyed: SessionState | None = None  # to be read with the first statement of the next transaction
    _who = "the handler"
    _options: Any  # the execution options that it had when the transaction began

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.begins(pipeline_mode=False)
        self._options = None  # set between here and BEGIN

    def _misuse(self, what: str) -> NoReturn:
        raise HandlerMisuse(
            f"{self._who} called {what} on the connection it was lent: rows and offset are committed together, by the "
            "worker, after the handler returns. For a part that may fail, use `with tx.begin_nested():`"
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
        super().invalidate(exception)  # SQLAlchemy's own call: the server has ended the connection

    @property
    def connection(self) -> Any:
        """As in SQLAlchemy, but a handler cannot return it to the pool or detach it."""
        return GuardedProxy(super().connection, self._misuse) if self._is_lent else super().connection

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """The driver's connection."""
        driver = self.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver

    def execute(self, *args: Any, **options: Any) -> Any:
        """As in SQLAlchemy; the result's ``rowcount`` waits for the answer if it is asked."""
        return self._run(super().execute, *args, **options)

    def exec_driver_sql(self, *args: Any, **options: Any) -> Any:
        """As in SQLAlchemy; the result's ``rowcount`` waits for the answer if it is asked."""
        return self._run(super().exec_driver_sql, *args, **options)

    def _run(self, execute: Callable[..., CursorResult[Any]], *args: Any, **options: Any) -> CursorResult[Any]:
        if self._is_lent:
            return self.deferred.run(execute, *args, **options)
        self.deferred.catch_up()
        return execute(*args, **options)

    def begins(self, *, pipeline_mode: bool) -> None:
        """Reset what belongs to one transaction, before the next one."""
        driver = self.driver
        self.deferred = DeferredStatements(driver, pipeline_mode=pipeline_mode)
        self.savepoints = PartSavepoints(driver, self._begin_part)
        self.was_lent_now, self.sent = False, None
        self._options = self._execution_options

    def _begin_part(self) -> None:
        """In a part each statement is awaited, so that an error is the error of the statement that raised it."""
        self.deferred.await_each()
        self._restore_options()

    @contextmanager
    def lent(self, who: str = "the handler") -> Iterator[None]:
        """While a handler has the connection. Savepoints that it leaves open end with its call.

        ``who`` is the handler's name in messages. Options of the connection and of the driver's connection are
        restored before the handler begins and after it has ended.
        """
        self._who, driver = who, self.driver
        self.deferred.forget()
        self._options = self._execution_options if self._options is None else self._options
        self._restore_options()
        self.was_lent = self.was_lent_now = self._is_lent = self.savepoints.is_lent = True
        try:
            with settings_kept(driver), ending_refused(driver, self._misuse), savepoints_ended(self):
                if not PipelinedStatements.suits(driver):
                    yield
                    return
                self.sent = self.sent or Sent()
                with self.deferred.handler(self.sent):
                    yield
        finally:
            self._is_lent = False
            self._restore_options()

    def _restore_options(self) -> None:
        """Undo options that a handler or a sink has set for its own statements."""
        if self._options is not None:
            self._execution_options = self._options

    def fast_path(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        """The only row of a ledger's statement, run by the driver itself, in one round trip with outstanding ones.

        BEGIN is sent with it where it is the transaction's first statement.
        """
        if self.deferred.is_open:
            return self.deferred.fetch_one(statement, parameters)
        driver = self.driver
        if driver.info.transaction_status == TransactionStatus.IDLE and psycopg.Pipeline.is_supported():
            state, self.unsurveyed = self.unsurveyed, None
            if state is None:
                return begin_with(driver, (statement, parameters))[0]
            survey, row = begin_with(driver, state.survey, (statement, parameters))
            assert survey is not None
            state.begin(survey)
            return row
        return driver.cursor(row_factory=tuple_row).execute(statement, parameters).fetchone()

    def check(self) -> None:
        """Raise HandlerMisuse if a handler has ended or broken the transaction.

        Outstanding answers are awaited first, unless they may wait for the ledger's next statement, which fails in a
        transaction that has ended or is broken. A deferred error is raised here also where the handler has caught it:
        it may have been raised at another statement, where an error was expected.
        """
        transaction = self.get_transaction()
        driver = None if self.closed else self.connection.driver_connection
        has_ended = transaction is None or not transaction.is_active or driver is None
        if self.deferred.is_open and not has_ended:
            if self.deferred.may_stay_open:
                return
            self.deferred.catch_up()
        status = driver.info.transaction_status if isinstance(driver, psycopg.Connection) else None
        if has_ended or status == TransactionStatus.IDLE:
            raise HandlerMisuse(
                f"{self._who} ended the transaction it was lent; what it wrote before may be half done: remove COMMIT "
                "and ROLLBACK from its code and its SQL, and compare its tables with these records"
            )
        if isinstance(driver, psycopg.Connection) and (
            status == TransactionStatus.ACTIVE or driver.info.pipeline_status != PipelineStatus.OFF
        ):
            raise HandlerMisuse(
                f"{self._who} left a command unfinished on the connection it was lent (a COPY, a pipeline, or a query "
                "of pgconn whose results were not read): end it before the handler returns"
            )
        if self.deferred.error is not None:  # even where a savepoint before it has undone the statement
            raise self.deferred.error
        if status == TransactionStatus.INERROR:
            raise HandlerMisuse(
                f"{self._who} caught a database error and continued: the transaction is broken, nothing was written. "
                "Let the error out, or put the statement that may fail into `with tx.begin_nested():`"
            )

    @property
    def wrote_nothing(self) -> bool:
        """Whether handlers had it in this transaction, and wrote no row as far as the driver can know."""
        return self.was_lent_now and self.sent is not None and self.sent.wrote_nothing

    def drop(self) -> None:
        """Close the connection, which rolls its transaction back; the session opens another one."""
        super().invalidate()
        super().close()

    def put_back(self) -> None:
        """Return the connection to the pool; one that a handler has had is closed instead."""
        if self.was_lent:
            self.drop()
        else:
            super().close()
