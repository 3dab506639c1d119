"""Drops what a run has left: table by table, with short waits for locks, and its schema at last."""

from __future__ import annotations

import psycopg
from psycopg import sql as ident
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from seekpoint.jobs.run import Run, transaction
from seekpoint.jobs.tables.generations.generation_tables import left_behind, parents_of
from seekpoint.jobs.tables.sql_templates import composed
from seekpoint.ledger.sql import reload_run as sql
from seekpoint.postgres.sqlstates import DEPENDENT_OBJECTS_STILL_EXIST, UNDEFINED_TABLE, is_transient, sqlstate
from seekpoint.sinks.copy import driver_of

WAIT = 0.3  # seconds for the lock of a table in use; sessions that queue after this one wait as long
_TABLES = text(
    "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(:schema)) "
    "AND c.relkind IN ('r', 'p') ORDER BY c.relname"
)
_FUNCTIONS = text(
    "SELECT CAST(CAST(p.oid AS regprocedure) AS text) FROM pg_proc p "
    "WHERE p.pronamespace = to_regnamespace(quote_ident(:schema)) ORDER BY p.proname"
)
_DROP_TABLE = "DROP TABLE IF EXISTS {table}"


def sweep(engine: Engine, schema: str, run: Run) -> bool:
    """Drop a run's staging schema; returns whether nothing of it is left.

    Each table in a transaction of its own: one that dropped thousands would need all their locks at a time.
    A task that still writes keeps its table, and the schema, for now; so does an object of other users that depends on
    a table that was swapped (a view, a function of its rows): such objects are never dropped.
    """
    with transaction(engine, schema) as tx:
        generations, may_go = left_behind(tx, run)
        tables = tx.connection.execute(_TABLES, {"schema": run.staging_schema}).scalars().all()
        functions = tx.connection.execute(_FUNCTIONS, {"schema": run.staging_schema}).scalars().all()
    commands = [composed(_DROP_TABLE, table=(run.staging_schema, table)) for table in tables]
    commands += [composed("DROP FUNCTION IF EXISTS {it}", it=ident.SQL(function)) for function in functions]
    if may_go:
        # Readers hold a lock on each partition: sessions that queue after this one wait as long as it does.
        commands += [composed(_DROP_TABLE, table=path) for path in generations]
    commands.append(composed("DROP SCHEMA IF EXISTS {schema}", schema=(run.staging_schema,)))
    # Without ``may_go`` a session reads in a snapshot from before the cut-over.
    if not all([_run(engine, schema, command) for command in commands]) or not may_go:  # noqa: C419 -- each is tried
        return False
    with transaction(engine, schema) as tx:
        tx.execute(sql.SWEPT, its_run=run.id)
        parents = parents_of(tx, run)
    for parent in parents:  # autovacuum does not analyze partitioned tables, and the planner needs the statistics
        _run(engine, schema, composed("ANALYZE {parent}", parent=parent))
    return True


def drop_attempts(engine: Engine, schema: str, run: Run) -> None:
    """Drop what the tasks staged, once it is in the rebuilt tables: it takes as much space as they do."""
    with transaction(engine, schema) as tx:
        attempts = {row.table_name for row in tx.execute(sql.STAGED, its_run=run.id)}
        tables = tx.connection.execute(_TABLES, {"schema": run.staging_schema}).scalars().all()
    for table in tables:
        if table.startswith(tuple(f"{attempt}_" for attempt in attempts)):
            _run(engine, schema, ident.SQL(_DROP_TABLE).format(table=ident.Identifier(run.staging_schema, table)))


def _run(engine: Engine, schema: str, command: ident.Composed) -> bool:
    try:
        with transaction(engine, schema, lock_wait=WAIT) as tx:
            driver_of(tx.connection).execute(command)
    except (psycopg.Error, DBAPIError) as error:
        code = sqlstate(error)
        is_kept = code in {DEPENDENT_OBJECTS_STILL_EXIST, UNDEFINED_TABLE}  # the second: generations were disabled
        if code is None or not (is_transient(error) or is_kept):
            raise
        return False
    return True
