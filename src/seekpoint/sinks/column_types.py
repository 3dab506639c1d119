"""The types of a table's columns: they decide how a value is written, and what a cast reads otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from seekpoint.sinks.column_type import ColumnType, ColumnTypes

# Of the column a its base type, which is another one for a domain, with the modifier that counts.
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
# Of base: what its values are, or of an array its items.
ITEM = """
    CROSS JOIN LATERAL (
        SELECT CAST(y.oid AS bigint) AS item, y.oid <> base.oid AS is_array, CAST(y.typcategory AS text) AS category,
               CAST(y.typtype AS text) AS item_kind,
               (SELECT array_agg(CAST(l.enumlabel AS text) ORDER BY l.enumsortorder)
                FROM pg_enum l WHERE l.enumtypid = y.oid) AS labels
        FROM pg_type w LEFT JOIN pg_type i ON w.typcategory = 'A' AND i.oid = w.typelem
        JOIN pg_type y ON y.oid = coalesce(nullif(i.typbasetype, 0), i.oid, w.oid)
        WHERE w.oid = base.oid
    ) items
"""
# Of the table c: whether INSERT and COPY do alike. No rule, no row security (COPY refuses it), and no view.
# relhasrules stays true after the last rule was dropped, until the next VACUUM.
_RULED = "(c.relhasrules AND EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid))"
PLAIN = f"c.relkind IN ('r', 'p') AND NOT {_RULED} AND NOT row_security_active(c.oid)"
# Of the column a, how it is declared: ``interval`` and ``interval hour`` have the same type, and read '10' otherwise.
_DECLARED = "CAST(a.atttypid AS text) || ' ' || a.atttypmod || ' ' || a.attndims"
COLUMN_TYPE = """format_type(a.atttypid, a.atttypmod) AS named, CAST(base.oid AS bigint) AS base, base.typmod,
    CASE WHEN is_array THEN greatest(a.attndims, 1) ELSE 0 END AS dimensions, item, category, item_kind, labels"""
_COLUMNS = sql.SQL(
    f"SELECT a.attname, {_DECLARED} AS declared, {COLUMN_TYPE} "  # noqa: S608
    f"FROM pg_attribute a {BASE} {ITEM} WHERE a.attrelid = to_regclass({{}}) AND a.attnum > 0 AND NOT a.attisdropped"
)
_LOCKABLE = (
    "SELECT relkind IN ('r', 'p') AND has_table_privilege(oid, 'INSERT') FROM pg_class WHERE oid = to_regclass(%s)"
)
# Raises where a column was declared otherwise, or where INSERT and COPY do not alike any more: a rule, a view under
# the table's name, row security.
SAME_TYPES = f"""
    SELECT 1 / CAST(array_agg({_DECLARED} ORDER BY a.attname) = %s::text[] AND bool_and({PLAIN}) AS int)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.oid = to_regclass(%s) AND a.attname = ANY(%s) AND a.attnum > 0
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Types:
    """Of a table's columns. ``declared`` is how each is declared: another one as soon as the column is altered."""

    declared: Mapping[str, str]
    columns: ColumnTypes
    casts: bool  # whether a cast from text reads every value as COPY does


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], tuple[bool, Types]]] = WeakKeyDictionary()


def types_now(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types:
    """The types as they are, until the transaction ends: no session alters the table from here on."""
    known, name = _known.setdefault(driver, {}), tuple(path)
    cursor, quoted = driver.cursor(row_factory=tuple_row), sql.Identifier(*name).as_string(None)
    lockable = name in known and known[name][0]
    if not lockable:  # or not yet: a table may have taken a view's name, or the right was granted
        found = cursor.execute(_LOCKABLE, [quoted]).fetchone()
        lockable = found is not None and bool(found[0])
    asked = _COLUMNS.format(sql.Literal(quoted))
    if lockable:  # in one round trip; the lock is the one that COPY takes
        asked = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE; {}").format(sql.Identifier(*name), asked)
    cursor.execute(asked, prepare=False)
    if lockable:
        cursor.nextset()
    types = _types(cursor.fetchall())
    known[name] = lockable, types
    return types


def types_seen(driver: psycopg.Connection[Any], path: Sequence[str]) -> ColumnTypes:
    """The types of the columns, without a lock: a check before the first record."""
    quoted = sql.Identifier(*path).as_string(None)
    cursor = driver.cursor(row_factory=tuple_row)
    return _types(cursor.execute(_COLUMNS.format(sql.Literal(quoted)), prepare=False).fetchall()).columns


def types_locked(driver: psycopg.Connection[Any], path: Sequence[str], locked: dict[Any, Any] | None) -> Types:
    """As :func:`types_now`, asked once while its lock is held. ``locked`` is ``PartSavepoints.locked``.

    A name without a schema is asked each time: another session may create a table that comes earlier in search_path.
    """
    name = tuple(path)
    if len(name) == 1:
        return types_now(driver, name)
    if locked is not None and (found := locked.get(name)) is not None:
        known: Types = found
        return known
    types = types_now(driver, name)
    if locked is not None and _known[driver][name][0]:
        locked[name] = types
    return types


def types_recalled(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types | None:
    """The types when this session asked last, None where it has not; who relies on them asks SAME_TYPES, too."""
    known = _known.get(driver, {}).get(tuple(path))
    return None if known is None else known[1]


def _types(found: Sequence[tuple[Any, ...]]) -> Types:
    columns = {name: ColumnType(*rest) for name, _, *rest in found}
    return Types(
        {name: declared for name, declared, *_ in found},
        columns,
        not any(has_fields(column.base, column.typmod) for column in columns.values()),
    )


def has_fields(oid: int, typmod: int) -> bool:
    """``interval hour`` and its like, where '10' are hours: a cast reads seconds before it looks at the fields."""
    return oid in {1186, 1187} and typmod >= 0 and typmod >> 16 & 0x7FFF != 0x7FFF
