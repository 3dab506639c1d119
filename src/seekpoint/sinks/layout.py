"""What the server knows about the table of an upsert: types, the key's index, and the session's stage for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import psycopg
from psycopg import sql
from sqlalchemy import Connection, text

from seekpoint.errors import ConfigError
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.fold import Column, Target

LINE, DELETED = "seekpoint line", "seekpoint deleted"  # the stage's own columns

_SURVEY = text(
    """
    SELECT a.attname, a.attnum, format_type(a.atttypid, -1) AS type, CAST(a.atttypid AS bigint) AS oid, a.atttypmod,
           y.typtype, coalesce(c.collisdeterministic, true) AS deterministic, a.attidentity = 'a' AS drawn,
           coalesce(s.atttypid = a.atttypid AND s.atttypmod = a.atttypmod, false) AS staged, whole.*
    FROM pg_attribute a
    JOIN pg_type y ON y.oid = a.atttypid
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_attribute s ON s.attrelid = to_regclass(:stage) AND s.attname = a.attname AND s.attnum > 0
    CROSS JOIN (
        SELECT t.relkind, row_security_active(t.oid) AS secured,
               EXISTS (
                   SELECT FROM pg_index i
                   WHERE i.indrelid = t.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
                     AND i.indpred IS NULL AND i.indexprs IS NULL
                     AND (SELECT array_agg(CAST(k.attname AS text) ORDER BY k.attname COLLATE "C")
                          FROM pg_attribute k
                          WHERE k.attrelid = i.indrelid
                            AND k.attnum = ANY((CAST(i.indkey AS int2[]))[0\\:i.indnkeyatts - 1])) = :key
               ) AS indexed,
               to_regclass(:stage) IS NOT NULL AS stage_exists,
               coalesce(pg_relation_size(to_regclass(:stage)) > 0, false) AS stage_used,
               pg_backend_pid() AS pid
        FROM pg_class t WHERE t.oid = to_regclass(:table)
    ) whole
    WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND a.attname = ANY(:columns)
    ORDER BY a.attnum
    """
)

_KINDS = {
    16: "bool", 17: "bytea", 20: "int", 21: "int", 23: "int", 25: "text", 1043: "text", 1082: "date",
    1184: "timestamptz", 1700: "numeric", 2950: "uuid",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """The table as it stands. ``types`` are the types' oids in the order of ``numbers``, the columns' numbers."""

    columns: Mapping[str, Column]
    numbers: tuple[int, ...]
    types: tuple[int, ...]
    overriding: bool  # a column is GENERATED ALWAYS AS IDENTITY: COPY takes its values, INSERT only if told to
    direct: bool  # COPY goes into it, and a key that is there is a violation


@dataclass(frozen=True, slots=True)
class Stage:
    """The session's temporary table for this target, as it was found."""

    name: str
    exists: bool
    fits: bool
    used: bool  # something was written to it in this transaction
    pooled: bool  # the session is a pooler's, others will get it: leave nothing behind


def survey(tx: Connection, target: Target) -> tuple[Layout, Stage]:
    """Ask the server. Raises ConfigError where the key has no unique index, and what the server says of unknown names.

    It is asked in every large transaction: a table may be altered while a worker runs, and the session may be
    another one behind a pooler. An old stage would refuse what the table takes. The lock is the one that INSERT takes,
    a little earlier: from here on nobody alters the table.
    """
    columns = target.columns or target.gone
    stage = stage_name(target)
    driver = driver_of(tx)
    driver.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.Identifier(*target.path)))
    asked = {"table": quoted(*target.path), "stage": quoted("pg_temp", stage), "key": sorted(target.key)}
    found = tx.execute(_SURVEY, {**asked, "columns": list(columns)}).all()
    if len(found) < len(set(columns)):
        _provoke(tx, target, columns)
    whole = found[0]
    plain = whole.relkind in {"r", "p"}
    if plain and not whole.indexed:
        names = ", ".join(map(quoted, target.key))
        raise ConfigError(
            f"{target.name}: the table has no unique index on exactly ({names}); create it: CREATE UNIQUE INDEX ON "
            f"{quoted(*target.path)} ({names}). A partial or deferrable one does not count"
        )
    layout = Layout(
        {row.attname: Column(row.type, _kind(row.oid, row.typtype, row.deterministic), row.atttypmod) for row in found},
        tuple(row.attnum for row in found),
        tuple(row.oid for row in found),
        any(row.drawn for row in found),
        plain and not whole.secured,
    )
    pooled = whole.pid != driver.info.backend_pid
    fits = whole.stage_exists and all(row.staged for row in found)
    return layout, Stage(stage, whole.stage_exists, fits, whole.stage_used, pooled)


def _kind(oid: int, typtype: str, deterministic: bool) -> str:
    kind = "enum" if typtype == "e" else _KINDS.get(oid, "other")
    return kind if deterministic else "other"


def _provoke(tx: Connection, target: Target, columns: tuple[str, ...]) -> None:
    """Let the server say in its own words which name it does not know."""
    driver_of(tx).execute(
        sql.SQL("SELECT {} FROM {} LIMIT 0").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*target.path)
        )
    )


def stage_name(target: Target) -> str:
    """The same for the same table and columns, whoever asks."""
    return f"seekpoint_stage_{crc32(repr((target.path, target.columns)).encode()):08x}"


def quoted(*names: str) -> str:
    """The name as SQL."""
    return sql.Identifier(*names).as_string(None)


def build(tx: Connection, target: Target, stage: Stage) -> None:
    """See to it that the stage is there, fits and is empty."""
    driver = driver_of(tx)
    name = sql.Identifier("pg_temp", stage.name)
    if stage.fits:
        if stage.used:  # several parts of one transaction are staged one after another
            driver.execute(sql.SQL("TRUNCATE {}").format(name))
        return
    if stage.exists:
        driver.execute(sql.SQL("DROP TABLE {}").format(name))
    assert target.columns is not None
    statement = sql.SQL(
        "CREATE TEMPORARY TABLE {} ON COMMIT {} AS SELECT {}, 0::bigint AS {}, false AS {} FROM {} WITH NO DATA"
    ).format(
        sql.Identifier(stage.name),
        sql.SQL("DROP" if stage.pooled else "DELETE ROWS"),
        sql.SQL(", ").join(map(sql.Identifier, target.columns)),
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
