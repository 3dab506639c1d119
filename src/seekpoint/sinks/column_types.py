"""The types of a table's columns, for what is written differently by type: JSON, and what a cast reads otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

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
_COLUMNS = sql.SQL(
    "SELECT a.attname, CAST(a.atttypid AS bigint), CAST(base.oid AS bigint), base.typmod, a.attndims "  # noqa: S608
    f"FROM pg_attribute a {BASE} WHERE a.attrelid = to_regclass({{}}) AND a.attnum > 0 AND NOT a.attisdropped"
)
_LOCKABLE = (
    "SELECT relkind IN ('r', 'p') AND has_table_privilege(oid, 'INSERT') FROM pg_class WHERE oid = to_regclass(%s)"
)
# Raises where a column has another type than it had.
SAME_TYPES = """
    SELECT 1 / CAST(array_agg(atttypid ORDER BY attname) = %s::oid[] AS int) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND attnum > 0
"""

Depths = Mapping[str, int]  # of the columns of JSON: 0, or of an array of JSON its dimensions


@dataclass(frozen=True, slots=True)
class Types:
    """Of a table. ``oids`` are the declared types', ``bases`` the base types'."""

    oids: Mapping[str, int]
    bases: Mapping[str, int]
    json: Depths
    casts: bool  # whether a cast from text reads every value as COPY does


_known: WeakKeyDictionary[psycopg.Connection[Any], dict[tuple[str, ...], tuple[bool, Types]]] = WeakKeyDictionary()


def types_now(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types:
    """The types as they are, until the transaction ends: no session alters the table from here on."""
    known, name = _known.setdefault(driver, {}), tuple(path)
    cursor, quoted = driver.cursor(row_factory=tuple_row), sql.Identifier(*name).as_string(None)
    if name in known:
        lockable = known[name][0]
    else:
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


def types_then(driver: psycopg.Connection[Any], path: Sequence[str]) -> Types:
    """The types when this session asked last; who relies on them asks SAME_TYPES before the transaction ends."""
    known = _known.get(driver, {}).get(tuple(path))
    return types_now(driver, path) if known is None else known[1]


def _types(found: Sequence[tuple[Any, ...]]) -> Types:
    depths = {name: json_depth(base, dimensions) for name, _, base, _, dimensions in found}
    return Types(
        {name: oid for name, oid, *_ in found},
        {name: base for name, _, base, *_ in found},
        {name: depth for name, depth in depths.items() if depth is not None},
        not any(has_fields(base, typmod) for _, _, base, typmod, _ in found),
    )


def json_depth(oid: int, dimensions: int) -> int | None:
    """0 for json and jsonb, for arrays of them the dimensions; None for any other type."""
    return 0 if oid in {114, 3802} else max(dimensions, 1) if oid in {199, 3807} else None


def has_fields(oid: int, typmod: int) -> bool:
    """``interval hour`` and its like, where '10' are hours: a cast reads seconds before it looks at the fields."""
    return oid in {1186, 1187} and typmod >= 0 and typmod >> 16 & 0x7FFF != 0x7FFF
