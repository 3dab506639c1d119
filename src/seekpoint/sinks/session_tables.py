"""What a session remembers about the tables that its sinks write: the table that a name refers to, and its columns'
types.

Both may be outdated: another session may alter the table, or replace it under its name. Types hold while the table is
locked; otherwise a statement checks them (``SAME_TYPES``, ``GATE``), or an error of the table leads to :func:`forget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from seekpoint.sinks.column_types import PLAIN, Types, read_types

_LOOK = f"""
SELECT {PLAIN}, c.oid::text || ' ' || c.xmin::text, row_security_active(c.oid),
       c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'INSERT')
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class TableLookup:
    """The table that a name refers to. ``state`` changes if the table is altered, or replaced under its name."""

    is_plain: bool = False
    state: str | None = None
    is_secured: bool = False  # row security is active for this role: the server refuses COPY
    is_lockable: bool = False


@dataclass(slots=True)
class SessionTable:
    """A table as this session last read it; None for parts that it has not read."""

    lookup: TableLookup | None = None
    types: Types | None = None


_tables: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], SessionTable]] = WeakKeyDictionary()


def session_table(driver: psycopg.Connection[Any], path: Sequence[str]) -> SessionTable:
    """The session's memory of the table; no query is sent."""
    return _tables.setdefault(driver, {}).setdefault(tuple(path), SessionTable())


def forget(driver: psycopg.Connection[Any], path: Sequence[str]) -> None:
    """Forget the table, because it has changed."""
    _tables.get(driver, {}).pop(tuple(path), None)


def looked_up(driver: psycopg.Connection[Any], path: Sequence[str]) -> TableLookup:
    """The table that the name referred to when this session first looked it up; later calls send no query."""
    table = session_table(driver, path)
    if table.lookup is None:
        cursor = driver.cursor(row_factory=tuple_row)
        row = cursor.execute(_LOOK, [sql.Identifier(*path).as_string(None)]).fetchone()
        table.lookup = TableLookup() if row is None else TableLookup(*row)
    return table.lookup


def types_now(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types:
    """The columns' types. Locks the table, if the role may, so that no session alters it during the transaction."""
    table = session_table(driver, path)
    # Try again: a table may have replaced a view, or the privilege was granted.
    if not looked_up(driver, path).is_lockable:
        table.lookup = None
    table.types = read_types(driver, path, lock=looked_up(driver, path).is_lockable, known=table.types)
    return table.types


def types_locked(driver: psycopg.Connection[Any], path: Sequence[str], locked: set[tuple[str, ...]] | None) -> Types:
    """As :func:`types_now`, but reads once per lock. ``locked`` are the tables that a HandlerConnection has locked.

    A name without a schema is read each time: another session may create a table that comes earlier in search_path.
    """
    name = tuple(path)
    if locked is None or len(name) == 1:
        return types_now(driver, name)
    table = session_table(driver, name)
    if name in locked and table.types is not None:
        return table.types
    types = types_now(driver, name)
    if table.lookup is not None and table.lookup.is_lockable:
        locked.add(name)
    return types
