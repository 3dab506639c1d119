"""COPY, row by row, with errors that name the row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import JsonDumper
from sqlalchemy import Connection

from seekpoint.errors import ConfigError
from seekpoint.pipeline import Row, RowRefused
from seekpoint.policy import Fault, fault


class _Copy:
    """A COPY in text format, begun with the first row."""

    def __init__(self, tx: Connection, path: Sequence[str], columns: Callable[[], Sequence[str] | None]) -> None:
        driver = tx.connection.driver_connection
        if not isinstance(driver, psycopg.Connection):
            raise ConfigError(f"COPY needs a psycopg connection, got {type(driver).__name__}")
        self._driver, self._path, self._columns = driver, path, columns
        self._stack = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._line = 0

    def write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        copy = self._copy or self._begin()
        write_row = copy.write_row
        try:
            for row in rows:
                self._line += 1
                write_row(row)
        except psycopg.Error:
            raise
        except Exception as error:  # a lone surrogate, a datetime inside of JSON: the dumpers raise what they like
            raise RowRefused(self._line, error) from error

    def _begin(self) -> psycopg.Copy:
        columns = self._columns()
        if columns is None:
            raise ConfigError(f"COPY {'.'.join(self._path)}: the columns are not known")
        cursor = self._stack.enter_context(self._driver.cursor())
        cursor.adapters.register_dumper(dict, JsonDumper)  # a nested object goes to a json or jsonb column
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(*self._path), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        self._copy = self._stack.enter_context(cursor.copy(statement))
        return self._copy

    def refused(self, error: psycopg.Error) -> Exception:
        """The error with its row, where it is a row's fault: the server names the line, the client stops at it."""
        code = error.diag.sqlstate or error.sqlstate
        if code is None:
            # A value the client cannot adapt never reached the server; a lost connection is no row's fault.
            stopped_here = isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
            return RowRefused(self._line, error) if stopped_here else error
        if fault(code) is not Fault.DATA:
            return error
        # "COPY orders, line 7, column amount: ..."; by the table's own name, which may hold ", line 8" itself.
        named = re.search(rf"\bCOPY {re.escape(self._path[-1])}, line (\d+)", error.diag.context or "")
        return RowRefused(int(named[1]) if named else None, error)


@contextmanager
def open_copy(tx: Connection, path: Sequence[str], columns: Callable[[], Sequence[str] | None]) -> Iterator[_Copy]:
    """COPY into ``path`` until the block is left; leaving it waits for the server's answer.

    Raises RowRefused for an error of one row, else the driver's error as it is.
    """
    copy: Any = _Copy(tx, path, columns)
    try:
        with copy._stack:  # noqa: SLF001 -- the block's other half
            yield copy
    except psycopg.Error as error:
        raise copy.refused(error) from error
