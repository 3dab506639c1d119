"""Pipelined statements of one transaction: a handler's, or the last rows of a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import psycopg
from sqlalchemy import CursorResult

from seekpoint.postgres.pipelining import PipelinedStatements, is_pipelined
from seekpoint.postgres.round_trip import Statement, StatementFailed, begin_and_run, with_values
from seekpoint.postgres.sent_statements import Sent
from seekpoint.postgres.sqlstates import INVALID_SQL_STATEMENT_NAME


class Last(Enum):
    """What writes last in a transaction: its answers may be awaited together with Seekpoint's next statement."""

    UNKNOWN = auto()  # each writer waits for its own answers
    HANDLER = auto()
    SINK = auto()


class DeferredStatements:
    """Sends statements of one transaction without waiting for each answer, and awaits the answers.

    ``driver`` is the transaction's connection. ``pipeline_mode`` allows it for the statements of a handler. ``last``
    says whose answers may stay outstanding.
    """

    def __init__(self, driver: psycopg.Connection[Any], *, pipeline_mode: bool) -> None:
        self.last = Last.UNKNOWN
        self.driver = driver
        self._pipeline_mode = pipeline_mode
        self._sent: PipelinedStatements | None = None  # what a handler or a sink sent last

    @property
    def error(self) -> BaseException | None:
        """The first error among statements that were sent without waiting, or None."""
        return None if self._sent is None else self._sent.deferred_error

    @property
    def is_open(self) -> bool:
        """Whether answers are outstanding."""
        return self._sent is not None and self._sent.is_open

    @property
    def may_stay_open(self) -> bool:
        """Whether the outstanding answers of a handler may be awaited by Seekpoint's next statement."""
        return self.last is Last.HANDLER and self.error is None

    @property
    def accepts_rows(self) -> bool:
        """Whether a sink may send its rows with :meth:`send_rows`."""
        return self.last is Last.SINK and self.is_allowed

    @property
    def is_allowed(self) -> bool:
        """Whether statements may leave before the answers to earlier ones have come."""
        return self._pipeline_mode and PipelinedStatements.suits(self.driver)

    def catch_up(self) -> None:
        """Wait for every outstanding answer. Raises the first error among them."""
        if self._sent is not None:
            self._sent.catch_up()

    def await_each(self) -> None:
        """From now on every statement waits for its answer: an error is the error of the statement that raised it."""
        self._pipeline_mode = False

    def send_rows(self, statement: str, rows: Iterable[Sequence[Any]], check: tuple[str, Sequence[Any]]) -> bool:
        """Send the last rows of a sink, one by one, without waiting; False where that is not allowed.

        ``check`` is a query that is sent after them, and raises where they should not have been written in this way.
        """
        if not self.accepts_rows:
            return False
        self.catch_up()
        self._sent = PipelinedStatements(self.driver)
        self._sent.send(statement, rows, check)
        return True

    def run_first(self, statement: str, parameters: Mapping[str, Any], following: Sequence[Statement]) -> None:
        """Run a transaction's first statement, and those that follow it, in one round trip with BEGIN.

        Raises the first error; unless it says what the first statement found, it is a deferred error.
        """
        first = with_values(statement, parameters, self.driver.info.encoding)
        try:
            begin_and_run(self.driver, first, following)
        except StatementFailed as failed:
            if failed.number > 0 or failed.error.sqlstate == INVALID_SQL_STATEMENT_NAME:
                self._sent = PipelinedStatements(self.driver)
                self._sent.deferred_error = failed.error
            raise failed.error from None

    @contextmanager
    def handler(self, sent: Sent) -> Iterator[None]:
        """While a handler runs: its statements are recorded in ``sent``, and pipelined where that is allowed."""
        pipelined = self.is_allowed
        self._sent = PipelinedStatements(self.driver, sent, is_pipelined=pipelined)
        with self._sent.on(defers=pipelined and self.last is Last.HANDLER):
            yield

    def forget(self) -> None:
        """Another handler begins: wait for what is outstanding; an error before that is not its own."""
        self.catch_up()
        self._sent = None

    def run(self, execute: Callable[..., CursorResult[Any]], *args: Any, **options: Any) -> CursorResult[Any]:
        """Execute a statement of the handler; the result's ``rowcount`` waits for the answer if it is asked."""
        if (sent := self._sent) is None:
            return execute(*args, **options)
        sent.is_unasked = True
        try:
            result = execute(*args, **options)
        finally:
            sent.is_unasked = False
        if is_pipelined(result.context.cursor):
            return _PipelinedResult(result.context, result.cursor_strategy, None)
        return result

    def fetch_one(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        """The only row of a statement that is sent after those that are outstanding, in the same round trip."""
        assert self._sent is not None
        return self._sent.fetch_one(statement, parameters)


class _PipelinedResult(CursorResult[Any]):
    """The result of a pipelined statement: it has no rows, and its ``rowcount`` waits for the answer."""

    @property
    def rowcount(self) -> int:
        return int(self.context.cursor.rowcount)
