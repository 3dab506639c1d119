"""INSERT instead of COPY, which the server refuses if row security is active."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import sql
from psycopg.copy import Writer

ROWS, PARAMETERS = 500, 60_000  # most rows of one statement; the protocol allows 65,535 parameters

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Inserts(Writer):
    """Takes COPY's text and writes its rows by INSERT, so that both statements write values in the same way."""

    def __init__(
        self, cursor: psycopg.Cursor[Any], path: Sequence[str], columns: Sequence[str], encoding: str | None = None
    ) -> None:
        self._cursor, self._path, self._columns = cursor, tuple(path), tuple(columns)
        self._encoding = encoding or cursor.connection.info.encoding
        self._most = max(1, min(ROWS, PARAMETERS // len(self._columns)))
        self._rest = b""
        self._rows: list[list[str | None]] = []

    def write(self, data: Any) -> None:
        """Take lines, of which the last may be incomplete, and write those that fill a statement."""
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        for line in lines:
            self._rows.append([_value(field) for field in line.decode(self._encoding).split("\t")])
            if len(self._rows) == self._most:
                self._flush()

    def finish(self, exc: BaseException | None = None) -> None:
        """Write the remaining rows, unless there was an error."""
        if exc is None:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            statement = insert(self._path, self._columns, len(rows))
            # Never prepared: a prepared statement keeps the parameters' types even if the table is altered.
            self._cursor.execute(statement, [value for row in rows for value in row], prepare=False)


def _value(field: str) -> str | None:
    """The value that COPY would read."""
    if field == "\\N":
        return None
    return _ESCAPED.sub(lambda escape: _MEANT.get(escape[1], escape[1]), field) if "\\" in field else field


@lru_cache(maxsize=256)
def insert(path: tuple[str, ...], columns: tuple[str, ...], rows: int = 1) -> str:
    """The INSERT statement. Its parameters are untyped text, which the server reads as values of the column's type."""
    row = sql.SQL("({})").format(sql.SQL(", ").join([sql.SQL("%s")] * len(columns)))
    named = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES {}").format(
        sql.Identifier(*map(percent_doubled, path)),
        sql.SQL(", ").join(sql.Identifier(percent_doubled(name)) for name in columns),
        sql.SQL(", ").join([row] * rows),
    )
    return named.as_string()


def percent_doubled(text: str) -> str:
    """The text with ``%`` doubled: in a statement with parameters, a single ``%`` begins a placeholder."""
    return text.replace("%", "%%")
