"""SQL templates whose braces take names, values and other SQL, run on the psycopg connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.copy import driver_of

Composable = ident.Composable
# SQL; a tuple is a name; anything else is a value
Part = Composable | tuple[str, ...] | str | int | float | list[int] | list[str] | None


def name(*parts: str) -> ident.Identifier:
    """A name, quoted."""
    return ident.Identifier(*parts)


def names(columns: Sequence[str], alias: str = "") -> ident.Composed:
    """Columns, quoted, separated by commas."""
    return ident.SQL(", ").join(name(alias, column) if alias else name(column) for column in columns)


def regclass(path: tuple[str, ...]) -> ident.Composed:
    """The table, sequence or view of this name as a value of type regclass."""
    return composed("{path}::regclass", path=quoted(*path))


def composed(statement: str, **parts: Part) -> ident.Composed:
    """SQL with these parts for its braces: a tuple is a name, anything else that is not SQL is a value."""
    return ident.SQL(statement).format(**{key: _sql(part) for key, part in parts.items()})


def _sql(part: Part) -> Composable:
    if isinstance(part, tuple):
        return ident.Identifier(*part)
    return part if isinstance(part, Composable) else ident.Literal(part)


def run(connection: Connection, statement: str, **parts: Part) -> int:
    """Execute a statement with these parts for its braces; returns the number of affected rows."""
    return driver_of(connection).execute(composed(statement, **parts)).rowcount


def rows(connection: Connection, statement: str, **parts: Part) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return driver_of(connection).execute(composed(statement, **parts)).fetchall()


class Statements:
    """Statements on one connection that have some parts in common."""

    def __init__(self, connection: Connection, **parts: Part) -> None:
        self.connection, self.parts = connection, parts

    def run(self, statement: str, **more: Part) -> int:
        """Execute a statement; returns the number of affected rows."""
        return run(self.connection, statement, **self.parts | more)

    def rows(self, statement: str, **more: Part) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return rows(self.connection, statement, **self.parts | more)

    def value(self, statement: str, **more: Part) -> Any:
        """The first column of a query's only row."""
        [(value, *_)] = self.rows(statement, **more)
        return value
