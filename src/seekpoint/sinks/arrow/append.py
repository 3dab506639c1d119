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
from seekpoint.records import Record
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.conversions import conversions
from seekpoint.sinks.table_writer import TableWriter


class AppendArrow(TableSink[V_contra, K_contra]):
    """Write each record's rows to ``table`` by COPY, as :class:`Append` does, but column by column, through Arrow.

    A record's value, or what ``row=`` makes of it, may be a whole table: a pyarrow ``Table`` or ``RecordBatch``, or
    any other library's that gives it by Arrow's protocol. All its rows are written, or its record is at fault. Its
    columns are ``columns`` (it may have others), or by default all that it has. Any other value is a row as in
    ``Append``, with the same parameters and the same result.

    Lists become Postgres arrays; structs, maps and lists of them JSON. So does whatever goes into a json or jsonb
    column, or into those named in ``json``. Times in nanoseconds that are no whole microseconds are refused.

    Needs the extra: ``arrow``.
    """

    def __init__(
        self,
        table: str | tuple[str, ...],
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
        """What a worker writes its rows with."""
        required()
        return ArrowWriter(self)


class ArrowWriter(TableWriter[AppendArrow[Any, Any]]):
    """Writes rows as they come; a record's row may be a whole table."""

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Open the COPY when the first rows are sent: only then are the columns known."""
        from seekpoint.sinks.arrow.copy import open_copies  # noqa: PLC0415 -- rows are made without a database driver
        from seekpoint.sinks.target_table import rerun_if_changed  # noqa: PLC0415

        with (
            rerun_if_changed(tx, self._sink.path),
            open_copies(tx, self._sink.path, lambda: self.written, self._sink.json, self._sink.conversions) as writer,
        ):
            yield writer

    def rows(self, record: Record[Any, Any]) -> Iterable[Row]:
        """Rows of one record, a whole table as one; raises whatever ``row=`` raises."""
        made = super().rows(record)
        if not self._sink.provenance:
            return made
        return [self._with_origin(row) if is_table(type(row[0])) else row for row in made]

    def _shape_of(self, kind: type, made: Any) -> Callable[[Any], Row]:
        return self._whole if is_table(kind) else super()._shape_of(kind, made)

    def _whole(self, given: Any) -> Row:
        """A record's table, with the columns that are wanted."""
        table = as_table(given)
        names = table.column_names
        if len(set(names)) < len(names):
            raise Poison(f"{self!r}: the table names a column twice: {', '.join(names)}")
        if self.columns is None:
            if not names:
                raise Poison(f"{self!r}: the table has no columns")
            return Whole(table)
        if missing := [name for name in self.columns if name not in names]:
            raise Poison(
                f"{self!r}: the table has no column {', '.join(map(repr, missing))}; it has {', '.join(names)}"
            )
        return Whole(table.select(list(self.columns)))

    def _with_origin(self, row: Row) -> Row:
        """The table with columns for where it came from."""
        table, *origin = row
        for name, value in zip(self._sink.provenance.values(), origin, strict=True):
            if name in table.column_names:
                raise Poison(f"{self!r}: the table has a column {name!r}, which is to take the record's provenance")
            table = table.append_column(name, required().repeat(value, table.num_rows))
        return Whole(table)

    def count(self, rows: Sequence[Row]) -> int:
        """How many rows of the table these are: one may be a whole Arrow table."""
        return sum(row[0].num_rows if isinstance(row, Whole) else 1 for row in rows)


def copy_into(
    tx: Connection,
    table: str | tuple[str, ...],
    rows: Any,
    *,
    columns: Sequence[str] | None = None,
    json: Collection[str] = (),
    round: bool = False,  # noqa: A002
    timezone: str | tzinfo | None = None,
) -> int:
    """Append the rows of an Arrow table to a table of the database, by one COPY; returns how many.

    ``rows`` is pyarrow's ``Table`` or ``RecordBatch``, or any library's that speaks Arrow's protocol; ``columns`` are
    those that are written, all by default. ``table``, ``json``, ``round`` and ``timezone``, and what becomes of lists
    and structs, are as for :class:`AppendArrow`. For use in a handler, with its ``tx``.

    Raises Poison for a value that cannot be written, ConfigError for a column that is not there, and the database's own
    errors.
    """
    given = as_table(rows)
    from seekpoint.sinks.arrow.copy import open_copies  # noqa: PLC0415 -- it needs the database driver
    from seekpoint.sinks.encoders import Unwritable  # noqa: PLC0415 -- as above

    if columns is not None:
        if missing := [name for name in columns if name not in given.column_names]:
            raise ConfigError(f"the Arrow table has no column {', '.join(map(repr, missing))}: {given.column_names}")
        given = given.select(list(columns))
    if not given.column_names:
        raise ConfigError("the Arrow table has no columns")
    path = tuple(table.split(".")) if isinstance(table, str) else tuple(table)
    allowed = conversions(f"copy_into({table!r})", round=round, timezone=timezone)
    try:
        with open_copies(tx, path, lambda: None, json, allowed) as copies:
            copies.send(given)
    except RowRefused as refused:
        if isinstance(refused.cause, Unwritable):
            raise Poison(str(refused.cause)) from refused.cause
        raise refused.cause from refused.cause.__cause__
    return int(given.num_rows)
