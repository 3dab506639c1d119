"""COPY into the session's temporary table, chunk by chunk; a statement then merges it into the table by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from psycopg import sql
from sqlalchemy import Connection

from seekpoint.pipeline.sink import Row, RowRefused, WentBack
from seekpoint.sinks.catalog import DELETED, LINE, Stage, build
from seekpoint.sinks.copy import driver_of, open_copy
from seekpoint.sinks.dedupe import Deleted, Offsets, has_deletes
from seekpoint.sinks.upsert.merge_sql import MergeSql

_BEHIND = 1 << 62  # added to explicit lines, so that they come after the lines that the stage numbers

Execute = Callable[[sql.Composed], int]


class TempTable:
    """Streams rows into a temporary table while the next rows are decoded; the server merges them, sorted by key.

    The temporary table's identity column numbers the rows before the first tombstone; this class numbers the later
    rows. Tombstones are written at the end, because they have other columns.
    """

    def __init__(self, tx: Connection, statements: MergeSql, stage: Stage, execute: Execute) -> None:
        target, layout = statements.target, statements.layout
        self._tx, self._target, self._statements, self._execute = tx, target, statements, execute
        self._columns, self._types = target.columns or target.deletes, layout.types.columns
        self._path = ("pg_temp", stage.name)
        self._offsets = Offsets(target, layout.columns) if target.offset and not target.order_by else None
        self._written = 0  # rows and tombstones
        self._lines: list[int] | None = None  # lines of the rows after the first tombstone
        self._gone: list[Row] = []
        build(tx, target, stage)
        self._open(self._columns)

    def _open(self, columns: Sequence[str]) -> None:
        self._stack = ExitStack()
        allowed, event_rules = self._target.conversions, self._target.event_rules
        copy = open_copy(self._tx, self._path, lambda: columns, self._types, allowed, event_rules=event_rules)
        self._copy = self._stack.enter_context(copy)

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows to the temporary table. Raises RowRefused, with the line, for a row that cannot be written."""
        if self._offsets is not None:
            self._offsets.look(rows)
        if self._lines is None and has_deletes(rows):
            self._close()
            self._open((*self._columns, LINE))
            self._lines = []
        if self._lines is None:
            self._copy_in(rows)
            self._written += len(rows)
        else:
            self._copy_in(self._numbered(rows, self._lines))

    def _numbered(self, rows: Sequence[Row], lines: list[int]) -> list[Row]:
        """The rows with their lines; tombstones are kept for the end."""
        numbered: list[Row] = []
        for line, row in enumerate(rows, self._written + 1):
            if type(row) is Deleted:
                self._gone.append((*row, _BEHIND + line, True))
            else:
                numbered.append((*row, _BEHIND + line))
                lines.append(line)
        self._written += len(rows)
        return numbered

    def finish(self) -> tuple[int, int]:
        """Merge the temporary table into the target; returns how many rows it wrote and deleted. Raises RowRefused."""
        self._close()
        if self._gone:
            self._open((*self._target.deletes, LINE, DELETED))
            self._lines = [row[-2] - _BEHIND for row in self._gone]
            self._copy_in(self._gone)
            self._close()
        self._require_no_step_back()
        deleted = self._execute(self._statements.delete_staged) if self._gone else 0
        merged = self._execute(self._statements.merge) if self._written > len(self._gone) else 0
        return merged, deleted

    def _require_no_step_back(self) -> None:
        """Raise RowRefused for the first row whose source position is lower than that of an earlier row."""
        query = self._statements.steps_back
        if query is not None and (row := driver_of(self._tx).execute(query, ()).fetchone()):
            line, before, position = row
            raise RowRefused(line, WentBack(self._target.order_by or "", before, position))

    def _copy_in(self, rows: Sequence[Row]) -> None:
        with self._placed():
            self._copy.write(rows)

    def _close(self) -> None:
        with self._placed():
            self._stack.close()

    def undo(self, error: BaseException) -> None:
        """Abort the COPY. Raises RowRefused instead of ``error`` if the server has named a row."""
        with self._placed():
            self._stack.__exit__(type(error), error, error.__traceback__)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Translate COPY's line in a RowRefused to the row's number among all rows."""
        try:
            yield
        except RowRefused as refused:
            line = refused.line if self._lines is None or refused.line is None else self._lines[refused.line - 1]
            raise RowRefused(line, refused.cause) from refused.cause
