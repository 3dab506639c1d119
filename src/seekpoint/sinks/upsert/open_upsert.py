"""Writes an upsert's rows of one transaction by one of three strategies; streams 100 or more as they are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seekpoint.pipeline.sink import Row, RowRefused, WentBack
from seekpoint.sinks.catalog import Layout
from seekpoint.sinks.dedupe import Target, dedupe, has_deletes
from seekpoint.sinks.upsert.direct_copy import DirectCopy
from seekpoint.sinks.upsert.open_merge import Altered, OpenMerge
from seekpoint.sinks.upsert.strategy import WriteStrategy
from seekpoint.sinks.upsert.temp_table import TempTable
from seekpoint.sinks.upsert.upsert_sql import UpsertSql


class _TurnedBackError(Exception):
    """There was a tombstone, which COPY into the table cannot apply."""


class OpenUpsert(OpenMerge[Target, UpsertSql]):
    """Gathers few rows for one statement; more rows are streamed by the write strategy that is chosen for them."""

    _copy: DirectCopy | TempTable | None = None

    def _undo(self, error: BaseException) -> None:
        if self._copy is not None:
            self._copy.undo(error)

    def write(self, rows: Sequence[Row]) -> None:
        self._rows += len(rows)
        if self._copy is None:
            if not rows or self._strategies.gathers(self._rows) or self._target_now().columns is None:
                self._few.extend(rows)
                return
            few, self._few = self._few, []
            self._copy = self._begin()
            if few:
                self._stream(self._copy, few)
        self._stream(self._copy, rows)

    def update(self, values: Mapping[str, Any]) -> bool:
        """Update these columns of the key's row; returns whether the row exists."""
        self._target, self._rows = self._target_now(), 1
        key = {name: values[name] for name in self._target.key}
        for _ in range(2):
            statements = self._cached()
            try:
                if self._unnest(
                    statements.update(tuple(values)), statements, tuple(values), [(*values.values(),)], [1]
                ):
                    return True
                self._require_no_step_back(statements, tuple(values), [(*values.values(),)], [1])
                return self._unnest(statements.stored, statements, tuple(key), [(*key.values(),)], [1]) > 0
            except Altered:
                continue
        return False

    def delete_all(self, values: Row) -> None:
        """Delete all rows that are not newer; ``values`` are those of the target's ``deletes``."""
        self._target, self._rows = self._target_now(), 1
        try:
            self._delete_all(values)
        except Altered:
            self._delete_all(values)

    def _delete_all(self, values: Row) -> None:
        statements = self._cached()
        self._unnest(statements.delete_all, statements, self._target.deletes, [values], [1])

    def _require_no_step_back(
        self, statements: UpsertSql, columns: Sequence[str], rows: Sequence[Row], lines: Sequence[int]
    ) -> None:
        """Raise RowRefused if a row was not written because its source position goes back."""
        target = self._target
        if not target.has_position:
            return
        indexes = [columns.index(name) for name in target.deletes]
        compared = [tuple(row[index] for index in indexes) for row in rows]
        arrays = self._arrays(statements, target.deletes, compared, lines)
        if row := self._driver.execute(statements.step_back, arrays).fetchone():
            number, before, position = row
            raise RowRefused(lines[number - 1], WentBack(target.order_by or "", before, position))

    def _stream(self, copy: DirectCopy | TempTable, rows: Sequence[Row]) -> None:
        if isinstance(copy, DirectCopy) and has_deletes(rows):
            copy.undo(_TurnedBackError())
            copy = self._turn_back(copy)
        copy.write(rows)

    def _begin(self) -> DirectCopy | TempTable:
        self._target = self._target_now()
        statements = self._ask()
        layout = statements.layout
        if self._strategies.choose(self._rows, deduped=True, direct=layout.direct) is WriteStrategy.COPY:
            return DirectCopy(self._tx, self._target, layout.types.columns)
        return self._staged(statements)

    def _turn_back(self, direct: DirectCopy) -> TempTable:
        """Write all rows to the temporary table, after COPY into the target table has failed."""
        self._strategies.met_a_conflict()
        self._fell_back = True
        self._copy = staged = self._staged(self._ask())
        for rows in direct.chunks:
            staged.write(rows)
        return staged

    def _finish(self) -> None:
        copy = self._copy
        if copy is None:
            if self._few:
                self._write_few()
        elif isinstance(copy, TempTable):
            self._wrote(WriteStrategy.TEMP_TABLE, *copy.finish())
        elif copy.close():
            self._wrote(WriteStrategy.COPY, self._rows)
        else:
            self._wrote(WriteStrategy.TEMP_TABLE, *self._turn_back(copy).finish())

    def _statements(self, layout: Layout) -> UpsertSql:
        return UpsertSql(self._target, layout)

    def _merge_few(self) -> None:
        rows, statements = self._few, self._cached()
        deduped = dedupe(self._target, rows, statements.layout.columns)
        only_deletes = not deduped.rows and deduped.is_deduped
        in_one = deduped.is_deduped and statements.layout.types.casts
        if (
            not only_deletes
            and self._strategies.choose(len(rows), deduped=in_one, direct=False) is WriteStrategy.TEMP_TABLE
        ):
            self._copy = staged = self._staged(self._ask())
            staged.write(rows)
            self._wrote(WriteStrategy.TEMP_TABLE, *staged.finish())
            return
        deletes = upserts = 0
        if deduped.deletes:
            columns, tombstones = self._target.deletes, deduped.deletes
            deletes = self._unnest(statements.delete, statements, columns, tombstones, deduped.delete_lines)
            if deletes < len(tombstones):
                self._require_no_step_back(statements, columns, tombstones, deduped.delete_lines)
        if deduped.rows:
            upserts = self._unnest(statements.insert, statements, self._columns(), deduped.rows, deduped.lines)
            if upserts < len(deduped.rows):
                self._require_no_step_back(statements, self._columns(), deduped.rows, deduped.lines)
        self._wrote(WriteStrategy.UNNEST, upserts, deletes)
