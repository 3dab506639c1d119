"""One opening of an upsert: rows are gathered, folded, and taken to the table by one of three roads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from seekpoint.pipeline import Row, RowRefused
from seekpoint.policy import Fault, fault
from seekpoint.sinks.copy import Texts, Unwritable, driver_of, open_copy, writing_cursor
from seekpoint.sinks.fold import Deleted, Folded, Target, fold
from seekpoint.sinks.layout import DELETED, LINE, Layout, Stage, build, survey
from seekpoint.sinks.roads import SMALL, Road, Roads, Wrote
from seekpoint.sinks.statements import Statements

# Another unique index may be looked at before the key's: then a row that is an update fails on that one, too.
_CONFLICTS = frozenset({"23505", "23P01"})


class Known:
    """A table's layout and statements, kept from one transaction to the next."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._layout: Layout | None = None
        self._statements: Statements | None = None

    def recall(self, target: Target) -> tuple[Layout, Statements] | None:
        """What was learned last; the statements themselves notice if it is no longer true."""
        if self._layout is None or self._statements is None or self._target != target:
            return None
        return self._layout, self._statements

    def learn(self, target: Target, layout: Layout) -> Statements:
        """Take over what the server said."""
        if self._statements is None or (self._target, self._layout) != (target, layout):
            self._target, self._layout, self._statements = target, layout, Statements(target, layout)
        return self._statements

    def forget(self) -> None:
        """Ask the server again next time."""
        self._layout = None


class _Altered(Exception):  # noqa: N818 -- control: nothing was written, the rows are run again
    """The table is not what it was when the statement was made."""


class Gathered:
    """Takes rows until it is flushed. Nothing reaches the server before."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)


class Flush:
    """Brings gathered rows to the table, in a transaction that is open."""

    def __init__(self, tx: Connection, target: Target, known: Known, roads: Roads) -> None:
        self._tx, self._target, self._known, self._roads = tx, target, known, roads
        self._driver = driver_of(tx)
        self._stage: Stage | None = None
        self._gathered = 0

    def run(self, rows: Sequence[Row]) -> None:
        """Write them. Raises RowRefused where one is refused, with its line where that is known."""
        try:
            self._run(rows)
        except _Altered:
            self._run(rows)

    def _run(self, rows: Sequence[Row]) -> None:
        self._gathered = len(rows)
        recalled = self._known.recall(self._target) if len(rows) < SMALL else None
        layout, statements = recalled or self._ask()
        folded = fold(self._target, rows, layout.columns)
        changed = len(folded.rows) + len(folded.deletes)
        road = self._roads.choose(changed, folded=folded.is_folded, direct=layout.direct)
        if road is not Road.UNNEST and self._stage is None:
            layout, statements = self._ask()
            folded = fold(self._target, rows, layout.columns)
        fell_back = False
        if folded.is_folded:
            self._delete(statements, folded)
            if folded.rows:
                fell_back = self._upsert(road, statements, folded)
        else:
            self._stage_all(statements, folded)
        self._roads.wrote(
            Wrote(
                road=Road.STAGE if fell_back else road,
                rows=len(rows),
                upserts=len(folded.rows),
                deletes=len(folded.deletes),
                fell_back=fell_back,
                folded_by="client" if folded.is_folded else "server",
                pooled=self._stage is not None and self._stage.pooled,
            )
        )

    def _ask(self) -> tuple[Layout, Statements]:
        layout, self._stage = survey(self._tx, self._target)
        return layout, self._known.learn(self._target, layout)

    # -- roads --------------------------------------------------------------------------------------------

    def _upsert(self, road: Road, statements: Statements, folded: Folded) -> bool:
        """Write the rows; True if COPY into the table was tried in vain."""
        if road is Road.UNNEST:
            self._unnest("insert", statements, folded.rows, folded.lines)
            return False
        if road is Road.COPY and self._copied(folded):
            return False
        assert self._target.columns is not None
        self._copy_to_stage(self._target.columns, folded.rows, folded.lines)
        self._execute(statements.merge)
        return road is Road.COPY

    def _copied(self, folded: Folded) -> bool:
        """COPY into the table itself; False if one of the keys is there already, with nothing written."""
        try:
            with (
                self._tx.begin_nested(),
                self._lines(folded.lines),
                open_copy(self._tx, self._target.path, self._columns) as copy,
            ):
                copy.write(folded.rows)
        except RowRefused as refused:
            if getattr(refused.cause, "sqlstate", None) not in _CONFLICTS:
                raise
            self._roads.met_a_conflict()
            return False
        return True

    def _stage_all(self, statements: Statements, folded: Folded) -> None:
        """Let the server fold: everything that came, numbered, tombstones among the rows."""
        assert self._target.columns is not None
        columns = self._target.columns
        numbered = [
            (*(self._filled(row) if type(row) is Deleted else row), line, type(row) is Deleted)
            for line, row in zip(folded.lines, folded.rows, strict=True)
        ]
        self._copy_to_stage((*columns, LINE, DELETED), numbered, folded.lines)
        if any(row[-1] for row in numbered):
            self._execute(statements.delete_folded)
        self._execute(statements.merge_folded)

    def _filled(self, row: Row) -> Row:
        given = dict(zip(self._target.gone, row, strict=True))
        return tuple(given.get(name) for name in self._columns())

    def _delete(self, statements: Statements, folded: Folded) -> None:
        if folded.deletes:
            self._unnest("delete", statements, folded.deletes, folded.delete_lines)

    # -- statements ---------------------------------------------------------------------------------------

    def _columns(self) -> tuple[str, ...]:
        assert self._target.columns is not None
        return self._target.columns

    def _unnest(self, which: str, statements: Statements, rows: Sequence[Row], lines: Sequence[int]) -> None:
        with writing_cursor(self._driver) as cursor:
            texts = Texts(cursor, self._columns() if which == "insert" else self._target.gone)
            made = []
            for line, row in zip(lines, rows, strict=True):
                try:
                    made.append(texts.of(row))
                except Unwritable as error:
                    raise RowRefused(line, error) from error
        arrays = [list(column) for column in zip(*made, strict=True)]
        touched = self._execute(getattr(statements, which), [*arrays, *statements.gate])
        if touched == 0 and self._stage is None and self._ask()[1] is not statements:
            raise _Altered

    def _copy_to_stage(self, columns: Sequence[str], rows: Sequence[Row], lines: Sequence[int]) -> None:
        assert self._stage is not None
        build(self._tx, self._target, self._stage)
        with self._lines(lines), open_copy(self._tx, ("pg_temp", self._stage.name), lambda: columns) as copy:
            copy.write(rows)

    @contextmanager
    def _lines(self, lines: Sequence[int]) -> Iterator[None]:
        """A line of the COPY is the row that came at that place."""
        try:
            yield
        except RowRefused as refused:
            if refused.line is None:
                raise self._unknown(refused.cause) from refused.cause
            raise RowRefused(lines[refused.line - 1], refused.cause) from refused.cause

    def _execute(self, statement: sql.Composed, parameters: Sequence[Any] = ()) -> int:
        try:
            return self._driver.execute(statement, parameters).rowcount
        except psycopg.Error as error:
            code = error.diag.sqlstate or error.sqlstate
            if code == "21000":  # cardinality_violation
                error.add_note(
                    f"{self._target.name}: two rows of one transaction ended at the same key, though they came with "
                    "different ones: a trigger changes the key. Make it in row= as it is to be stored"
                )
            elif code is not None and fault(code) is Fault.DATA:
                raise self._unknown(error) from error
            raise

    def _unknown(self, cause: Exception) -> RowRefused:
        """A row is refused, and the server does not say which."""
        self._known.forget()
        self._roads.was_refused()
        return RowRefused(1 if self._gathered == 1 else None, cause)
