"""Statements with names and parts put into their braces, run on the driver's own connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.sinks.copy import driver_of

Composable = ident.Composable


def name(*parts: str) -> ident.Identifier:
    """A name, quoted."""
    return ident.Identifier(*parts)


def names(columns: Sequence[str], alias: str = "") -> ident.Composed:
    """Columns, quoted, separated by commas."""
    return ident.SQL(", ").join(name(alias, column) if alias else name(column) for column in columns)


def run(connection: Connection, statement: str, **parts: Composable) -> int:
    """Execute a statement with these parts in its braces; returns how many rows it touched."""
    return driver_of(connection).execute(ident.SQL(statement).format(**parts)).rowcount


def rows(connection: Connection, statement: str, **parts: Composable) -> list[tuple[Any, ...]]:
    """The rows that a query answers."""
    return driver_of(connection).execute(ident.SQL(statement).format(**parts)).fetchall()
