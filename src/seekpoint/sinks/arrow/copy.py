"""COPY column by column: of Arrow tables, and of Python rows turned into columns; errors name the row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from sqlalchemy import Connection

from seekpoint.codecs.arrow import Whole
from seekpoint.errors import ConfigError
from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.sinks.arrow.arrow_types import holds
from seekpoint.sinks.arrow.copy_text import column_of, is_json, joined, lines
from seekpoint.sinks.column_type import JSON
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.copy import Texts, begin_copy, copy_error, driver_of, writing_cursor
from seekpoint.sinks.encoders import Unwritable, column_encoders
from seekpoint.sinks.session_tables import looked_up, types_now

AS_JSON = 114  # the type json: columns named in json= are written as JSON
AT_ONCE = 2000  # rows of Python's values that are turned into columns at a time


class ArrowCopies:
    """Sends rows and tables by COPY, in order; begins another COPY for a table with other columns.

    RowRefused counts rows and tables from 1; a table counts as one.
    """

    def __init__(
        self,
        tx: Connection,
        path: Sequence[str],
        columns: Callable[[], Sequence[str] | None],
        in_json: Collection[str] = (),
        allowed: Conversions = EXACT,
    ) -> None:
        self._tx, self._driver, self._path, self._columns, self._json = tx, driver_of(tx), path, columns, in_json
        self._allowed = allowed
        self._stack = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._into: tuple[str, ...] = ()  # the columns of the COPY that is open
        self._rows: list[Row] = []  # rows and tables that were taken and not yet sent
        self._sent = 0  # rows and tables
        self._lines: list[tuple[int, int]] = []  # the open COPY's lines, and the rows or tables in them
        self._first = 0  # rows and tables that were sent before the open COPY

    def write(self, rows: Sequence[Row]) -> None:
        """Take rows and tables. Raises RowRefused for any of those taken so far."""
        for row in rows:
            if isinstance(row, Whole):
                self.flush()
                self.send(row.table)
            else:
                self._rows.append(row)
        if len(self._rows) >= AT_ONCE:
            self.flush()

    def send(self, table: Any) -> None:
        """Send one table's rows."""
        copy = self._open(tuple(table.column_names))
        self._lines.append((table.num_rows, 1))
        self._sent += 1
        try:
            for piece in lines(table, self._by_value):
                copy.write(piece)
        except Unwritable as error:
            raise RowRefused(self._sent, error) from error

    def flush(self) -> None:
        """Send the rows that were taken."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        columns = self._columns()
        if columns is None:
            raise ConfigError(f"COPY {'.'.join(self._path)}: the columns are not known")
        copy = self._open(tuple(columns))
        try:
            by_column = zip(columns, zip(*rows, strict=True), strict=True)
            texts = [self._column(name, values) for name, values in by_column]
        except Unwritable as error:
            raise self._which(columns, rows, error) from error
        self._lines.append((len(rows), len(rows)))
        self._sent += len(rows)
        copy.write(joined(texts))

    def _column(self, name: str, values: Sequence[Any]) -> Any:
        encoder, column = self._encoders.get(name), self._types.get(name)
        encoded = values if encoder is None else encoder.values(values)
        texts = Texts(self._cursor, (name,), {}, self._allowed)
        return column_of(name, encoded, texts, None if column is None else column.base)

    def _by_value(self, name: str, array: Any) -> Any | None:
        """A table's column as COPY's text, if that depends on the values; None if the type alone decides."""
        column = self._types.get(name)
        if column is None or is_json(array) or holds(column, array.type, self._allowed):
            return None
        try:
            values = array.to_pylist(maps_as_pydicts="strict")
        except (pa.ArrowException, KeyError, ValueError) as error:  # a duplicate key in a map, nanoseconds
            raise Unwritable(f"column {name!r}: {type(error).__name__}: {error}") from error
        return self._column(name, values)

    def _which(self, columns: Sequence[str], rows: Sequence[Row], error: Unwritable) -> RowRefused:
        """The error for the first row that cannot be written."""
        for number, row in enumerate(rows, self._sent + 1):
            try:
                for name, value in zip(columns, row, strict=True):
                    self._column(name, [value])
            except Unwritable as named:
                return RowRefused(number, named)
        return RowRefused(None, error)

    def _open(self, columns: tuple[str, ...]) -> psycopg.Copy:
        """The COPY into these columns; an open COPY into others is ended first, with the server's answer."""
        if self._copy is not None and self._into == columns:
            return self._copy
        self._stack.close()
        self._into, self._lines, self._first = columns, [], self._sent
        types = types_now(self._driver, self._path).columns
        self._types = {
            name: column._replace(item=AS_JSON, dimensions=0)
            if name in self._json and column.item not in JSON
            else column
            for name, column in types.items()
        }
        self._encoders = column_encoders(columns, self._types, self._allowed, self._driver, encoding="utf-8")
        self._cursor = self._stack.enter_context(writing_cursor(self._driver))
        by_insert = looked_up(self._driver, self._path).is_secured
        copy = begin_copy(self._cursor, self._path, columns, by_insert=by_insert, encoding="UTF8")
        self._copy = self._stack.enter_context(copy)
        return self._copy

    def taken(self, line: int) -> int | None:
        """The number of the row or table that a line of the open COPY belongs to."""
        index = self._first
        for count, taken in self._lines:
            if line <= count:
                return index + (line if taken == count else 1)
            line, index = line - count, index + taken
        return None


@contextmanager
def open_copies(
    tx: Connection,
    path: Sequence[str],
    columns: Callable[[], Sequence[str] | None],
    in_json: Collection[str] = (),
    allowed: Conversions = EXACT,
) -> Iterator[ArrowCopies]:
    """COPY into ``path`` until the block ends, which waits for the server's answer.

    Raises RowRefused for an error of one row or table, else the driver's error as it is.
    """
    copies: Any = ArrowCopies(tx, path, columns, in_json, allowed)
    try:
        with copies._stack:  # noqa: SLF001 -- the end of the block ends the COPY
            yield copies
            copies.flush()
    except psycopg.Error as error:
        raise copy_error(error, path, copies.taken) from error
