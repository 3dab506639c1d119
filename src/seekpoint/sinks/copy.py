"""COPY row by row, with errors that name the row; and values as COPY's text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain, repeat
from operator import length_hint
from typing import Any, NoReturn, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper, PyFormat, Transformer
from psycopg.copy import LibpqWriter
from sqlalchemy import Connection

from seekpoint.codecs.json import JsonFloat
from seekpoint.errors import ConfigError
from seekpoint.pipeline.sink import Row, RowRefused
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import Fault, fault_of_error
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.conversions import EXACT, Conversions
from seekpoint.sinks.encoders import Encoders, Unwritable
from seekpoint.sinks.event_values import EventRules
from seekpoint.sinks.insert import Inserts
from seekpoint.sinks.json_text import json_text
from seekpoint.sinks.session_tables import types_locked


def _formatter() -> Callable[..., Any] | None:
    """The private function that psycopg's ``write_row`` calls; None if this version of psycopg has no such function.

    Without that function only speed is lost. It is tried here, because a failure later would be blamed on a row.
    """
    text = bytearray()
    try:
        from psycopg._copy_base import format_row_text  # noqa: PLC0415 -- private

        format_row_text((1, None, "a\tb"), Transformer(), text)
    except Exception:  # noqa: BLE001 -- another version may raise anything
        return None
    return format_row_text if text == b"1\t\\N\ta\\tb\n" else None


_format = _formatter()


def driver_of(tx: Connection) -> psycopg.Connection[Any]:
    """The psycopg connection inside; raises ConfigError if another driver is used."""
    if isinstance(tx, HandlerConnection):
        return tx.driver
    driver = tx.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise ConfigError(f"COPY needs a psycopg connection, got {type(driver).__name__}")
    return driver


def writing_cursor(driver: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
    """A cursor with dumpers for dicts, enums and JSON numbers, for columns of any type."""
    cursor = driver.cursor()
    for kind, dumper in ((dict, _ObjectDumper), (JsonFloat, _DigitsDumper), (Enum, _EnumDumper)):
        cursor.adapters.register_dumper(kind, dumper)
    return cursor


class _ObjectDumper(Dumper):
    """A dict, as JSON."""

    def dump(self, obj: Any) -> Buffer:
        return json_text(obj, self.connection.info.encoding if self.connection else "utf-8").encode()


class _DigitsDumper(Dumper):
    """A JSON number, with the digits that the record has."""

    def dump(self, obj: Any) -> Buffer:
        return cast("JsonFloat", obj).text.encode()


class _EnumDumper(Dumper):
    """An enum member, by its value: psycopg's dumper writes its name."""

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._values = Transformer.from_context(context)

    def dump(self, obj: Any) -> Buffer | None:
        return self._values.get_dumper(obj.value, PyFormat.TEXT).dump(obj.value)


# Types that the connection dumps as writing_cursor() does. No containers: their items may need the cursor's dumpers.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, UUID})


class _QuietWriter(LibpqWriter):
    """Sends COPY's data. If our own error ends the COPY, the server repeats that error, and the copy is dropped."""

    def finish(self, exc: BaseException | None = None) -> None:
        with suppress(psycopg.Error) if exc is not None else nullcontext():
            super().finish(exc)


def begin_copy(
    cursor: psycopg.Cursor[Any],
    path: Sequence[str],
    columns: Sequence[str],
    *,
    by_insert: bool,
    encoding: str | None = None,
) -> AbstractContextManager[psycopg.Copy]:
    """COPY into these columns, or INSERT of the same text. ``encoding`` of the text: by default that of the session."""
    if by_insert:
        return psycopg.Copy(cursor, writer=Inserts(cursor, path, columns, encoding))
    statement = sql.SQL("COPY {} ({}) FROM STDIN{}").format(
        sql.Identifier(*path),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(f" (ENCODING '{encoding}')" if encoding else ""),
    )
    return cursor.copy(statement, writer=_QuietWriter(cursor))


def write_rows(copy: Any, rows: Iterator[Row]) -> None:
    """Write rows as ``copy.write_row()`` does, but in one loop that runs in C."""
    if _format is None:
        for data in filter(None, map(copy.formatter.write_row, rows)):
            copy.write(data)
        return
    text = bytearray()
    deque(map(_format, rows, repeat(copy.formatter.transformer), repeat(text)), maxlen=0)
    copy.write(text)


class Texts:
    """Dumps values as the text that COPY sends, so that each statement writes a value in the same way."""

    def __init__(
        self,
        cursor: psycopg.Cursor[Any],
        columns: Sequence[str],
        types: ColumnTypes,
        allowed: Conversions,
        *,
        event_rules: EventRules | None = None,
    ) -> None:
        self._transformer, self._columns = Transformer.from_context(cursor), columns
        self._encoders = Encoders(columns, types, allowed, cursor.connection, event_rules=event_rules)
        self._encoding = cursor.connection.info.encoding

    def of(self, row: Row) -> list[str | None]:
        """The row's values. Raises Unwritable."""
        (encoded,) = self._encoders.rows([row])
        return [self._text(name, value) for name, value in zip(self._columns, encoded, strict=True)]

    def _text(self, column: str, value: Any) -> str | None:
        if value is None:
            return None
        try:
            dumped = self._transformer.get_dumper(value, PyFormat.TEXT).dump(value)
            return None if dumped is None else bytes(dumped).decode(self._encoding)
        except Exception as error:  # dumpers may raise any error
            remedy = ": make the column jsonb, or convert the value in row=" if "cannot adapt" in str(error) else ""
            raise Unwritable(f"column {column!r}: {type(error).__name__}: {error}{remedy}") from error


def flat_texts(
    driver: psycopg.Connection[Any],
    columns: Sequence[str],
    types: ColumnTypes,
    allowed: Conversions,
    rows: Sequence[Row],
    *,
    most: int,
) -> Sequence[Buffer | None]:
    """The values of all rows, one after another, as :class:`Texts` writes them.

    Raises a dumper's error, or ValueError for a row of another width, a NUL, or more than ``most`` bytes.
    """
    if {*map(len, rows)} != {len(columns)}:
        raise ValueError("a row of another width")
    values = list(chain.from_iterable(Encoders(columns, types, allowed, driver).rows(rows)))
    context: AdaptContext = driver if _PLAIN.issuperset(map(type, values)) else writing_cursor(driver)
    texts = Transformer.from_context(context).dump_sequence(values, [PyFormat.TEXT] * len(values))
    if b"\0" in (text := b"".join(filter(None, texts))):
        raise ValueError("NUL: libpq would end the text there")
    if len(text) > most:
        raise ValueError("too many bytes")
    return texts


class _Copy:
    """A COPY in text format, begun with the first row; or INSERTs of the same rows."""

    def __init__(
        self,
        tx: Connection,
        path: Sequence[str],
        columns: Callable[[], Sequence[str] | None],
        types: ColumnTypes | None,
        allowed: Conversions,
        *,
        event_rules: EventRules | None,
        by_insert: bool,
    ) -> None:
        self._driver, self._path, self._columns, self._by_insert = driver_of(tx), path, columns, by_insert
        self._types, self._allowed, self._event_rules = types, allowed, event_rules
        self._locked = tx.locked if isinstance(tx, HandlerConnection) else None
        self._stack = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._line = 0

    def write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        copy = self._copy or self._begin()
        encoded = self._encode(rows)
        pending = iter(encoded)
        try:
            write_rows(copy, pending)
        except psycopg.Error as error:
            if error.sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
                # The driver refused the row. (A lost connection, which is no row's fault, is an OperationalError.)
                self._refuse(rows, length_hint(pending), error)
            raise
        except MemoryError:  # out of memory: no row's fault
            raise
        except Exception as error:  # noqa: BLE001 -- dumpers may raise anything, e.g. for a lone surrogate
            self._refuse(rows, length_hint(pending), error)
        self._line += len(rows)

    def _encode(self, rows: Sequence[Row]) -> Sequence[Row]:
        try:
            return self._encoders.rows(rows)
        except Unwritable:
            for number, row in enumerate(rows, self._line + 1):
                try:
                    self._encoders.rows([row])
                except Unwritable as error:
                    raise RowRefused(number, error) from error
            raise

    def _refuse(self, rows: Sequence[Row], following: int, error: Exception) -> NoReturn:
        """Raise RowRefused for the last row taken; ``following`` rows were taken after it."""
        number = len(rows) - following
        try:
            columns, types = self._columns() or (), self._types or {}
            texts = Texts(self._cursor, columns, types, self._allowed, event_rules=self._event_rules)
            texts.of(rows[number - 1])
        except Unwritable as named:
            raise RowRefused(self._line + number, named) from error
        raise RowRefused(self._line + number, error) from error

    def _begin(self) -> psycopg.Copy:
        columns = self._columns()
        if columns is None:
            raise ConfigError(f"COPY {'.'.join(self._path)}: the columns are not known")
        if self._types is None:
            self._types = types_locked(self._driver, self._path, self._locked).columns
        self._cursor = self._stack.enter_context(writing_cursor(self._driver))
        self._encoders = Encoders(columns, self._types, self._allowed, self._driver, event_rules=self._event_rules)
        copy = begin_copy(self._cursor, self._path, columns, by_insert=self._by_insert)
        self._copy = self._stack.enter_context(copy)
        return self._copy


def copy_error(error: psycopg.Error, path: Sequence[str], row_of: Callable[[int], int | None]) -> Exception:
    """RowRefused if a value caused the error, with the row that the server names; else the error as it is."""
    if (error.diag.sqlstate or error.sqlstate) is None or fault_of_error(error) is not Fault.DATA:
        return error
    # "COPY orders, line 7, column amount: ..."; the table's name is matched, because it may contain ", line 8" itself.
    named = re.search(rf"\bCOPY {re.escape(path[-1])}, line (\d+)", error.diag.context or "")
    return RowRefused(row_of(int(named[1])) if named else None, error)


@contextmanager
def open_copy(
    tx: Connection,
    path: Sequence[str],
    columns: Callable[[], Sequence[str] | None],
    types: ColumnTypes | None = None,
    allowed: Conversions = EXACT,
    *,
    event_rules: EventRules | None = None,
    by_insert: bool = False,
) -> Iterator[_Copy]:
    """COPY into ``path`` until the block ends, which waits for the server's answer.

    ``types`` are those of the table's columns; by default the server is asked for them. ``by_insert``: use INSERT,
    because the server refuses COPY if row security is active. Raises RowRefused for an error of one row, else the
    driver's error as it is.
    """
    copy: Any = _Copy(tx, path, columns, types, allowed, event_rules=event_rules, by_insert=by_insert)
    try:
        with copy._stack:  # noqa: SLF001 -- the end of the block ends the COPY
            yield copy
    except psycopg.Error as error:
        raise copy_error(error, path, lambda line: line) from error
