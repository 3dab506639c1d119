"""Reads the catalog for a table that rows are merged into, and builds its *stage*.

The stage is a temporary table of the session: rows are copied to it, and one statement merges them from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import psycopg
from psycopg import sql
from sqlalchemy import Connection, text

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.sinks.column_type import ColumnType
from seekpoint.sinks.column_types import BASE, COLUMN_TYPE, DECLARED, ITEM, Types, types_of
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.dedupe import Column, Target

LINE, DELETED = "seekpoint line", "seekpoint deleted"  # columns that only the stage has

# The unique indexes of t on exactly the columns :key, which ON CONFLICT can use. ``nulls_alike``: one of them has NULLS
# NOT DISTINCT. ``strange``: an index with another collation than its column's, if one of the two is nondeterministic:
# it may call different texts equal. ``nullable``: the columns of the key that may be NULL.
_INDEXES = """
    SELECT count(*) > 0 AS indexed, coalesce(bool_or(i.nulls_alike), false) AS nulls_alike, min(i.strange) AS strange, (
        SELECT array_agg(CAST(k.attname AS text) ORDER BY k.attname COLLATE "C")
        FROM pg_attribute k JOIN pg_type y ON y.oid = k.atttypid
        WHERE k.attrelid = t.oid AND k.attname = ANY(:key) AND NOT (k.attnotnull OR y.typnotnull)
    ) AS nullable
    FROM (
        SELECT coalesce(CAST(to_jsonb(x) ->> 'indnullsnotdistinct' AS boolean), false) AS nulls_alike,
        CASE WHEN EXISTS (
            SELECT FROM unnest(CAST(x.indkey AS int2[]), CAST(x.indcollation AS oid[])) k (attnum, coll)
            JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum AND a.attcollation <> k.coll
            WHERE EXISTS (SELECT FROM pg_collation c
                          WHERE c.oid IN (a.attcollation, k.coll) AND NOT c.collisdeterministic)
        ) THEN CAST(CAST(x.indexrelid AS regclass) AS text) END AS strange
        FROM pg_index x
        WHERE x.indrelid = t.oid AND x.indisunique AND x.indimmediate AND x.indisvalid
          AND x.indpred IS NULL AND x.indexprs IS NULL
          AND (SELECT array_agg(CAST(k.attname AS text) ORDER BY k.attname COLLATE "C")
               FROM pg_attribute k
               WHERE k.attrelid = x.indrelid
                 AND k.attnum = ANY((CAST(x.indkey AS int2[]))[0\\:x.indnkeyatts - 1])) = :key
    ) i
"""

_SURVEY = text(
    f"""
    SELECT a.attname, {DECLARED} AS declared, format_type(base.oid, -1) AS type,
           base.typtype, {COLUMN_TYPE},
           coalesce(c.collisdeterministic, true) AS deterministic, operators.*, a.attidentity = 'a' AS drawn,
           coalesce(s.atttypid = a.atttypid AND s.atttypmod = a.atttypmod, false) AS staged, whole.*
    FROM pg_attribute a
    {BASE}
    {ITEM}
    CROSS JOIN LATERAL (
        SELECT min(o.named) FILTER (WHERE o.strategy = 3) AS equal,
               min(o.named) FILTER (WHERE o.strategy = 4) AS not_less
        FROM (
            SELECT m.amopstrategy AS strategy, format('OPERATOR(%I.%s)', n.nspname, p.oprname) AS named
            FROM pg_opclass l
            JOIN pg_amop m ON m.amopfamily = l.opcfamily AND m.amoplefttype = l.opcintype
                          AND m.amoprighttype = l.opcintype AND m.amopstrategy IN (3, 4)
            JOIN pg_operator p ON p.oid = m.amopopr JOIN pg_namespace n ON n.oid = p.oprnamespace
            WHERE base.oid >= 16384 AND l.opcmethod = 403 AND l.opcdefault AND l.opcintype = base.oid
        ) o
    ) operators
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_attribute s ON s.attrelid = to_regclass(:stage) AND s.attname = a.attname AND s.attnum > 0
    CROSS JOIN (
        SELECT t.relkind, row_security_active(t.oid) AS secured, i.*,
               to_regclass(:stage) IS NOT NULL AS stage_exists,
               coalesce(pg_relation_size(to_regclass(:stage)) > 0, false) AS stage_used,
               pg_backend_pid() AS pid
        FROM pg_class t CROSS JOIN LATERAL ({_INDEXES}) i WHERE t.oid = to_regclass(:table)
    ) whole
    WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND a.attname = ANY(:columns)
    ORDER BY a.attnum
    """  # noqa: S608 -- a constant
)

_WHOLE = {20, 21, 23, 1700}  # bigint, smallint, integer, numeric
_KINDS = {
    16: "bool", 17: "bytea", 20: "int", 21: "int", 23: "int", 25: "text", 1043: "text", 1082: "date",
    1083: "time", 1114: "timestamp", 1184: "timestamptz", 1700: "numeric", 2950: "uuid",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The table's columns. ``types`` decide how values are written."""

    columns: Mapping[str, Column]
    types: Types
    overriding: bool  # a column is GENERATED ALWAYS AS IDENTITY: COPY takes values for it, INSERT only with OVERRIDING
    direct: bool  # COPY can write to the table, and an existing key is a unique violation


@dataclass(frozen=True, slots=True)
class Stage:
    """The session's temporary table for this target."""

    name: str
    exists: bool
    fits: bool
    used: bool  # this transaction has written to it
    pooled: bool  # a pooler gives the session to other clients: leave nothing in it


class Survey(NamedTuple):
    """The current state of a table, and of the session's temporary table for its rows."""

    layout: Layout
    stage: Stage


def survey(tx: Connection, target: Target) -> Survey:
    """Lock the table and read its layout. Raises ConfigError if no unique index fits the key, and the server's error.

    Called in every large transaction: the table may have been altered while the worker runs, and a pooler may have
    changed the session. An outdated temporary table would refuse rows that the table takes. It takes INSERT's lock a
    little earlier, so that no session alters the table from here on.
    """
    columns = target.columns or target.deletes
    stage = stage_name(target)
    driver = driver_of(tx)
    driver.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.Identifier(*target.path)))
    parameters = {"table": quoted(*target.path), "stage": quoted("pg_temp", stage), "key": sorted(target.key)}
    rows = tx.execute(_SURVEY, {**parameters, "columns": list(columns)}).all()
    if len(rows) < len(set(columns)):
        _provoke(tx, target, columns)
    first = rows[0]
    plain = first.relkind in {"r", "p"}
    if plain:
        _check_index(target.name, target.path, target.key, first)
    _check_positions(target, rows)
    layout = Layout(
        {row.attname: _column(row) for row in rows},
        types_of((row.attname, row.declared, *(getattr(row, name) for name in ColumnType._fields)) for row in rows),
        any(row.drawn for row in rows),
        plain and not first.secured,
    )
    pooled = first.pid != driver.info.backend_pid
    fits = first.stage_exists and all(row.staged for row in rows)
    return Survey(layout, Stage(stage, first.stage_exists, fits, first.stage_used, pooled))


def require_index(connection: Connection, sink: str, path: Sequence[str], key: Sequence[str]) -> None:
    """Raise ConfigError if no unique index of the table fits this key."""
    query = text(f"SELECT i.* FROM pg_class t, LATERAL ({_INDEXES}) i WHERE t.oid = to_regclass(:table)")  # noqa: S608
    _check_index(sink, path, key, connection.execute(query, {"table": quoted(*path), "key": sorted(key)}).one())


def _check_index(sink: str, path: Sequence[str], key: Sequence[str], index: Any) -> None:
    """Raise ConfigError unless ``index``, a row of _INDEXES, describes an index that fits."""
    names, table = ", ".join(map(quoted, key)), quoted(*path)
    if not index.indexed:
        raise ConfigError(
            f"{sink}: the table has no unique index on exactly ({names}); create it: CREATE UNIQUE INDEX ON "
            f"{table} ({names}); {remedies.change_table()}, too. A partial, deferrable or invalid index does not "
            "count"
        )
    if index.strange:
        raise ConfigError(
            f"{sink}: the unique index {index.strange} has another collation than its column, so they may disagree on "
            "which keys are equal: give the column the index's collation, or drop the index"
        )
    if index.nullable and not index.nulls_alike:
        nullable = list(map(quoted, index.nullable))
        required = ", ".join(f"ALTER COLUMN {name} SET NOT NULL" for name in nullable)
        raise ConfigError(
            f"{sink}: the key's column {', '.join(nullable)} may be NULL, and the unique index treats NULLs as "
            f"different, so such a row is never found again: ALTER TABLE {table} {required}; or, from Postgres 15 on, "
            f"CREATE UNIQUE INDEX ON {table} ({names}) NULLS NOT DISTINCT"
        )


def _check_positions(target: Target, rows: Sequence[Any]) -> None:
    """Raise ConfigError if a type does not compare offsets or positions exactly: '9' is after '10' in a text column."""
    compared = [("offset_column", target.offset), ("order_by", target.order_by if target.has_position else None)]
    for option, name in compared:
        row = next((row for row in rows if row.attname == name), None)
        if row is not None and row.base not in _WHOLE:
            column, whole = quoted(row.attname), "bigint" if option == "offset_column" else "numeric"
            raise ConfigError(
                f"{target.name}: {option}={name!r} is of type {row.named}, which does not compare whole numbers "
                f"exactly, so that newer rows would be dropped: ALTER TABLE {quoted(*target.path)} ALTER COLUMN "
                f"{column} TYPE {whole} USING {column}::{whole}"
            )


def _column(row: Any) -> Column:
    plain = Column(row.type, _kind(row.base, row.typtype, row.deterministic), row.typmod)
    return plain._replace(equal=row.equal or plain.equal, not_less=row.not_less or plain.not_less)


def _kind(oid: int, typtype: str, deterministic: bool) -> str:
    kind = "enum" if typtype == "e" else _KINDS.get(oid, "other")
    return kind if deterministic else "other"


def _provoke(tx: Connection, target: Target, columns: tuple[str, ...]) -> None:
    """Raise the server's error about a missing table or column."""
    driver_of(tx).execute(
        sql.SQL("SELECT {} FROM {} LIMIT 0").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*target.path)
        )
    )


def quoted(*names: str) -> str:
    """The name, quoted for SQL."""
    return sql.Identifier(*names).as_string(None)


def stage_name(target: Target) -> str:
    """The stage's name, which depends only on the table and its columns."""
    return f"seekpoint_stage_{crc32(repr((target.path, target.columns)).encode()):08x}"


def build(tx: Connection, target: Target, stage: Stage) -> None:
    """Make sure that the stage exists, fits the table and is empty."""
    driver = driver_of(tx)
    name = sql.Identifier("pg_temp", stage.name)
    if stage.fits:
        if stage.used:  # a transaction may stage several parts, one after another
            driver.execute(sql.SQL("TRUNCATE {}").format(name))
        return
    if stage.exists:
        driver.execute(sql.SQL("DROP TABLE {}").format(name))
    statement = sql.SQL(
        "CREATE TEMPORARY TABLE {} ON COMMIT {} AS SELECT {}, 0::bigint AS {}, false AS {} FROM {} WITH NO DATA"
    ).format(
        sql.Identifier(stage.name),
        sql.SQL("DROP" if stage.pooled else "DELETE ROWS"),
        sql.SQL(", ").join(map(sql.Identifier, target.columns or target.deletes)),
        sql.Identifier(LINE),
        sql.Identifier(DELETED),
        sql.Identifier(*target.path),
    )
    numbered = sql.SQL(
        "ALTER TABLE {} ALTER {} SET NOT NULL, ALTER {} ADD GENERATED BY DEFAULT AS IDENTITY (CACHE 1000), "
        "ALTER {} SET DEFAULT false"
    ).format(name, sql.Identifier(LINE), sql.Identifier(LINE), sql.Identifier(DELETED))
    try:
        driver.execute(statement)
        driver.execute(numbered)
    except psycopg.errors.InsufficientPrivilege as error:
        error.add_note(
            f"{target.name} stages its rows in a temporary table: GRANT TEMPORARY ON DATABASE {driver.info.dbname}, "
            "and SELECT on the table, to the role that the worker runs as"
        )
        raise
