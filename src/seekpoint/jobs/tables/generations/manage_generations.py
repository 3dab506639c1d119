"""Enables, lists and disables generations: a view that services read, and the tables of which it reads one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql as ident
from sqlalchemy import URL, Connection, Engine, Row, text
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.run import Tx, transaction
from seekpoint.jobs.tables.dependencies import DDL_WAIT, hanging
from seekpoint.jobs.tables.generations import generation_tables as leaves
from seekpoint.jobs.tables.generations import sequences as numbers
from seekpoint.jobs.tables.generations import view
from seekpoint.jobs.tables.sql_templates import Part, run
from seekpoint.jobs.tables.staging_schema import fitted
from seekpoint.jobs.tables.targets import TABLE, Path, resolve
from seekpoint.ledger.admin_actions import operator, record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import generation as sql
from seekpoint.ledger.sql import reload_run
from seekpoint.ledger.sql.admin import ALONE, LOCK_GROUP
from seekpoint.ledger.tables import DEFAULT_SCHEMA, generation
from seekpoint.postgres.backoff import TRIES, retried
from seekpoint.postgres.engine import postgres_engine
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.target_table import COLUMN

FIRST = 1
OTHER_OWNER = "another owner"
READERS_WAIT = 30.0  # seconds that ``disable`` waits for readers of an earlier generation


@dataclass(frozen=True, slots=True)
class Generation:
    """A table that is kept in generations: ``table`` is the view, ``current`` the table that it reads.

    ``run`` is the reload that put it in place; ``others`` are tables that are being built, or are to be dropped.
    """

    table: str
    current: str
    parent: str
    number: int
    run: UUID | None
    changed_at: datetime
    others: tuple[str, ...]


class Generations:
    """Keeps tables in generations, so that a reload can make the next one current by writing one row.

    ``enable`` is called once for each table, by its owner; workers continue. Making one does no I/O.
    """

    def __init__(self, engine: Engine | URL | str, *, schema: str = DEFAULT_SCHEMA, actor: str | None = None) -> None:
        self.engine, self.schema = postgres_engine(engine), schema
        self.actor = operator(actor)

    def list(self) -> Sequence[Generation]:
        """Every table of this database that is kept in generations."""
        with transaction(self.engine, self.schema) as tx:
            return [_generation(tx, row) for row in tx.execute(sql.GENERATIONS).all()]

    def enable(self, table: str | tuple[str, str]) -> Generation:
        """Make a plain table the first generation of a view of its name; does nothing where that is done already.

        The table gets a column with a constant, which is validated without a lock that workers or readers wait for, and
        is then renamed under a lock that is waited for in short steps. A worker that meets the change runs its
        transaction once more. Raises ReloadRefused with every reason why it cannot be, ConfigError where there is no
        such table, and the last error where the lock was not granted; then the table has not changed.
        """
        path = self._resolved(table)
        with transaction(self.engine, self.schema) as tx:
            if (known := leaves.pointer(tx, path)) is not None:
                return _generation(tx, known)
            _require(_reasons(tx, path))
        self._retry_locked(lambda tx: _mark(tx, path))
        try:
            with transaction(self.engine, self.schema) as tx:  # readers and writers continue meanwhile
                run(tx.connection, "ALTER TABLE {table} VALIDATE CONSTRAINT {column}", **_marked(path))
            self._retry_locked(lambda tx: self._record(tx, path, "enable generations", _enable))
        except BaseException as error:
            try:
                self._retry_locked(lambda tx: _unmark(tx, path))
            except (psycopg.Error, DBAPIError) as late:
                error.add_note(
                    f"its column {COLUMN} could not be dropped again ({late}): enable generations later, or drop that"
                )
            raise
        made = self._get(path)
        with transaction(self.engine, self.schema) as tx:  # autovacuum does not analyze partitioned tables
            run(tx.connection, "ANALYZE {parent}", parent=_names(path)[0])
        return made

    def disable(self, table: str | tuple[str, str]) -> None:
        """Make the current generation a plain table again, and drop the others.

        Waits up to 30 seconds for sessions that read an earlier generation, in a snapshot from before the last
        cut-over. Raises ReloadRefused where one of them does not end (with its pid), a reload is open, or another view
        selects from this one, and ConfigError where the table is not kept in generations.
        """
        path = self._resolved(table)
        self._get(path)
        with transaction(self.engine, self.schema) as tx:  # before the lock that the opening of a reload waits for
            _require_forgotten(tx, path, leaves.pointer(tx, path), READERS_WAIT)
        self._retry_locked(lambda tx: self._record(tx, path, "disable generations", _disable))

    def _get(self, path: Path) -> Generation:
        with transaction(self.engine, self.schema) as tx:
            if (row := leaves.pointer(tx, path)) is None:
                raise ConfigError(f"{'.'.join(path)} is not kept in generations: enable them first")
            return _generation(tx, row)

    def _record(self, tx: Tx, path: Path, action: str, step: Callable[[Tx, Path], None]) -> None:
        """Do it, and record an admin action for each group that writes the table."""
        step(tx, path)
        for group in _groups(tx, path):
            group_tx = GroupConnection(tx.connection, tx.schema, group)
            record_action(group_tx, action, actor=self.actor, reason=".".join(path))

    def _resolved(self, table: str | tuple[str, str]) -> Path:
        named = tuple(table.split(".")) if isinstance(table, str) else tuple(table)
        if not 1 <= len(named) <= 2 or not all(named):
            raise ConfigError(f"{table!r}: name it 'table' or 'schema.table', or give a tuple of the parts")
        with transaction(self.engine, self.schema) as tx:
            row = tx.connection.execute(TABLE, {"name": quoted(*named)}).one_or_none()
        if row is None:
            raise ConfigError(f"there is no table {'.'.join(named)}: check its name, and the schema")
        return row.schema, row.name

    def _retry_locked(self, step: Callable[[Tx], None]) -> None:
        """Run the step in one transaction; retried where a lock is not granted in time (see :func:`_hold`)."""

        def alone() -> None:
            with transaction(self.engine, self.schema) as tx:
                tx.execute(ALONE, name=f"seekpoint reload {self.schema}")  # no reload is opened meanwhile; none is open
                step(tx)

        retried(alone, tries=TRIES)


def _generation(tx: Tx, row: Any) -> Generation:
    others = [one for one in leaves.partitions(tx, (row.table_schema, row.parent)) if one != row.current]
    names = (row.table_name, row.current, row.parent, *others)
    table, current, parent, *rest = (f"{row.table_schema}.{name}" for name in names)
    return Generation(table, current, parent, row.number, row.run, row.changed_at, tuple(rest))


def _require(reasons: Sequence[str]) -> None:
    if reasons:
        raise ReloadRefused(reasons)


def _groups(tx: Tx, path: Path) -> Sequence[str]:
    """The groups that are known to write the table."""
    known = tx.execute(reload_run.GROUPS).all()
    return [group.name for group in known if path in (resolve(tx.connection, one) for one in group.tables)]


def _hold(tx: Tx, path: Path) -> None:
    """Lock the workers' positions, so that none writes the table: then only readers can hold its lock.

    Locks are taken in the same order as by a cut-over (see :mod:`seekpoint.jobs.reload.cutover`). The wait for the
    workers is as long as their batches are. The wait for the table is short: new readers wait until it is over.
    """
    groups = _groups(tx, path)
    for group in groups:
        tx.execute(LOCK_GROUP, group=group).all()
    tx.execute(reload_run.LOCK_OFFSETS, groups=groups).all()
    run(tx.connection, "SET LOCAL lock_timeout = {wait}", wait=f"{DDL_WAIT}ms")


# -- why not -------------------------------------------------------------------------------------------------------

_MARK = text(
    """
    SELECT a.attnum IS NOT NULL AS has_column, k.oid IS NOT NULL AS is_ours
    FROM (SELECT to_regclass(:name) AS oid) t
    LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = :column AND NOT a.attisdropped
    LEFT JOIN pg_constraint k ON k.conrelid = t.oid AND k.conname = :column AND k.contype = 'c'
    """
)
_MAY_READ = text(
    "SELECT has_table_privilege(:role, :table, 'SELECT') AND has_schema_privilege(:role, :schema, 'USAGE')"
)


def _reasons(tx: Tx, path: Path) -> list[str]:
    """Every reason why the table cannot be kept in generations, with its remedy."""
    connection, shown = tx.connection, ".".join(path)
    kind = connection.execute(TABLE, {"name": quoted(*path)}).one().kind
    if kind != "r":
        return [f"{shown} is no plain table"]
    reasons = [
        f"{shown} belongs to another role: enable generations as its owner"
        if what == OTHER_OWNER
        else f"{shown} has {what}, which would hang on one generation and not on the view: drop it (views can be "
        "created again, on the enabled table), or reload by 'merge'"
        for what in [*hanging(connection, path), *_inherited(connection, path)]
    ]
    mark = connection.execute(_MARK, {"name": quoted(*path), "column": COLUMN}).one()
    if mark.has_column and not mark.is_ours:
        reasons.append(f"{shown} has a column {COLUMN} of its own: rename it")
    reasons += [
        f"there is a table {'.'.join(other)} already, a name that is needed: rename it"
        for other in _names(path)
        if connection.execute(TABLE, {"name": quoted(*other)}).one_or_none() is not None
    ]
    pointers = quoted(tx.schema, generation.name)
    for row in leaves.grants(connection, path):
        asked = {"role": row.role, "table": pointers, "schema": tx.schema}
        if row.what in {"INSERT", "UPDATE"} and (row.is_public or not connection.execute(_MAY_READ, asked).scalar()):
            reasons.append(f"role {row.role} may write {shown}, and must know where: GRANT SELECT ON {pointers} TO it")
    return reasons + _of_runs(tx, path)


_INHERITED = text(
    "SELECT 'inheritance' FROM pg_inherits WHERE to_regclass(:name) IN (inhrelid, inhparent) "
    "UNION SELECT 'a row type of its own (OF)' FROM pg_class WHERE oid = to_regclass(:name) AND reloftype <> 0"
)


def _inherited(connection: Connection, path: Path) -> Sequence[str]:
    return connection.execute(_INHERITED, {"name": quoted(*path)}).scalars().all()


def _of_runs(tx: Tx, path: Path) -> list[str]:
    return [
        f"{'.'.join(path)}: reload {row.id} is {row.state}: bring it to its end, or abort it"
        for row in tx.execute(reload_run.OPEN_RUNS)
        if ".".join(path) in row.tables
    ]


def _names(path: Path) -> tuple[Path, Path]:
    """What the partitioned table and the first generation are called."""
    return (path[0], fitted(path[1], "_generations")), (path[0], fitted(path[1], f"_g{FIRST}"))


# -- enable -------------------------------------------------------------------------------------------------------


def _marked(path: Path) -> dict[str, Part]:
    return {"table": path, "column": (COLUMN,), "number": FIRST}


def _mark(tx: Tx, path: Path) -> None:
    """Add the column, with a constant for existing rows; its CHECK is validated later."""
    _require(_reasons(tx, path))
    _hold(tx, path)
    run(
        tx.connection,
        "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT {number}, "
        "DROP CONSTRAINT IF EXISTS {column}, "
        "ADD CONSTRAINT {column} CHECK ({column} = {number}::bigint) NOT VALID",
        **_marked(path),
    )


def _unmark(tx: Tx, path: Path) -> None:
    if leaves.pointer(tx, path) is None:
        _hold(tx, path)
        run(tx.connection, "ALTER TABLE {table} DROP COLUMN IF EXISTS {column}", **_marked(path))


def _enable(tx: Tx, path: Path) -> None:
    """Make the table a partition, and give its name to a view, in one transaction."""
    connection = tx.connection
    _hold(tx, path)
    run(connection, "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", table=path)
    _require(_reasons(tx, path))
    parent, leaf = _names(path)
    run(connection, "ALTER TABLE {table} RENAME TO {leaf}", table=path, leaf=(leaf[1],))
    kept = numbers.loosen(connection, leaf)
    run(
        connection,
        "CREATE TABLE {parent} (LIKE {leaf} INCLUDING GENERATED) PARTITION BY LIST ({column})",
        parent=parent,
        leaf=leaf,
        column=(COLUMN,),
    )
    leaves.attach_partition(tx, parent, leaf, FIRST)
    numbers.own(connection, kept, parent)
    view.make(tx, path, parent, FIRST)
    leaves.grant_alike(connection, leaf, path)
    _copy_comments(connection, leaf, path)
    row = {"table_schema": path[0], "table_name": path[1], "number": FIRST, "current": leaf[1], "parent": parent[1]}
    tx.execute(sql.INSERT_GENERATION, [row])


_COMMENTS = text(
    """
    SELECT a.attname AS column, d.description AS said FROM pg_description d
    LEFT JOIN pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid AND d.objsubid > 0
    WHERE d.objoid = to_regclass(:name) AND d.classoid = CAST('pg_class' AS regclass)
    """
)


def _copy_comments(connection: Connection, given: Path, to: Path) -> None:
    """Copy the comments of the table and its columns."""
    kind = connection.execute(TABLE, {"name": quoted(*to)}).one().kind
    for row in connection.execute(_COMMENTS, {"name": quoted(*given)}).all():
        what = "COLUMN" if row.column is not None else "VIEW" if kind == "v" else "TABLE"
        run(
            connection,
            "COMMENT ON {what} {name} IS {said}",
            what=ident.SQL(what),
            name=to if row.column is None else (*to, row.column),
            said=row.said,
        )


# -- disable -------------------------------------------------------------------------------------------------------


def _require_forgotten(tx: Tx, path: Path, row: Row[Any] | None, patience: float) -> None:
    """Raise ReloadRefused where a session still reads an earlier generation."""
    if row is None or row.run is None:
        return
    if pids := leaves.still_reading(tx, row.turned, patience):
        shown = f"{'.'.join(path)}: a session reads in a snapshot from before the last cut-over, after {patience:g} s"
        raise ReloadRefused([f"{shown}: wait for the sessions of pid {', '.join(map(str, pids))}, or end them"])


def _disable(tx: Tx, path: Path) -> None:
    _require(_of_runs(tx, path))  # so that the current generation does not change
    connection, row = tx.connection, leaves.pointer(tx, path)
    if row is None:  # the try before took effect
        return
    _require_forgotten(tx, path, row, leaves.PATIENCE)
    parent, leaf = (path[0], row.parent), (path[0], row.current)
    _hold(tx, path)
    leaves.grant_alike(connection, path, leaf)
    run(connection, "COMMENT ON TABLE {leaf} IS NULL", leaf=leaf)  # a reload notes there what it writes
    _copy_comments(connection, path, leaf)
    try:  # the view before its tables, in the order in which readers lock them: else there could be a deadlock
        run(connection, "DROP VIEW {view}", view=path)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ReloadRefused([f"{'.'.join(path)}: {error.diag.message_detail}: drop that first"]) from error
    run(connection, "LOCK TABLE {parent} IN ACCESS EXCLUSIVE MODE", parent=parent)
    kept = numbers.kept_sequences(connection, parent)
    run(connection, "ALTER TABLE {parent} DETACH PARTITION {leaf}", parent=parent, leaf=leaf)
    numbers.own(connection, kept, leaf)
    run(connection, "ALTER TABLE {leaf} DROP COLUMN {column}", leaf=leaf, column=(COLUMN,))
    run(connection, "DROP TABLE {parent}", parent=parent)
    run(connection, "ALTER TABLE {leaf} RENAME TO {table}", leaf=leaf, table=(path[1],))
    numbers.tighten(connection, kept, path)
    tx.execute(sql.DELETE_GENERATION, of_schema=path[0], of_table=path[1])
