"""Merges a sink's rows by key in one transaction: runs the statements, and finds the row that an error is about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.postgres.sqlstates import (
    CARDINALITY_VIOLATION,
    Fault,
    fault_of_error,
    may_be_of_before_alter,
    may_be_of_input,
)
from seekpoint.sinks.catalog import Layout, Stage, survey
from seekpoint.sinks.copy import Texts, driver_of, writing_cursor
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.encoders import Unwritable
from seekpoint.sinks.upsert.merge_sql import MergeSql
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy, Wrote
from seekpoint.sinks.upsert.temp_table import TempTable

T = TypeVar("T", bound=Target)
S = TypeVar("S", bound=MergeSql)


@dataclass(slots=True)
class CachedStatements(Generic[S]):
    """A table's statements, kept from one transaction to the next; their gate detects an altered table."""

    statements: S | None = None


class Altered(Exception):  # noqa: N818 -- control: nothing was written, the rows are run again
    """The table was altered after the statement was composed."""


class OpenMerge(ABC, Generic[T, S]):
    """Takes rows until the block ends, in an open transaction.

    Raises RowRefused for a refused row, with its line if known.
    """

    def __init__(
        self, tx: Connection, target: Callable[[], T], cache: CachedStatements[S], strategies: WriteStrategies
    ) -> None:
        self._tx, self._target_now, self._known, self._strategies = tx, target, cache, strategies
        self._driver = driver_of(tx)
        self._stage: Stage | None = None
        self._rows = 0
        self._few: list[Row] = []
        self._fell_back = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._undo(error) if error is not None else self._close()
        except RowRefused as refused:
            if refused.line is None:
                raise self._unknown(refused.cause) from refused.cause
            raise

    def _close(self) -> None:
        try:
            self._finish()
        except BaseException as error:
            self._undo(error)
            raise

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Take more rows."""

    @abstractmethod
    def _finish(self) -> None:
        """Write the remaining rows."""

    @abstractmethod
    def _undo(self, error: BaseException) -> None:
        """Abort an open COPY."""

    @abstractmethod
    def _statements(self, layout: Layout) -> S:
        """The statements for a table of this layout."""

    @abstractmethod
    def _merge_few(self) -> None:
        """Write the gathered rows. Raises Altered if the statements were made before an ALTER."""

    def _write_few(self) -> None:
        self._target = self._target_now()
        try:
            self._merge_few()
        except Altered:
            self._merge_few()

    def _wrote(self, strategy: WriteStrategy, upserts: int, deletes: int = 0) -> None:
        self._strategies.wrote(
            Wrote(
                strategy=strategy,
                rows=self._rows,
                upserts=upserts,
                deletes=deletes,
                fell_back=self._fell_back,
                pooled=self._stage is not None and self._stage.pooled,
            )
        )

    # -- statements ---------------------------------------------------------------------------------------

    def _cached(self) -> S:
        """The statements of an earlier transaction, if any: their gate compares them with the table.

        The gate does not notice renamed labels of an enum, so a table with enums is read again.
        """
        statements = self._known.statements
        if statements is None or statements.target != self._target or statements.layout.types.has_labels:
            return self._ask()
        return statements

    def _ask(self) -> S:
        """The statements for the table as it is now."""
        layout, self._stage = survey(self._tx, self._target)
        statements = self._known.statements
        if statements is None or (statements.target, statements.layout) != (self._target, layout):
            statements = self._known.statements = self._statements(layout)
        return statements

    def _staged(self, statements: S) -> TempTable:
        assert self._stage is not None
        return TempTable(self._tx, statements, self._stage, self._execute)

    def _columns(self) -> tuple[str, ...]:
        assert self._target.columns is not None
        return self._target.columns

    def _unnest(
        self,
        statement: sql.Composed,
        statements: S,
        columns: Sequence[str],
        rows: Sequence[Row],
        lines: Sequence[int | None],
    ) -> int:
        """Run a statement with the rows as arrays; returns the row count. Raises Altered, or RowRefused with a line."""
        touched = self._execute(statement, [*self._arrays(statements, columns, rows, lines), *statements.gate])
        if touched == 0 and self._stage is None and self._ask() is not statements:
            raise Altered
        return touched

    def _arrays(
        self, statements: S, columns: Sequence[str], rows: Sequence[Row], lines: Sequence[int | None]
    ) -> list[list[Any]]:
        """The rows as one array of texts for each column. Raises Altered, or RowRefused with a line."""
        with writing_cursor(self._driver) as cursor:
            target, types = self._target, statements.layout.types.columns
            texts = Texts(cursor, columns, types, target.conversions, event_rules=target.event_rules)
            values = []
            for line, row in zip(lines, rows, strict=True):
                try:
                    values.append(texts.of(row))
                except Unwritable as error:
                    # The values were encoded for the types before an ALTER.
                    if self._stage is None and self._ask() is not statements:
                        raise Altered from error
                    raise RowRefused(line, error) from error
        return [list(column) for column in zip(*values, strict=True)]

    def _execute(self, statement: sql.Composed, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._driver.execute(statement, parameters).rowcount
        except psycopg.Error as error:
            code = error.diag.sqlstate or error.sqlstate
            if may_be_of_before_alter(error):
                self._known.statements = None
                if self._stage is None:  # a cached statement may be outdated: no row is to blame
                    raise
            if code == CARDINALITY_VIOLATION:
                error.add_note(
                    f"{self._target.name}: a trigger gave two rows of one transaction the same key, although they came "
                    "with different keys: make the key in row= as the trigger would store it"
                )
            elif code is not None and fault_of_error(error) is Fault.DATA:
                raise self._unknown(error) from error
            elif may_be_of_input(code):
                self._strategies.was_refused()  # the next attempt uses COPY, whose errors name the row
            raise

    def _unknown(self, cause: Exception) -> RowRefused:
        """RowRefused for an error that names no row; the next attempt uses COPY, which names it."""
        self._known.statements = None  # the next transaction asks the server again
        self._strategies.was_refused()
        return RowRefused(1 if self._rows == 1 else None, cause)
