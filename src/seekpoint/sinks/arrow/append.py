"""AppendArrow: every record becomes new rows, written column by column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from typing import Any

from sqlalchemy import Connection

from seekpoint.codecs.arrow import Whole, as_table, is_table, required
from seekpoint.errors import ConfigError, Poison
from seekpoint.pipeline.sink import K_contra, Row, RowRefused, SinkWriter, V_contra, Writer
from seekpoint.pipeline.table_path import TableName, TableOfTopic, shown_table, table_path
from seekpoint.records import AnyRecord, Record
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.conversions import conversions
from seekpoint.sinks.names import require_whole_names
from seekpoint.sinks.table_writer import TableWriter


class AppendArrow(TableSink[V_contra, K_contra]):
    """Write each record's rows to ``table`` by COPY, as :class:`Append` does, but column by column, through Arrow.

    A record's value, or the result of ``row=``, may be a whole table: a pyarrow ``Table`` or ``RecordBatch``, or a
    table of any library with Arrow's PyCapsule interface. All rows of the table are written, or the record fails.
    ``columns`` selects from its columns; by default all are written. Any other value is a row, and is written as by
    ``Append``, with the same parameters.

    Lists become Postgres arrays; structs, maps and lists of them become JSON, as does every value for a json or jsonb
    column, or one named in ``json``. Times in nanoseconds are refused unless they are whole microseconds.

    Needs the extra: ``arrow``.
    """

    def __init__(
        self,
        table: str | tuple[str, ...] | TableOfTopic,
        *,
        columns: Sequence[str] | None = None,
        row: Callable[[Record[V_contra, K_contra]], Any] | None = None,
        rows: Callable[[Record[V_contra, K_contra]], Iterable[Any]] | None = None,
        topics: Collection[str] | None = None,
        provenance: Mapping[str, str] | Sequence[str] | None = None,
        json: Collection[str] = (),
        round: bool = False,  # noqa: A002
        timezone: str | tzinfo | None = None,
    ) -> None:
        super().__init__(
            table,
            columns=columns,
            row=row,
            rows=rows,
            topics=topics,
            provenance=provenance,
            round=round,
            timezone=timezone,
        )
        if isinstance(json, str):
            raise ConfigError(f"{self!r}: json= takes several names: json=[{json!r}]")
        self.json = frozenset(json)

    def writer(self) -> SinkWriter[V_contra, K_contra]:
        """A writer for one worker. Raises ConfigError without pyarrow."""
        required()
        return ArrowWriter(self)


class ArrowWriter(TableWriter[AppendArrow[Any, Any]]):
    """Writes rows as they come; a record's row may be a whole table."""

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Open the COPY when the first rows are sent: only then are the columns known."""
        from seekpoint.sinks.altered_table import rerun_if_changed  # noqa: PLC0415
        from seekpoint.sinks.arrow.copy import open_copies  # noqa: PLC0415 -- rows are made without a database driver

        with (
            rerun_if_changed(tx, self._sink.path),
            open_copies(tx, self._sink.path, lambda: self.written, self._sink.json, self._sink.conversions) as writer,
        ):
            yield writer

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record; a whole table counts as one. Raises the errors of ``row=``."""
        rows = super().rows(record)
        return self._tables_with_origin(rows) if self._sink.provenance else rows

    def _shape_of(self, kind: type, value: Any) -> Callable[[Any], Row]:
        return self._whole if is_table(kind) else super()._shape_of(kind, value)

    def _whole(self, value: Any) -> Row:
        """A record's table, reduced to the selected columns."""
        table = as_table(value)
        names = table.column_names
        if len(set(names)) < len(names):
            raise Poison(f"{self!r}: the Arrow table has two columns of one name: {', '.join(names)}")
        if self.columns is None:
            if not names:
                raise Poison(f"{self!r}: the table has no columns")
            return Whole(table)
        if missing := [name for name in self.columns if name not in names]:
            raise Poison(
                f"{self!r}: the table has no column {', '.join(map(repr, missing))}; it has {', '.join(names)}"
            )
        return Whole(table.select(list(self.columns)))

    def _with_origins(self, rows: list[Row], records: Sequence[AnyRecord]) -> list[Row]:
        rows = super()._with_origins(rows, records)
        return self._tables_with_origin(rows) if self._sink.provenance else rows

    def _tables_with_origin(self, rows: Iterable[Row]) -> list[Row]:
        return [self._with_origin(row) if is_table(type(row[0])) else row for row in rows]

    def _with_origin(self, row: Row) -> Row:
        """The table with its provenance columns."""
        table, *origin = row
        for name, value in zip(self._sink.provenance.values(), origin, strict=True):
            if name in table.column_names:
                raise Poison(
                    f"{self!r}: the table has a column {name!r}, and provenance= writes one of this name: select the "
                    "others with columns=, or give the provenance another name"
                )
            table = table.append_column(name, required().repeat(value, table.num_rows))
        return Whole(table)

    def count(self, rows: Sequence[Row]) -> int:
        """The number of rows, with those inside whole Arrow tables."""
        return sum(row[0].num_rows if isinstance(row, Whole) else 1 for row in rows)


def copy_into(
    tx: Connection,
    table: TableName,
    rows: Any,
    *,
    columns: Sequence[str] | None = None,
    json: Collection[str] = (),
    round: bool = False,  # noqa: A002
    timezone: str | tzinfo | None = None,
) -> int:
    """Append the rows of an Arrow table to a table of the database, by one COPY; returns their number.

    ``rows`` is a pyarrow ``Table`` or ``RecordBatch``, or a table of any library with Arrow's PyCapsule interface;
    ``columns`` selects from its columns, by default all. ``table``, ``json``, ``round`` and ``timezone``, and the
    conversion of lists and structs, are as for :class:`AppendArrow`. For use in a handler, with its ``tx``.

    Raises Poison for a value that cannot be written, ConfigError for a missing column, and the database's errors.
    """
    arrow_table = as_table(rows)
    from seekpoint.sinks.arrow.copy import open_copies  # noqa: PLC0415 -- it needs the database driver
    from seekpoint.sinks.encoders import Unwritable  # noqa: PLC0415 -- as above

    if columns is not None:
        if missing := [name for name in columns if name not in arrow_table.column_names]:
            raise ConfigError(
                f"the Arrow table has no column {', '.join(map(repr, missing))}; it has {arrow_table.column_names}"
            )
        arrow_table = arrow_table.select(list(columns))
    if not arrow_table.column_names:
        raise ConfigError("the Arrow table has no columns")
    path = table_path("copy_into", table)
    require_whole_names("copy_into", [*path, *arrow_table.column_names])
    allowed = conversions(f"copy_into({shown_table(table)})", round=round, timezone=timezone)
    try:
        with open_copies(tx, path, lambda: None, json, allowed) as copies:
            copies.send(arrow_table)
    except RowRefused as refused:
        if isinstance(refused.cause, Unwritable):
            raise Poison(str(refused.cause)) from refused.cause
        raise refused.cause from refused.cause.__cause__
    return int(arrow_table.num_rows)
