"""COPY of columns: Arrow's tables, and rows of Python's values turned into columns; errors name the row."""

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
from seekpoint.sinks.arrow.copy_text import column_of, is_json, joined, lines
from seekpoint.sinks.arrow.exact_types import holds
from seekpoint.sinks.column_type import JSON
from seekpoint.sinks.column_types import types_now
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.copy import Texts, begin_copy, copy_error, driver_of, writing_cursor
from seekpoint.sinks.encoders import ColumnEncoder, Unwritable, needs_look
from seekpoint.sinks.target_table import recalled

AS_JSON = 114  # how a column that json= names is written
AT_ONCE = 2000  # rows of Python's values that are turned into columns at a time


class ArrowCopies:
    """Takes rows and tables, in order, and sends them by COPY: by a new one where a table has other columns.

    RowRefused counts what was taken, from 1: a table is one.
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
        self._rows: list[Row] = []  # taken, and not yet sent
        self._sent = 0  # how many of what was taken are sent
        self._lines: list[tuple[int, int]] = []  # of the open COPY: so many lines, for so many of what was taken
        self._first = 0  # how many were sent before it

    def write(self, rows: Sequence[Row]) -> None:
        """Take these; raises RowRefused for one of those taken so far."""
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
        """A whole table's column as COPY's text, where its values decide; None where its type does."""
        column = self._types.get(name)
        if column is None or is_json(array) or holds(column, array.type, self._allowed):
            return None
        try:
            values = array.to_pylist(maps_as_pydicts="strict")
        except (pa.ArrowException, KeyError, ValueError) as error:  # a map's key twice, nanoseconds
            raise Unwritable(f"column {name!r}: {type(error).__name__}: {error}") from error
        return self._column(name, values)

    def _which(self, columns: Sequence[str], rows: Sequence[Row], error: Unwritable) -> RowRefused:
        """The first of the rows that cannot be written."""
        for number, row in enumerate(rows, self._sent + 1):
            try:
                for name, value in zip(columns, row, strict=True):
                    self._column(name, [value])
            except Unwritable as named:
                return RowRefused(number, named)
        return RowRefused(None, error)

    def _open(self, columns: tuple[str, ...]) -> psycopg.Copy:
        """The COPY into these columns; one into others ends first, with the server's answer."""
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
        self._encoders = {
            name: ColumnEncoder(name, column, self._allowed, self._driver.adapters, "utf-8")
            for name, column in self._types.items()
            if name in columns and needs_look(column, self._allowed)
        }
        self._cursor = self._stack.enter_context(writing_cursor(self._driver))
        by_insert = recalled(self._tx, self._path).is_secured
        copy = begin_copy(self._cursor, self._path, columns, by_insert=by_insert, encoding="UTF8")
        self._copy = self._stack.enter_context(copy)
        return self._copy

    def taken(self, line: int) -> int | None:
        """Which of what was taken the open COPY's line belongs to."""
        at = self._first
        for count, taken in self._lines:
            if line <= count:
                return at + (line if taken == count else 1)
            line, at = line - count, at + taken
        return None


@contextmanager
def open_copies(
    tx: Connection,
    path: Sequence[str],
    columns: Callable[[], Sequence[str] | None],
    in_json: Collection[str] = (),
    allowed: Conversions = EXACT,
) -> Iterator[ArrowCopies]:
    """Copies into ``path`` until the block is left; leaving it waits for the server's answer.

    Raises RowRefused for an error of one row or table, else the driver's error as it is.
    """
    copies: Any = ArrowCopies(tx, path, columns, in_json, allowed)
    try:
        with copies._stack:  # noqa: SLF001 -- the block's other half
            yield copies
            copies.flush()
    except psycopg.Error as error:
        raise copy_error(error, path, copies.taken) from error
