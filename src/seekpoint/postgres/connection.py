"""The connection that is lent to handlers: they write with it, and cannot end its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import psycopg
from psycopg import sql
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, CursorResult, Engine, PoolProxiedConnection, Transaction
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import HandlerMisuse
from seekpoint.postgres import pooler
from seekpoint.postgres.connection_socket import Wire
from seekpoint.postgres.pipelining import PipelinedStatements, begin_with, is_pipelined
from seekpoint.postgres.sent_statements import Sent
from seekpoint.postgres.session_state import Known, SessionState
from seekpoint.postgres.sqlstates import connection_lost
from seekpoint.postgres.transaction_errors import CommitRefused, CommitUnanswered, DeferredFailure


class HandlerConnection(Connection):
    """A SQLAlchemy connection inside Seekpoint's transaction.

    Use it like any other; for the ORM, ``Session(tx, join_transaction_mode="create_savepoint")``. Savepoints
    (``tx.begin_nested()``) are yours. Ending the transaction or the connection is not: the rows would part
    from the offset (I1). It raises HandlerMisuse before anything reaches the server, also where it is done by way of
    the transaction, the driver's connection or an ORM session.

    ``was_lent``: a handler has had it, so it is no one else's any more. ``sent`` is what handlers sent in this
    transaction; None where the driver's cursors are of another class, and nothing is known.
    """

    was_lent = was_lent_now = False  # in this transaction
    sent: Sent | None = None
    _who = "the handler"
    unsurveyed: SessionState | None = None  # asks with the transaction's first statement of ours
    _pipelined: PipelinedStatements | None = None  # of what was sent last, by a handler or a sink
    _is_lent = _may_pipeline = _may_defer = _may_defer_rows = False
    _options: Any = None  # the execution options that it had when the transaction began

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
        """As in SQLAlchemy, but that a handler cannot give it back to the pool or take it away."""
        return _Proxied(super().connection, self._misuse) if self._is_lent else super().connection

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """The driver's connection."""
        driver = self.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver

    def execute(self, *args: Any, **options: Any) -> Any:
        """As in SQLAlchemy; the result's ``rowcount`` waits for the answer if it is asked."""
        return self._unasked(super().execute, *args, **options)

    def exec_driver_sql(self, *args: Any, **options: Any) -> Any:
        """As in SQLAlchemy; the result's ``rowcount`` waits for the answer if it is asked."""
        return self._unasked(super().exec_driver_sql, *args, **options)

    def _unasked(self, execute: Callable[..., CursorResult[Any]], *args: Any, **options: Any) -> CursorResult[Any]:
        ahead = self._pipelined
        if ahead is None or not self._is_lent:
            self.catch_up()
            return execute(*args, **options)
        ahead.is_unasked = True
        try:
            result = execute(*args, **options)
        finally:
            ahead.is_unasked = False
        if is_pipelined(result.context.cursor):
            result.__class__ = _PipelinedResult
        return result

    def begins(self, *, pipeline_mode: bool) -> None:
        """Another transaction: nothing is known of its statements yet."""
        self._may_pipeline, self._may_defer, self._may_defer_rows = pipeline_mode, False, False
        self._pipelined, self._in_parts = None, False
        self.was_lent_now, self.sent = False, None
        self._options = self._execution_options

    def may_defer(self, *, rows: bool) -> None:
        """What comes last in this transaction, handler or a sink's ``rows``, may be awaited by our next statement."""
        self._may_defer, self._may_defer_rows = not rows, rows

    @property
    def deferred_error(self) -> BaseException | None:
        """Of the statements that were sent ahead the first that failed."""
        return None if self._pipelined is None else self._pipelined.deferred_error

    def catch_up(self) -> None:
        """Wait for every answer that is outstanding. Raises the first error among them."""
        if self._pipelined is not None:
            self._pipelined.catch_up()

    @property
    def is_pipelined(self) -> bool:
        """Whether statements may be sent ahead: never in a part, where an error must be its own statement's."""
        return (
            self._may_pipeline and not self._in_parts and PipelinedStatements.suits(self.connection.driver_connection)
        )

    @property
    def can_defer(self) -> bool:
        """Whether a sink may :meth:`defer` rows."""
        return self._may_defer_rows and self.is_pipelined

    def defer(self, statement: str, rows: Iterable[Sequence[Any]], check: tuple[str, Sequence[Any]]) -> bool:
        """Send a sink's last rows, one by one, to be awaited by our next statement; False where that may not be.

        ``check`` is a query that goes after them, and raises where they should not have been written so.
        """
        driver = self.connection.driver_connection
        if not self.can_defer or not isinstance(driver, psycopg.Connection):
            return False
        self.catch_up()
        self._pipelined = PipelinedStatements(driver)
        self._pipelined.send(statement, rows, check)
        return True

    @contextmanager
    def lent(self, who: str = "the handler") -> Iterator[None]:
        """While a handler has it: a savepoint that it leaves open ends with its call, like one in a ``with`` block.

        ``who`` is what messages call the handler.

        Ours, around a part that is tried, could not be ended before it. In such a part each statement is awaited:
        there, an error is its own statement's, and the verdict on a record hangs on it. Options of the connection and
        of the driver's connection are as before when the handler begins, and when it has ended.
        """
        self._who = who
        driver = self.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self.catch_up()
        self._pipelined = None
        self._options = self._execution_options if self._options is None else self._options
        self._put_options_back()
        self.was_lent = self.was_lent_now = self._is_lent = True
        try:
            with _driver_kept(driver), self._refusing(driver), self._savepoints_ended():
                if not PipelinedStatements.suits(driver):
                    yield
                    return
                self.sent = self.sent or Sent()
                self._pipelined = PipelinedStatements(driver, self.sent, is_pipelined=self.is_pipelined)
                with self._pipelined.on(defers=self._may_defer and self.is_pipelined):
                    yield
        finally:
            self._is_lent = False
            self._put_options_back()

    def _put_options_back(self) -> None:
        """What a handler, or a sink, has set for its own statements is not meant for others'."""
        if self._options is not None:
            self._execution_options = self._options

    @contextmanager
    def _refusing(self, driver: Any) -> Iterator[None]:
        """Every way to end the transaction that is not text goes through these methods of the driver's connection."""

        def close() -> None:
            if not driver.closed:  # else it is SQLAlchemy that clears away what the server has ended
                self._misuse("close()")
            type(driver).close(driver)

        driver.commit, driver.close = partial(self._misuse, "commit()"), close
        try:
            yield
        finally:
            del driver.commit, driver.close

    @contextmanager
    def _savepoints_ended(self) -> Iterator[None]:
        ours = self.get_nested_transaction()
        try:
            yield
        except BaseException:
            while (left := self.get_nested_transaction()) is not None and left is not ours:
                left.rollback()
            raise
        while (left := self.get_nested_transaction()) is not None and left is not ours:
            left.commit()

    # Parts of a transaction, one after the other, each kept or undone: one round trip each, where begin_nested() takes
    # two; the search for a bad record is made of them.

    _in_parts = False
    _path_and_role = ""

    def begin_parts(self) -> None:
        """The first part begins."""
        self._in_parts = True
        self._put_options_back()
        asked = "SELECT current_setting('search_path'), current_setting('role'); SAVEPOINT seekpoint_part"
        path, role = self.driver.cursor(row_factory=tuple_row).execute(asked, prepare=False).fetchone() or ("", "none")
        # A temporary table of a handler's must not hide a table of its name from the parts that follow.
        shown = path if "pg_temp" in path else ", ".join([*filter(None, [path]), "pg_temp"])
        self._path_and_role = (
            sql.SQL("SELECT set_config('search_path', {}, true), set_config('role', {}, true);")
            .format(sql.Literal(shown), sql.Literal(role))
            .as_string()
        )

    def keep_part(self) -> None:
        """What was written since the part began stays; the next one begins.

        It finds tables where the first one did, and as the same role, whatever a handler has set for itself.
        """
        self._put_options_back()
        again = self._path_and_role if self.was_lent_now else ""
        self._command(f"RELEASE SAVEPOINT seekpoint_part; {again} SAVEPOINT seekpoint_part")

    def undo_part(self) -> None:
        """Nothing was written since the part began, and it begins again."""
        self._put_options_back()
        self._command("ROLLBACK TO SAVEPOINT seekpoint_part")

    def _command(self, command: str) -> None:
        driver = self.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        driver.execute(command, prepare=False)  # two commands in one cannot be prepared

    def fast_path(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        """The only row of a statement of ours, from the driver itself; in one round trip with what is outstanding.

        Where it is the first statement, BEGIN goes with it.
        """
        driver = self.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        if self._pipelined is not None and self._pipelined.is_open:
            return self._pipelined.fetch_one(statement, parameters)
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
        """Raise HandlerMisuse if the transaction was ended or broken behind our back.

        All that was sent ahead is awaited first, but for what may be left to our next statement: a transaction that has
        ended or is broken refuses that one. A late error is raised here also where the handler has caught it: it came
        out at another statement, and perhaps where one was expected.
        """
        ahead, transaction = self._pipelined, self.get_transaction()
        driver = None if self.closed else self.connection.driver_connection
        has_ended = transaction is None or not transaction.is_active or driver is None
        if ahead is not None and ahead.is_open and not has_ended:
            if self._may_defer and ahead.deferred_error is None:
                return
            ahead.catch_up()
        status = driver.info.transaction_status if isinstance(driver, psycopg.Connection) else None
        if has_ended or status == TransactionStatus.IDLE:
            raise HandlerMisuse(f"{self._who} ended the transaction it was lent; what it wrote before may be half done")
        if isinstance(driver, psycopg.Connection) and (
            status == TransactionStatus.ACTIVE or driver.info.pipeline_status != PipelineStatus.OFF
        ):
            raise HandlerMisuse(
                f"{self._who} left a command unfinished on the connection it was lent (a COPY, a pipeline, or a query "
                "of pgconn whose results were not read): end it before the handler returns"
            )
        if ahead is not None and ahead.deferred_error is not None:  # even where a savepoint of long ago took it back
            raise ahead.deferred_error
        if status == TransactionStatus.INERROR:
            raise HandlerMisuse(
                f"{self._who} caught a database error and went on: the transaction is broken, nothing was written. Let "
                "the error out, or put the statement that may fail into `with tx.begin_nested():`"
            )

    @property
    def wrote_nothing(self) -> bool:
        """Whether handlers had it in this transaction, and wrote no row as far as the driver can know."""
        return self.was_lent_now and self.sent is not None and self.sent.wrote_nothing

    def drop(self) -> None:
        """Throw the connection away, transaction and all: the next one starts clean."""
        super().invalidate()
        super().close()

    def put_back(self) -> None:
        """Return the connection to the pool; one that a handler has had is closed instead."""
        if self.was_lent:
            self.drop()
        else:
            super().close()


@contextmanager
def _driver_kept(driver: psycopg.Connection[Any]) -> Iterator[None]:
    """What is set on the driver's connection within the block is put back after it."""
    names = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold", "prepared_max")
    before = {name: getattr(driver, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(driver, name, value)


class _Proxied:
    """The pool's proxy of a connection that is lent."""

    def __init__(self, proxy: PoolProxiedConnection, misuse: Callable[[str], NoReturn]) -> None:
        self._proxy, self._misuse = proxy, misuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)

    def close(self) -> None:
        self._misuse("close()")

    def detach(self) -> None:
        self._misuse("detach()")

    def invalidate(self, *_: Any, **__: Any) -> None:
        self._misuse("invalidate()")


class _PipelinedResult(CursorResult[Any]):
    """The result of a statement that was sent ahead: it has no rows, and how many were written is asked late."""

    __slots__ = ()

    @property
    def rowcount(self) -> int:
        return int(self.context.cursor.rowcount)


class Session:
    """One connection for a worker's transactions, one after another; a new one after any failure.

    ``pipeline_mode``: handlers' statements are sent without waiting for each answer. ``wire`` is what another thread
    may cut.

    With ``lends`` handlers get it. Then each COMMIT asks what the transaction has left on the session. Where that is
    not what was there before, the connection is closed and replaced, and ``changed`` says what it was. It never returns
    to the host's pool. ``hold_first``: each transaction begins with a statement by :meth:`HandlerConnection.fast_path`;
    the session is looked at in its round trip.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        pipeline_mode: bool = False,
        lends: bool = False,
        hold_first: bool = False,
        wire: Wire | None = None,
    ) -> None:
        self._engine, self._pipeline_mode, self._lends, self._hold_first = engine, pipeline_mode, lends, hold_first
        self.wire = wire or Wire()
        self._connection: HandlerConnection | None = None
        self._state: SessionState | None = None
        self._known = Known()
        self.changed: tuple[str, ...] = ()

    @contextmanager
    def transaction(self) -> Iterator[HandlerConnection]:
        """A READ COMMITTED transaction: committed at the end of the block, thrown away on any exception.

        Raises DeferredFailure, CommitRefused or CommitUnanswered where the error was met at that point; other errors
        as they are.
        """
        self.changed, is_committing = (), False
        try:
            tx = self._connection or self._connect()
            tx.begins(pipeline_mode=self._pipeline_mode)
            transaction = tx.begin()
            yield tx
            is_committing = True
            tx.catch_up()
            self.changed = self._commit(tx, transaction)
        except BaseException as error:
            deferred = None if self._connection is None else self._connection.deferred_error
            self.close(broken=True)
            if not isinstance(error, Exception):
                raise
            if is_committing:
                raise (CommitUnanswered if connection_lost(error) else CommitRefused)(error) from error
            if error is deferred:
                raise DeferredFailure(error) from error
            raise
        if self.changed:
            self.close(broken=True)

    def _connect(self) -> HandlerConnection:
        tx = self._connection = HandlerConnection(self._engine)
        tx.execution_options(isolation_level="READ COMMITTED")
        self.wire.connected(tx.driver)
        if self._lends and pooler.found(tx) is None:  # a pooler gives each transaction another session
            with tx.begin():  # what the host's own engine events set when a transaction begins is there, too
                sets = tx.driver.info.transaction_status != TransactionStatus.IDLE
            self._state = SessionState(self._known)
            if self._hold_first and not sets and psycopg.Pipeline.is_supported():
                tx.unsurveyed = self._state
            else:
                self._state.ask(tx.driver)
        return tx

    def _commit(self, tx: HandlerConnection, transaction: Transaction) -> tuple[str, ...]:
        """COMMIT; returns what is changed on the session."""
        if self._state is None or not tx.was_lent_now:
            transaction.commit()
            return ()
        new = () if tx.sent is None else self._known.learn(tx.sent)
        found: list[str] = []
        driver, state = tx.driver, self._state
        driver.commit = lambda: found.extend(state.commit(driver))  # type: ignore[method-assign]
        try:
            transaction.commit()
        finally:
            del driver.commit
        return (*found, *new)

    def close(self, *, broken: bool = False) -> None:
        """Give the connection back; a broken one is dropped instead, so that nobody gets it inside a transaction."""
        connection, self._connection, self._state = self._connection, None, None
        if connection is None:
            return
        self.wire.disconnected()
        try:
            if broken:
                connection.drop()
            else:
                connection.put_back()
        except DBAPIError:  # it was already beyond telling; the pool discards it
            return
