"""Creates the view that reads the current generation of a table, and the functions that it calls."""

from __future__ import annotations

from psycopg import sql as ident
from sqlalchemy import text

from seekpoint.jobs.run import Tx
from seekpoint.jobs.tables.sql_templates import names, run
from seekpoint.jobs.tables.targets import Path
from seekpoint.ledger.tables import generation
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.target_table import COLUMN

_COLUMNS = text(
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped "
    "AND attname <> :column ORDER BY attnum"
)

# "Immutable", so that the planner puts its answer into the plan; ATTACH makes all plans that were made before invalid.
_PLANNED = (
    """
    CREATE OR REPLACE FUNCTION {schema}.generation_planned(parent regclass) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$BEGIN
        RETURN (SELECT max(CAST(substring(pg_get_expr(c.relpartbound, c.oid) FROM '[0-9]+') AS bigint))
                FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = parent);
    END$$
    """,
    """
    CREATE OR REPLACE FUNCTION {schema}.generation_turned() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS $$BEGIN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'this transaction has planned its statement before the '
            'table''s next generation was attached, which counts now: begin the transaction again';
    END$$
    """,
)


def make(tx: Tx, path: Path, parent: Path, first: int) -> None:
    """Create the view: it reads the generation that is current in the reader's snapshot, the first in an older one.

    It also selects from an empty subquery, at no cost: that makes the view not updatable, so that Postgres refuses an
    INSERT into it instead of finding no generation for the row.

    A transaction that has held its locks since before a table was attached uses its old plans for prepared statements
    and functions, and would find no rows after the cut-over. The generation that was attached last is a constant of
    each plan: such a statement fails with 40001, and finds the rows in another transaction.
    """
    for body in _PLANNED:
        run(tx.connection, body, schema=(tx.schema,))
    columns = tx.connection.execute(_COLUMNS, {"name": quoted(*parent), "column": COLUMN}).scalars().all()
    run(
        tx.connection,
        "CREATE VIEW {view} AS SELECT {columns} FROM {parent} AS generations CROSS JOIN (SELECT) AS unwritable "
        "WHERE generations.{column} = coalesce((SELECT CASE WHEN counting.number <= "
        "{schema}.generation_planned({of_parent}) THEN counting.number ELSE {schema}.generation_turned() END "
        "FROM {pointers} AS counting "
        "WHERE counting.table_schema = {of_schema} AND counting.table_name = {of_table}), {first})",
        view=path,
        columns=names(columns, "generations"),
        parent=parent,
        column=(COLUMN,),
        schema=(tx.schema,),
        of_parent=ident.SQL("{}::regclass").format(ident.Literal(quoted(*parent))),
        pointers=(tx.schema, generation.name),
        first=first,
        of_schema=path[0],
        of_table=path[1],
    )
