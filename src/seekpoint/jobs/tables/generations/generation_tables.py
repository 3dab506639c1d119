"""The tables of one view's generations: create, attach, make current, and find those that no session reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from time import monotonic
from typing import Any
from uuid import UUID

from psycopg import sql as ident
from sqlalchemy import Connection, Row, text

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.run import Run, Tx
from seekpoint.jobs.tables.sql_templates import Part, name, run
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import Path, Target
from seekpoint.ledger.sql import generation as sql
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.target_table import COLUMN


def pointer(tx: Tx, view: Path) -> Row[Any] | None:
    """The row of ``generation`` that names a view's current generation."""
    return tx.execute(sql.GENERATION, of_schema=view[0], of_table=view[1]).one_or_none()


_PARTITIONS = text(
    """
    SELECT c.relname AS name, CAST(substring(pg_get_expr(c.relpartbound, c.oid) FROM '[0-9]+') AS bigint) AS number
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass(:name) ORDER BY number
    """
)


def partitions(tx: Tx, parent: Path) -> Mapping[str, int]:
    """The tables that are attached, with their numbers."""
    return {row.name: row.number for row in tx.connection.execute(_PARTITIONS, {"name": quoted(*parent)})}


# -- a new one ---------------------------------------------------------------------------------------------------


def number(tx: Tx, table: Path, generation: int) -> None:
    """Set a table's generation as default and CHECK: writers need not set it, and attaching the table reads no row."""
    parts: dict[str, Part] = {"table": table, "column": (COLUMN,), "number": generation}
    run(tx.connection, "ALTER TABLE {table} ALTER {column} SET DEFAULT {number}::bigint", **parts)
    run(tx.connection, "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {column}", **parts)
    run(tx.connection, "ALTER TABLE {table} ADD CONSTRAINT {column} CHECK ({column} = {number}::bigint)", **parts)


def make(tx: Tx, staging: Staging, target: Target) -> None:
    """Prepare the rebuilt table, still empty, as the next generation."""
    assert target.view is not None
    if (now := pointer(tx, target.view)) is None:
        raise ReloadRefused([f"{target.name} is not kept in generations any more: end this run"])
    taken = partitions(tx, (target.view[0], now.parent))
    built = staging.table(target)
    number(tx, built, max([now.number, *taken.values()]) + 1)
    for option in tx.connection.execute(_OPTIONS, {"name": quoted(*target.path)}).scalars():
        key, _, value = option.partition("=")
        run(tx.connection, "ALTER TABLE {table} SET ({key} = {value})", table=built, key=(key,), value=value)


_OPTIONS = text("SELECT unnest(reloptions) FROM pg_class WHERE oid = to_regclass(:name)")
_NUMBER = text(
    "SELECT CAST(substring(pg_get_expr(d.adbin, d.adrelid) FROM '[0-9]+') AS bigint) FROM pg_attrdef d "
    "JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum "
    "WHERE d.adrelid = to_regclass(:name) AND a.attname = :column"
)


def number_of(tx: Tx, table: Path) -> int:
    """Which generation a table is."""
    found = tx.connection.execute(_NUMBER, {"name": quoted(*table), "column": COLUMN}).scalar()
    if found is None:
        raise ReloadRefused([f"{'.'.join(table)} has no {COLUMN} with a default any more: end this run"])
    return int(found)


def attach(tx: Tx, staging: Staging, target: Target) -> None:
    """Attach the rebuilt table as a partition beside the current one; readers of the view continue without its rows."""
    assert target.view is not None
    built, now = staging.table(target), pointer(tx, target.view)
    if now is None or now.current != target.path[1]:
        raise ReloadRefused([f"{target.name} has another generation by now: end this run"])
    parent = (target.view[0], now.parent)
    if built[1] in partitions(tx, parent):
        return
    attach_partition(tx, parent, built, number_of(tx, built))
    grant_alike(tx.connection, target.path, built)


def attach_partition(tx: Tx, parent: Path, table: Path, generation: int) -> None:
    """Make a table the partition of a generation's number."""
    attach = "ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES IN ({number})"
    run(tx.connection, attach, parent=parent, table=table, number=generation)


_GRANTS = text(
    """
    SELECT g.privilege_type AS what, coalesce(r.rolname, 'PUBLIC') AS role, r.oid IS NULL AS is_public,
           g.is_grantable AS is_grantable
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
    WHERE c.oid = to_regclass(:name) AND g.grantee <> c.relowner AND (g.grantee = 0 OR r.oid IS NOT NULL)
    ORDER BY 2, 1
    """
)


def grants(connection: Connection, table: Path) -> Sequence[Row[Any]]:
    """The privileges of roles other than its owner."""
    return connection.execute(_GRANTS, {"name": quoted(*table)}).all()


def grant_alike(connection: Connection, given: Path, to: Path) -> None:
    """Grant the privileges on one table on the other, too."""
    for row in grants(connection, given):
        run(
            connection,
            "GRANT {what} ON {table} TO {role} {option}",
            what=ident.SQL(row.what),
            table=to,
            role=ident.SQL("PUBLIC") if row.is_public else name(row.role),
            option=ident.SQL("WITH GRANT OPTION" if row.is_grantable else ""),
        )


def point(tx: Tx, staging: Staging, target: Target, run_id: UUID) -> None:
    """Make the rebuilt table the current generation, at this transaction's COMMIT."""
    assert target.view is not None
    (schema, view), built = target.view, staging.table(target)
    to = {"to_number": number_of(tx, built), "to_current": built[1], "by_run": run_id}
    tx.execute(sql.POINT, of_schema=schema, of_table=view, **to)


# -- earlier generations -----------------------------------------------------------------------------------------

_BUILT = text(
    """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND right(c.relname, length(:ending)) = :ending
          AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = :column)
    ORDER BY 1, 2
    """
)


def left_behind(tx: Tx, ended: Run) -> tuple[Sequence[Path], bool]:
    """The tables of generations that an ended run has left, and whether they may be dropped now.

    A run that was cut over leaves the earlier generations. Transactions with a snapshot from before the cut-over still
    read them: they are dropped when the last of those has ended. A table of a run that ended otherwise was never read.
    """
    staging = Staging(ended.staging_schema)
    if not staging.is_generation:
        return [], True
    if ended.state != "cut_over":
        found = tx.connection.execute(_BUILT, {"ending": staging.ending, "column": COLUMN})
        return [(schema, table) for schema, table in found], True
    old: list[Path] = []
    turned = ""
    for row in tx.execute(sql.GENERATIONS_OF_RUN, by_run=ended.id):  # all made current by one transaction
        tables, turned = partitions(tx, (row.table_schema, row.parent)), row.turned
        old += [(row.table_schema, one) for one, n in tables.items() if n < row.number]
    return old, not (old and still_reading(tx, turned))


def parents_of(tx: Tx, ended: Run) -> Sequence[Path]:
    """The partitioned tables whose current generation an ended run has built."""
    return [(row.table_schema, row.parent) for row in tx.execute(sql.GENERATIONS_OF_RUN, by_run=ended.id)]


# Transactions that may read in a snapshot from before the current generation was made current. If this role may not
# see the state of a session, its open transaction is one of them.
_READERS = text(
    """
    SELECT l.virtualtransaction, l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.pid <> pg_backend_pid()
          AND (a.pid IS NULL OR a.datid IS NULL
               OR a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()))
          AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
          AND (a.pid IS NULL OR a.state IS NULL
               OR (a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(CAST(:turned AS xid))))
    """
)
# A transaction reads pg_stat_activity as of its first look, unless it clears that.
_CLEAR_SNAPSHOT = text("SELECT pg_stat_clear_snapshot()")
PATIENCE = 1.0  # seconds for readers that began before a cut-over; a later sweep waits again


def still_reading(tx: Tx, turned: str, patience: float = PATIENCE) -> list[int]:
    """The sessions, by pid, that may read in a snapshot from before this transaction, which made a generation current.

    Those that end, or take a newer snapshot, within so many seconds are not among them.
    """

    def readers() -> set[tuple[str, int]]:
        tx.connection.execute(_CLEAR_SNAPSHOT)
        return {(row.virtualtransaction, row.pid) for row in tx.connection.execute(_READERS, {"turned": turned})}

    deadline, left = monotonic() + patience, readers()
    while left and monotonic() < deadline:
        Event().wait(0.02)
        left &= readers()
    return sorted(pid for _, pid in left)
