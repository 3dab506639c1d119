"""Reads the types of a table's columns, which decide how values are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from seekpoint.sinks.column_type import ColumnType, ColumnTypes

# The type of column a, or a domain's base type, with the modifier that applies.
BASE = """
    CROSS JOIN LATERAL (
        WITH RECURSIVE known AS (
            SELECT y.oid, y.typtype, a.atttypmod AS typmod, y.typbasetype, y.typtypmod
            FROM pg_type y WHERE y.oid = a.atttypid
            UNION ALL
            SELECT y.oid, y.typtype, d.typtypmod, y.typbasetype, y.typtypmod
            FROM known d JOIN pg_type y ON y.oid = d.typbasetype WHERE d.typtype = 'd'
        )
        SELECT * FROM known WHERE typtype <> 'd'
    ) base
"""
# The type of base's values; if base is an array, of its items.
ITEM = """
    CROSS JOIN LATERAL (
        SELECT CAST(y.oid AS bigint) AS item, y.oid <> base.oid AS is_array, CAST(y.typcategory AS text) AS category,
               CAST(y.typtype AS text) AS kind,
               (SELECT array_agg(CAST(l.enumlabel AS text) ORDER BY l.enumsortorder)
                FROM pg_enum l WHERE l.enumtypid = y.oid) AS labels
        FROM pg_type w LEFT JOIN pg_type i ON w.typcategory = 'A' AND i.oid = w.typelem
        JOIN pg_type y ON y.oid = coalesce(nullif(i.typbasetype, 0), i.oid, w.oid)
        WHERE w.oid = base.oid
    ) items
"""
# Whether INSERT and COPY do the same to table c: no view, no rule, no row security (COPY refuses it).
# relhasrules does not suffice: it stays true after the last rule was dropped, until the next VACUUM.
_RULED = "(c.relhasrules AND EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid))"
PLAIN = f"c.relkind IN ('r', 'p') AND NOT {_RULED} AND NOT row_security_active(c.oid)"
# How column a is declared: ``interval`` and ``interval hour`` have the same type, but read '10' differently.
_DECLARED = "CAST(a.atttypid AS text) || ' ' || a.atttypmod || ' ' || a.attndims"
COLUMN_TYPE = """format_type(a.atttypid, a.atttypmod) AS named, CAST(base.oid AS bigint) AS base, base.typmod,
    CASE WHEN is_array THEN greatest(a.attndims, 1) ELSE 0 END AS dimensions, item, category, items.kind, labels"""
_COLUMNS = sql.SQL(
    f"SELECT a.attname, {_DECLARED} AS declared, {COLUMN_TYPE} "  # noqa: S608
    f"FROM pg_attribute a {BASE} {ITEM} WHERE a.attrelid = to_regclass({{}}) AND a.attnum > 0 AND NOT a.attisdropped"
)
_LOCKABLE = (
    "SELECT relkind IN ('r', 'p') AND has_table_privilege(oid, 'INSERT') FROM pg_class WHERE oid = to_regclass(%s)"
)
# Raises (division by zero) if a column's declaration has changed, or if INSERT and COPY no longer do the same: a rule,
# a view under the table's name, row security.
SAME_TYPES = f"""
    SELECT 1 / CAST(array_agg({_DECLARED} ORDER BY a.attname) = %s::text[] AND bool_and({PLAIN}) AS int)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.oid = to_regclass(%s) AND a.attname = ANY(%s) AND a.attnum > 0
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a table's columns. ``declared`` is how each is declared; it changes if the column is altered."""

    declared: Mapping[str, str]
    columns: ColumnTypes
    casts: bool  # whether a cast from text reads every value as COPY does


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], tuple[bool, Types]]] = WeakKeyDictionary()


def types_now(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types:
    """The columns' types. Locks the table, if it may, so that no other session alters it during the transaction."""
    cache, name = _known.setdefault(driver, {}), tuple(path)
    cursor, quoted = driver.cursor(row_factory=tuple_row), sql.Identifier(*name).as_string(None)
    lockable = name in cache and cache[name][0]
    if not lockable:  # ask again: a table may have replaced a view, or the privilege was granted
        row = cursor.execute(_LOCKABLE, [quoted]).fetchone()
        lockable = row is not None and bool(row[0])
    query = _COLUMNS.format(sql.Literal(quoted))
    if lockable:  # in one round trip; COPY takes the same lock
        query = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE; {}").format(sql.Identifier(*name), query)
    cursor.execute(query, prepare=False)
    if lockable:
        cursor.nextset()
    types = _types(cursor.fetchall())
    cache[name] = lockable, types
    return types


def types_seen(driver: psycopg.Connection[Any], path: Sequence[str]) -> ColumnTypes:
    """The types of the columns, without a lock: for a check before the first record."""
    quoted = sql.Identifier(*path).as_string(None)
    cursor = driver.cursor(row_factory=tuple_row)
    return _types(cursor.execute(_COLUMNS.format(sql.Literal(quoted)), prepare=False).fetchall()).columns


def types_locked(driver: psycopg.Connection[Any], path: Sequence[str], locked: dict[Any, Any] | None) -> Types:
    """As :func:`types_now`, but read once while its lock is held. ``locked`` is the cache of a HandlerConnection.

    A name without a schema is read each time: another session may create a table that comes earlier in search_path.
    """
    name = tuple(path)
    if len(name) == 1:
        return types_now(driver, name)
    if locked is not None and (locked_types := locked.get(name)) is not None:
        cached: Types = locked_types
        return cached
    types = types_now(driver, name)
    if locked is not None and _known[driver][name][0]:
        locked[name] = types
    return types


def types_recalled(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types | None:
    """The types that this session read last, or None. The caller runs SAME_TYPES to make sure that they still hold."""
    cached = _known.get(driver, {}).get(tuple(path))
    return None if cached is None else cached[1]


def _types(rows: Sequence[tuple[Any, ...]]) -> Types:
    columns = {name: ColumnType(*attributes) for name, _, *attributes in rows}
    return Types(
        {name: declared for name, declared, *_ in rows},
        columns,
        not any(has_fields(column.base, column.typmod) for column in columns.values()),
    )


def has_fields(oid: int, typmod: int) -> bool:
    """Whether the type is like ``interval hour``: COPY reads '10' as hours, but a cast as seconds."""
    return oid in {1186, 1187} and typmod >= 0 and typmod >> 16 & 0x7FFF != 0x7FFF
