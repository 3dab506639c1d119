"""An open ``Accumulate``: rows are gathered, aggregated by key, and merged by one statement."""

from __future__ import annotations

from collections.abc import Sequence

from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.sinks.accumulate.accumulate_sql import AccumulateSql, looks_at_rows
from seekpoint.sinks.accumulate.aggregate import SumTarget, aggregate
from seekpoint.sinks.catalog import Layout
from seekpoint.sinks.upsert.open_merge import Altered, OpenMerge
from seekpoint.sinks.upsert.strategy import WriteStrategy
from seekpoint.sinks.upsert.temp_table import TempTable


class OpenAccumulate(OpenMerge[SumTarget, AccumulateSql]):
    """Merges all rows at the end, in key order, so that sessions lock rows in one order.

    Few keys are merged by one statement; many keys, and rows that the server must aggregate, by a temporary table.
    """

    _stage_copy: TempTable | None = None

    def _undo(self, error: BaseException) -> None:
        if self._stage_copy is not None:
            self._stage_copy.undo(error)

    def write(self, rows: Sequence[Row]) -> None:
        self._rows += len(rows)
        self._few.extend(rows)

    def _finish(self) -> None:
        if self._few:
            self._write_few()

    def _statements(self, layout: Layout) -> AccumulateSql:
        return AccumulateSql(self._target, layout, updates_first=looks_at_rows(self._tx, self._target))

    def _ask(self) -> AccumulateSql:
        statements = super()._ask()
        if not statements.updates_first and looks_at_rows(
            self._tx, self._target
        ):  # a trigger or constraint was added after the layout was read
            statements = self._known.statements = AccumulateSql(self._target, statements.layout)
        return statements

    def _has_null(self, rows: Sequence[Row]) -> bool:
        """Whether a lowest or highest value is null: a NOT NULL column refuses its INSERT, but not its UPDATE."""
        first = len(self._target.key) + len(self._target.add)
        return first < len(self._columns()) and any(None in row[first:] for row in rows)

    def _merge_few(self) -> None:
        # Many rows need the catalog in any case: read it first, so that they are aggregated for the current layout.
        is_known = self._strategies.gathers(self._rows) or self._stage is not None
        statements = self._cached() if is_known else self._ask()
        # The last statement was refused without naming a row: stage rows as they came, because COPY names the row.
        table_columns = statements.layout.columns
        aggregated = None if self._strategies.names_rows else aggregate(self._target, self._few, table_columns)
        rows = self._few if aggregated is None else aggregated
        is_merged = len(rows) < self._rows  # one line may then be the sum of several rows
        in_one = aggregated is not None and statements.layout.types.casts
        if self._strategies.choose(len(rows), deduped=in_one, direct=False) is WriteStrategy.UNNEST:
            # A single record is blamed for any error, so the error must be about the sum.
            is_exact = self._rows == 1 or self._has_null(rows)
            statement = statements.insert_exactly if is_exact else statements.insert
            lines = [None] * len(rows) if is_merged else range(1, len(rows) + 1)
            merged = self._unnest(statement, statements, self._columns(), rows, lines)
            self._wrote(WriteStrategy.UNNEST, merged)
            return
        if self._stage is None and self._ask() is not statements:
            raise Altered
        is_lone = self._rows == 1 or self._strategies.names_rows
        first, distinct = statements.updates_first or is_lone or self._has_null(rows), aggregated is not None
        staging = AccumulateSql(self._target, statements.layout, updates_first=first, has_distinct=distinct)
        try:
            self._stage_copy = staged = self._staged(staging)
            staged.write(rows)
            merged, _ = staged.finish()
        except RowRefused as refused:
            raise RowRefused(None if is_merged else refused.line, refused.cause) from refused
        self._wrote(WriteStrategy.TEMP_TABLE, merged)
