"""Reads the types of a table's columns, which decide how values are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from seekpoint.sinks.column_type import ColumnType, ColumnTypes

# The type of column a, or its domain's base type, with the modifier that applies.
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
# The type of base's values. If base is an array: the type of its items, or their domain's base type and modifier.
ITEM = """
    CROSS JOIN LATERAL (
        WITH RECURSIVE known AS (
            SELECT y.oid, y.typtype, y.typcategory, base.typmod, y.typbasetype, y.typtypmod
            FROM pg_type w LEFT JOIN pg_type i ON w.typcategory = 'A' AND i.oid = w.typelem
            JOIN pg_type y ON y.oid = coalesce(i.oid, w.oid)
            WHERE w.oid = base.oid
            UNION ALL
            SELECT y.oid, y.typtype, y.typcategory, d.typtypmod, y.typbasetype, y.typtypmod
            FROM known d JOIN pg_type y ON y.oid = d.typbasetype WHERE d.typtype = 'd'
        )
        SELECT CAST(y.oid AS bigint) AS item, y.oid <> base.oid AS is_array, CAST(y.typcategory AS text) AS category,
               CAST(y.typtype AS text) AS kind, y.typmod,
               (SELECT array_agg(CAST(l.enumlabel AS text) ORDER BY l.enumsortorder)
                FROM pg_enum l WHERE l.enumtypid = y.oid) AS labels
        FROM known y WHERE y.typtype <> 'd'
    ) items
"""
# Whether INSERT and COPY have the same effect on table c: no view, no rule, no row security (which COPY refuses).
# relhasrules does not suffice: it stays true after the last rule was dropped, until the next VACUUM.
_RULED = "(c.relhasrules AND EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid))"
PLAIN = f"c.relkind IN ('r', 'p') AND NOT {_RULED} AND NOT row_security_active(c.oid)"
# How column a is declared: ``interval`` and ``interval hour`` have the same type, but read '10' differently.
DECLARED = "concat_ws(' ', a.atttypid, a.atttypmod, a.attcollation, a.attndims)"
COLUMN_TYPE = """format_type(a.atttypid, a.atttypmod) AS named, CAST(base.oid AS bigint) AS base, items.typmod,
    CASE WHEN is_array THEN greatest(a.attndims, 1) ELSE 0 END AS dimensions, item, category, items.kind, labels"""
_OF_TABLE = "WHERE a.attrelid = to_regclass({}) AND a.attnum > 0 AND NOT a.attisdropped"
_DECLARATIONS = sql.SQL(f"SELECT a.attname, {DECLARED} FROM pg_attribute a {_OF_TABLE}")  # noqa: S608
_COLUMNS = sql.SQL(
    f"SELECT a.attname, {DECLARED} AS declared, {COLUMN_TYPE} FROM pg_attribute a {BASE} {ITEM} {_OF_TABLE}"  # noqa: S608
)
# Whether columns are still declared as they were read. Parameters are those of :func:`as_read`.
_AS_DECLARED = f"array_agg({DECLARED} ORDER BY known.place) = %s::text[]"
_KNOWN_COLUMNS = """unnest(%s::name[]) WITH ORDINALITY AS known (attname, place)
    JOIN pg_attribute a ON a.attrelid = to_regclass(%s) AND a.attname = known.attname AND a.attnum > 0"""
GATE = f"(SELECT {_AS_DECLARED} FROM {_KNOWN_COLUMNS})"  # noqa: S608
# Raises an error (division by zero) if a column's declaration has changed, or if INSERT and COPY no longer have the
# same effect: a rule, a view under the table's name, row security.
SAME_TYPES = f"""
    SELECT 1 / CAST({_AS_DECLARED} AND bool_and({PLAIN}) AS int)
    FROM {_KNOWN_COLUMNS} JOIN pg_class c ON c.oid = a.attrelid
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a table's columns. ``declared`` has each declaration, which changes if the column is altered."""

    declared: Mapping[str, str]
    columns: ColumnTypes
    casts: bool  # whether a cast from text reads every value as COPY does

    @property
    def has_labels(self) -> bool:
        """Whether a column is an enum, whose labels may change while its declaration does not."""
        return any(column.labels is not None for column in self.columns.values())


def as_read(path: Sequence[str], declared: Mapping[str, str]) -> tuple[list[str], list[str], str]:
    """The parameters of ``GATE`` and ``SAME_TYPES``, for columns in ``Types.declared``."""
    return [*declared.values()], [*declared], sql.Identifier(*path).as_string(None)


def read_types(
    driver: psycopg.Connection[Any], path: Sequence[str], *, lock: bool = False, known: Types | None = None
) -> Types:
    """The types of the table's columns. ``lock``: lock the table first, as COPY does, in the same round trip.

    ``known`` are the types as read before. They are returned if they still hold: a comparison of the declarations takes
    the server a quarter of the time.
    """
    if known is not None and not known.has_labels and dict(_rows(driver, path, _DECLARATIONS, lock)) == known.declared:
        return known
    return types_of(_rows(driver, path, _COLUMNS, lock))


def _rows(driver: psycopg.Connection[Any], path: Sequence[str], query: sql.SQL, lock: bool) -> list[Any]:
    """The rows of a query about the table, which is locked first if ``lock`` is set."""
    name = sql.Identifier(*path)
    statement = query.format(sql.Literal(name.as_string(None)))
    if lock:
        statement = sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE; {}").format(name, statement)
    cursor = driver.cursor(row_factory=tuple_row).execute(statement, prepare=False)
    if lock:
        cursor.nextset()
    return cursor.fetchall()


def types_of(rows: Iterable[Sequence[Any]]) -> Types:
    """The types of columns, from each one's name, declaration and fields of ColumnType."""
    rows = list(rows)
    columns = {name: ColumnType(*attributes) for name, _, *attributes in rows}
    return Types(
        {name: declared for name, declared, *_ in rows},
        columns,
        not any(has_fields(column.base, column.typmod) for column in columns.values()),
    )


def has_fields(oid: int, typmod: int) -> bool:
    """Whether the type is like ``interval hour``: COPY reads '10' as hours, but a cast as seconds."""
    return oid in {1186, 1187} and typmod >= 0 and typmod >> 16 & 0x7FFF != 0x7FFF
