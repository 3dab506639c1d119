"""One opening of an upsert: rows are written by one of three strategies, most of them while the next are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

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
from seekpoint.sinks.catalog import Stage, survey
from seekpoint.sinks.copy import Texts, driver_of, writing_cursor
from seekpoint.sinks.dedupe import Target, dedupe, has_deletes
from seekpoint.sinks.encoders import Unwritable
from seekpoint.sinks.upsert.direct_copy import DirectCopy
from seekpoint.sinks.upsert.strategy import WriteStrategies, WriteStrategy, Wrote
from seekpoint.sinks.upsert.temp_table import TempTable
from seekpoint.sinks.upsert.upsert_sql import UpsertSql


@dataclass(slots=True)
class CachedLayout:
    """A table's statements, kept from one transaction to the next; they notice it where the table was altered."""

    statements: UpsertSql | None = None


class _Altered(Exception):  # noqa: N818 -- control: nothing was written, the rows are run again
    """The table is not what it was when the statement was made."""


class _TurnedBackError(Exception):
    """A tombstone came: the rows are staged."""


class OpenUpsert:
    """Takes rows until the block is left, in a transaction that is open.

    Few are gathered and go in one statement. With more, a write strategy is chosen and they stream into it. What is
    refused is a RowRefused, with the row's place where that is known.
    """

    def __init__(
        self, tx: Connection, target: Callable[[], Target], known: CachedLayout, roads: WriteStrategies
    ) -> None:
        self._tx, self._target_now, self._known, self._strategies = tx, target, known, roads
        self._driver = driver_of(tx)
        self._stage: Stage | None = None
        self._rows = 0
        self._few: list[Row] = []
        self._way: DirectCopy | TempTable | None = None
        self._fell_back = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._undo(error) if error is not None else self._finish()
        except RowRefused as refused:
            if refused.line is None:
                raise self._unknown(refused.cause) from refused.cause
            raise

    def _undo(self, error: BaseException) -> None:
        if self._way is not None:
            self._way.undo(error)

    def write(self, rows: Sequence[Row]) -> None:
        """Take these rows, too."""
        self._rows += len(rows)
        if self._way is None:
            if not rows or self._strategies.gathers(self._rows) or self._target_now().columns is None:
                self._few.extend(rows)
                return
            few, self._few = self._few, []
            self._way = self._begin()
            if few:
                self._stream(self._way, few)
        self._stream(self._way, rows)

    def _stream(self, way: DirectCopy | TempTable, rows: Sequence[Row]) -> None:
        if isinstance(way, DirectCopy) and has_deletes(rows):
            way.undo(_TurnedBackError())
            way = self._turn_back(way)
        way.write(rows)

    def _begin(self) -> DirectCopy | TempTable:
        self._target = self._target_now()
        statements = self._ask()
        layout = statements.layout
        if self._strategies.choose(self._rows, deduped=True, direct=layout.direct) is WriteStrategy.COPY:
            return DirectCopy(self._tx, self._target.path, self._columns(), layout.written, self._target.conversions)
        return self._staged(statements)

    def _turn_back(self, direct: DirectCopy) -> TempTable:
        """From the table to the stage, with all that was written."""
        self._strategies.met_a_conflict()
        self._fell_back = True
        self._way = staged = self._staged(self._ask())
        for rows in direct.kept:
            staged.write(rows)
        return staged

    def _staged(self, statements: UpsertSql) -> TempTable:
        assert self._stage is not None
        return TempTable(self._tx, statements, self._stage, self._execute)

    def _finish(self) -> None:
        way = self._way
        try:
            if way is None:
                if self._few:
                    self._write_few()
            elif isinstance(way, TempTable):
                self._wrote(WriteStrategy.TEMP_TABLE, *way.finish())
            elif way.close():
                self._wrote(WriteStrategy.COPY, self._rows)
            else:
                self._wrote(WriteStrategy.TEMP_TABLE, *self._turn_back(way).finish())
        except BaseException as error:
            self._undo(error)
            raise

    def _wrote(self, road: WriteStrategy, upserts: int, deletes: int = 0) -> None:
        self._strategies.wrote(
            Wrote(
                strategy=road,
                rows=self._rows,
                upserts=upserts,
                deletes=deletes,
                fell_back=self._fell_back,
                pooled=self._stage is not None and self._stage.pooled,
            )
        )

    def _ask(self) -> UpsertSql:
        """The statements for the table as it is now."""
        layout, self._stage = survey(self._tx, self._target)
        known = self._known.statements
        if known is None or (known.target, known.layout) != (self._target, layout):
            known = self._known.statements = UpsertSql(self._target, layout)
        return known

    # -- few rows, in one statement ---------------------------------------------------------------------------

    def _write_few(self) -> None:
        self._target = self._target_now()
        try:
            self._dedupe_few()
        except _Altered:
            self._dedupe_few()

    def _dedupe_few(self) -> None:
        rows = self._few
        statements = self._known.statements
        if statements is None or statements.target != self._target:
            statements = self._ask()
        deduped = dedupe(self._target, rows, statements.layout.columns)
        only_deletes = not deduped.rows and deduped.is_deduped
        in_one = deduped.is_deduped and statements.layout.casts
        if (
            not only_deletes
            and self._strategies.choose(len(rows), deduped=in_one, direct=False) is WriteStrategy.TEMP_TABLE
        ):
            self._way = staged = self._staged(self._ask())
            staged.write(rows)
            self._wrote(WriteStrategy.TEMP_TABLE, *staged.finish())
            return
        deletes = self._unnest("delete", statements, deduped.deletes, deduped.delete_lines) if deduped.deletes else 0
        upserts = self._unnest("insert", statements, deduped.rows, deduped.lines) if deduped.rows else 0
        self._wrote(WriteStrategy.UNNEST, upserts, deletes)

    def _columns(self) -> tuple[str, ...]:
        assert self._target.columns is not None
        return self._target.columns

    def _unnest(self, which: str, statements: UpsertSql, rows: Sequence[Row], lines: Sequence[int]) -> int:
        with writing_cursor(self._driver) as cursor:
            columns = self._columns() if which == "insert" else self._target.deletes
            texts = Texts(cursor, columns, statements.layout.written, self._target.conversions)
            made = []
            for line, row in zip(lines, rows, strict=True):
                try:
                    made.append(texts.of(row))
                except Unwritable as error:
                    if self._stage is None and self._ask() is not statements:  # the types are those of before an ALTER
                        raise _Altered from error
                    raise RowRefused(line, error) from error
        arrays = [list(column) for column in zip(*made, strict=True)]
        touched = self._execute(getattr(statements, which), [*arrays, *statements.gate])
        if touched == 0 and self._stage is None and self._ask() is not statements:
            raise _Altered
        return touched

    # -- statements ---------------------------------------------------------------------------------------

    def _execute(self, statement: sql.Composed, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._driver.execute(statement, parameters).rowcount
        except psycopg.Error as error:
            code = error.diag.sqlstate or error.sqlstate
            if may_be_of_before_alter(error):
                self._known.statements = None
                if self._stage is None:  # the statement is of an earlier transaction: it says nothing about its rows
                    raise
            if code == CARDINALITY_VIOLATION:
                error.add_note(
                    f"{self._target.name}: two rows of one transaction ended at the same key, though they came with "
                    "different ones: a trigger changes the key. Make it in row= as it is to be stored"
                )
            elif code is not None and fault_of_error(error) is Fault.DATA:
                raise self._unknown(error) from error
            elif may_be_of_input(code):
                self._strategies.was_refused()  # by COPY the server names the value that it was reading
            raise

    def _unknown(self, cause: Exception) -> RowRefused:
        """A row is refused, and the server does not say which."""
        self._known.statements = None  # asks the server again next time
        self._strategies.was_refused()
        return RowRefused(1 if self._rows == 1 else None, cause)
