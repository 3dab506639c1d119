"""A handler's statements in libpq pipeline mode: sent without waiting, awaited when an answer is needed.

A statement that writes and returns no rows is sent, and the next one follows at once. Whatever needs an answer (rows,
``rowcount``, a savepoint, COPY, the end of the handler) waits for all of them first. So an error may be raised at a
later statement than its own: a *deferred error*, which says nothing about the line that raised it. The caller runs such
a call again with each statement awaited, and uses only that result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.abc import Params, Query
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from seekpoint.errors import HandlerMisuse
from seekpoint.postgres.sent_statements import LONG, Sent, Text, read


class _Mode(Enum):
    """How a statement is sent."""

    PIPELINED = auto()  # it returns no rows: its answer can wait
    WITH_ANSWER = auto()  # one statement with rows: sent after the pipelined ones, then all are awaited
    AWAITED = auto()  # anything else: pipelined ones are awaited first, then it runs outside of pipeline mode
    SAVEPOINT = auto()
    RELEASE = auto()


_WRITES = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)
_RETURNS = re.compile(r"\bRETURNING\b", re.IGNORECASE)
_ASKS = re.compile(r"\s*(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)
_COPIES_IN = re.compile(r"\bFROM\s+STDIN\b", re.IGNORECASE)
_SAVEPOINT = re.compile(r"\s*SAVEPOINT\b", re.IGNORECASE)
_RELEASE = re.compile(r"\s*(?:RELEASE|ROLLBACK\s+TO)\b", re.IGNORECASE)


@lru_cache(maxsize=1024)
def _mode_of(text: str) -> _Mode:
    if _SAVEPOINT.match(text):
        return _Mode.SAVEPOINT
    if _RELEASE.match(text):
        return _Mode.RELEASE
    if ";" in text:  # perhaps several: pipeline mode takes one at a time
        return _Mode.AWAITED
    if _WRITES.match(text):
        return _Mode.WITH_ANSWER if _RETURNS.search(text) else _Mode.PIPELINED
    return _Mode.WITH_ANSWER if _ASKS.match(text) else _Mode.AWAITED


class PipelinedStatements:
    """What was sent on one connection, in one call of a handler; without ``is_pipelined`` each statement is awaited.

    ``handlers`` records what the statements did. ``deferred_error`` is the first error of the database that was raised
    while answers were outstanding, or None.
    """

    def __init__(self, driver: psycopg.Connection[Any], sent: Sent | None = None, *, is_pipelined: bool = True) -> None:
        self._driver, self.handlers = driver, sent or Sent()
        self._pipeline = ExitStack()
        self._is_open, self._has_ended = False, not is_pipelined
        self._depth = (
            0  # of savepoints: inside one, errors are raised at their own statement, where code may catch them
        )
        self._lap = 0  # counts how often all answers were awaited
        self._last: psycopg.Cursor[Any] | None = None  # that sent the last statement, if it was its only one
        self.deferred_error: BaseException | None = None
        self.is_unasked = False  # SQLAlchemy itself reads the rowcount: not a request of the handler

    @staticmethod
    def suits(driver: object) -> bool:
        """Whether statements can be pipelined on this connection; not with cursors of another class."""
        return (
            isinstance(driver, psycopg.Connection)
            and driver.cursor_factory is psycopg.Cursor
            and driver.server_cursor_factory is psycopg.ServerCursor
            and psycopg.Pipeline.is_supported()
        )

    @contextmanager
    def on(self, *, defers: bool = False) -> Iterator[Self]:
        """Within the block the connection's cursors pipeline. After an error nothing is outstanding.

        Without an error, ``defers`` allows that answers are awaited later, with :meth:`fetch_one` or :meth:`catch_up`.
        """
        driver: Any = self._driver
        before = driver.cursor_factory, driver.server_cursor_factory
        driver.cursor_factory = partial(_Cursor, self)
        driver.server_cursor_factory = partial(_ServerCursor, self)
        driver.transaction = partial(self._savepoint, driver.transaction)
        try:
            yield self
        except BaseException:
            self._abandon()
            raise
        else:
            if not defers:
                self.catch_up()
        finally:
            self._has_ended = True
            driver.cursor_factory, driver.server_cursor_factory = before
            del driver.transaction  # the class's own method shows again

    @contextmanager
    def _savepoint(self, transaction: Callable[..., Any], *args: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        """The connection's own ``transaction()``; errors are raised inside it."""
        self.catch_up()
        self._depth += 1
        made: psycopg.Transaction | None = None
        try:
            with transaction(*args, **options) as savepoint:
                made = savepoint
                self.handlers.savepoint("SAVEPOINT", savepoint.savepoint_name or "")
                yield savepoint
        finally:
            self._depth -= 1
            if made is not None:
                name = made.savepoint_name or ""
                if made.status is not made.Status.COMMITTED:
                    self.handlers.savepoint("ROLLBACK", name)
                self.handlers.savepoint("RELEASE", name)

    def send(self, statement: str, rows: Iterable[Sequence[Any]], check: tuple[str, Sequence[Any]]) -> None:
        """Send a statement that returns nothing once for each row, then a query; the answers stay outstanding.

        Never prepared: a prepared statement keeps its parameters' types when the table is altered.
        """
        for row in rows:
            _Cursor(self, self._driver).execute(statement, row, prepare=False)
        self._last = _plain_cursor(self._driver).execute(*check, prepare=False)

    def fetch_one(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        """The only row of a statement that is sent after the outstanding ones, in the same round trip.

        Raises the first error; if it is this statement's own, ``deferred_error`` stays None.
        """
        before, cursor = self._last, _plain_cursor(self._driver)
        try:
            if before is None:
                before = psycopg.Cursor(self._driver).execute("")
            cursor.execute(statement, parameters)
            self.catch_up()
        except psycopg.Error as error:
            self.failed(error)
            if before is not None and before.pgresult is not None:  # every outstanding statement has succeeded
                self.deferred_error = None
            raise
        return cursor.fetchone()

    def stop(self) -> None:
        """Wait for every answer, and await each statement from now on."""
        self._has_ended = True
        self.catch_up()

    def read(self, query: Query) -> tuple[str, Text]:
        """A statement's text and what it shows. Raises HandlerMisuse for PREPARE TRANSACTION."""
        if isinstance(query, bytes):
            text = query.decode(self._driver.info.encoding, "replace")
        elif isinstance(query, sql.Composable):
            text = query.as_string(self._driver)
        else:
            text = str(query)
            if not isinstance(query, str):  # a template
                self.handlers.unknown()
        parsed = read(text)
        if parsed.prepares_transaction:
            raise HandlerMisuse(
                "the handler sent PREPARE TRANSACTION on the connection it was lent: rows and offset are committed "
                "together, by the worker, after the handler returns"
            )
        self.handlers.statement(parsed)
        return text, parsed

    def mode(self, query: Query, text: str) -> _Mode:
        """How a statement may be sent now."""
        if self._has_ended or not isinstance(query, str | sql.Composable):
            return _Mode.AWAITED
        mode = _mode_of(text) if len(text) <= LONG else _mode_of.__wrapped__(text)
        if mode is _Mode.SAVEPOINT:
            self._depth += 1
        elif mode is _Mode.RELEASE:
            self._depth = max(0, self._depth - 1)
        elif mode is _Mode.WITH_ANSWER:
            return mode if self._is_open else _Mode.AWAITED
        elif mode is _Mode.PIPELINED and not self._is_open and self._may_open():
            self._pipeline.enter_context(self._driver.pipeline())
            self._is_open = True
        return mode if mode is _Mode.PIPELINED and self._is_open else _Mode.AWAITED

    def _may_open(self) -> bool:
        # A pipeline of the handler's own is left alone.
        return not self._depth and self._driver.info.pipeline_status == PipelineStatus.OFF

    @property
    def is_open(self) -> bool:
        """Whether answers are outstanding."""
        return self._is_open

    def sent(self, cursor: psycopg.Cursor[Any], *, only: bool) -> int:
        """A cursor has sent a statement, its ``only`` one; returns a number that changes when the answers have come."""
        self._last = cursor if only else None
        return self._lap

    def awaits(self, lap: int | None) -> bool:
        """Whether the answer to what was sent then is outstanding."""
        return self._is_open and lap == self._lap

    def failed(self, error: psycopg.Error) -> None:
        """An error was raised when a statement was sent; it may be an earlier one's."""
        if error.sqlstate is not None or isinstance(
            error, psycopg.OperationalError
        ):  # else the statement was never sent
            self._note(error)
            self._abandon()

    def catch_up(self) -> None:
        """Wait for every answer. Raises the first error among them."""
        if not self._is_open:
            return
        self._is_open = False
        self._lap += 1
        try:
            self._pipeline.close()
        except psycopg.Error as last:
            raise self._note(_first(last)) from None

    def _abandon(self) -> None:
        """Wait for every answer while another error is being raised."""
        try:
            self.catch_up()
        except psycopg.Error:
            return  # kept in `deferred_error`

    def _note(self, error: psycopg.Error) -> psycopg.Error:
        if self.deferred_error is None:
            self.deferred_error = error
            error.add_note(
                "perhaps of an earlier statement: the handler's statements are sent without waiting for each answer"
            )
        return error


def _first(error: psycopg.Error) -> psycopg.Error:
    """The error that caused the others: after one, the server skips the rest of the pipeline."""
    first, at = error, error.__context__
    while at is not None:
        if isinstance(at, psycopg.Error) and isinstance(first, psycopg.errors.PipelineAborted):
            first = at
        at = at.__context__
    return first


class _Cursor(psycopg.Cursor[Any]):
    """A psycopg cursor that waits for its answer only when it is needed."""

    def __init__(self, statements: PipelinedStatements, connection: psycopg.Connection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        self._pipelined = statements
        self._lap: int | None = None  # of its statement, where that was pipelined
        self._text: Text = read("")

    @property
    def is_pipelined(self) -> bool:
        """Whether the answer to its statement is outstanding."""
        return self._pipelined.awaits(self._lap)

    def _ask(self) -> None:
        if self.is_pipelined:
            self._pipelined.catch_up()

    def execute(
        self, query: Any, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        text, self._text = self._pipelined.read(query)
        mode = self._pipelined.mode(query, text)
        if mode is _Mode.AWAITED:
            self._pipelined.catch_up()
            super().execute(query, params, prepare=prepare, binary=binary)
            return self
        try:
            super().execute(query, params, prepare=prepare, binary=binary)
        except psycopg.Error as error:
            self._pipelined.failed(error)
            raise
        self._lap = self._pipelined.sent(self, only=self._lap is None)
        if mode is _Mode.WITH_ANSWER:
            self._ask()
        return self

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        text, self._text = self._pipelined.read(query)
        mode = _Mode.AWAITED if returning else self._pipelined.mode(query, text)
        if mode is not _Mode.PIPELINED:
            self._pipelined.catch_up()
            super().executemany(query, params_seq, returning=returning)
            return
        try:
            super().executemany(query, params_seq)
        except psycopg.Error as error:
            self._pipelined.failed(error)
            raise
        self._lap = self._pipelined.sent(self, only=False)

    def close(self) -> None:
        if not self.is_pipelined:  # else its answer is still to come, and may be asked for
            super().close()

    @property
    def description(self) -> Any:
        return None if self.is_pipelined else super().description

    @property
    def rowcount(self) -> int:
        if self.is_pipelined and self._pipelined.is_unasked:
            return -1
        self._ask()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        self._ask()
        return super().statusmessage

    def _set_results(self, results: list[PGresult]) -> None:
        super()._set_results(results)
        self._pipelined.handlers.answered(self._text, results)

    @contextmanager
    def copy(self, statement: Query, *args: Any, **options: Any) -> Iterator[psycopg.Copy]:
        text, _ = self._pipelined.read(statement)
        self._pipelined.catch_up()
        with super().copy(statement, *args, **options) as copy:
            yield copy
        if _COPIES_IN.search(text):
            self._pipelined.handlers.counted(self.rowcount)

    def stream(self, query: Query, *args: Any, **options: Any) -> Any:
        self._pipelined.read(query)
        self._pipelined.catch_up()
        return super().stream(query, *args, **options)

    def fetchone(self) -> Any:
        self._ask()
        return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        self._ask()
        return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        self._ask()
        return super().fetchall()


class _ServerCursor(psycopg.ServerCursor[Any]):
    """A server-side cursor, which pipeline mode does not support: it ends the pipelining."""

    def __init__(
        self, statements: PipelinedStatements, connection: psycopg.Connection[Any], *args: Any, **options: Any
    ) -> None:
        super().__init__(connection, *args, **options)
        self._pipelined = statements

    def execute(self, query: Any, *args: Any, **options: Any) -> Self:
        self._pipelined.read(query)
        self._pipelined.stop()
        super().execute(query, *args, **options)
        return self


def is_pipelined(cursor: object) -> bool:
    """Whether the answer to this cursor's statement is outstanding."""
    return isinstance(cursor, _Cursor) and cursor.is_pipelined


def _plain_cursor(driver: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
    """A cursor whose rows are tuples, whatever row factory a handler has set."""
    return psycopg.Cursor(driver, row_factory=tuple_row)


def begin_with(
    driver: psycopg.Connection[Any], *questions: tuple[str, Mapping[str, Any]]
) -> list[tuple[Any, ...] | None]:
    """Begin a READ COMMITTED transaction with these statements, in one round trip; returns the first row of each."""
    return [cursor.fetchone() for cursor in _begin_with(driver, questions, binary=False)]


def rows_of(driver: psycopg.Connection[Any], *questions: tuple[str, Mapping[str, Any]]) -> list[list[tuple[Any, ...]]]:
    """As :func:`begin_with`, all rows of each, for long answers. Raises the first error."""
    if driver.info.transaction_status != TransactionStatus.IDLE or not psycopg.Pipeline.is_supported():
        return [_plain_cursor(driver).execute(*question, binary=True).fetchall() for question in questions]
    try:
        return [cursor.fetchall() for cursor in _begin_with(driver, questions, binary=True)]
    except psycopg.Error as error:
        raise _first(error) from None


def _begin_with(
    driver: psycopg.Connection[Any], questions: Iterable[tuple[str, Mapping[str, Any]]], *, binary: bool
) -> list[psycopg.Cursor[Any]]:
    """Cursors that have the answers.

    psycopg would wait for the answer to BEGIN, also in pipeline mode, unless a statement is outstanding.
    """
    with driver.pipeline() as pipeline:
        driver.pgconn.send_query_params(b"BEGIN ISOLATION LEVEL READ COMMITTED", None)
        pipeline.result_queue.append(None)
        return [_plain_cursor(driver).execute(*question, binary=binary) for question in questions]
