"""Tables of sums in a run: aggregates their rows by key, and compares stored sums with recomputed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import sql as ident
from sqlalchemy import Connection, text

from seekpoint.jobs.tables.sql_templates import Composable, composed, name, names, run
from seekpoint.jobs.tables.staging_schema import unlogged
from seekpoint.jobs.tables.targets import Column, Path, Target
from seekpoint.sinks.catalog import quoted

TOLERANCE = "1e-9"  # relative: the last digits of a sum of floats depend on the order of its amounts


def sums(target: Target) -> Composable:
    """The aggregated columns of a key's rows: integers become numeric, which cannot overflow; floats stay floats."""
    sink = target.sums
    assert sink is not None
    values: list[Composable] = [name(column) for column in target.key]
    values += [composed("coalesce(sum({its}), 0) AS {its}", its=(column,)) for column in sink.add]
    for function, columns in (("min", sink.least), ("max", sink.most)):
        values += [composed(f"{function}({{its}}) AS {{its}}", its=(column,)) for column in columns]
    return ident.SQL(", ").join(values)


def aggregated(target: Target, rows: Composable) -> Composable:
    """A query that aggregates these rows to one row per key."""
    key = ident.SQL(", ").join(map(name, target.key))
    return composed("SELECT {sums} FROM ({rows}) AS added GROUP BY {key}", sums=sums(target), rows=rows, key=key)


def different(target: Target, columns: Sequence[str], left: str, right: str, *, is_exact: bool) -> Composable:
    """A condition: two rows of one key differ; unless ``is_exact``, sums of floats by more than the tolerance."""
    sink = target.sums
    assert sink is not None
    columns_of_target = _columns(target)
    conditions = []
    for column in columns:
        if column in target.key:
            continue
        is_float = not is_exact and column in sink.add and columns_of_target[column].is_double
        template = "{left} IS DISTINCT FROM {right}"
        if is_float:
            template = (
                "CASE WHEN {left} IS NOT DISTINCT FROM {right} THEN false WHEN {left} IS NULL OR {right} IS NULL "
                "OR {left} IN ({special}) OR {right} IN ({special}) THEN true "  # numeric has no infinity before 14
                f"ELSE abs({{left}}::numeric - {{right}}::numeric) > {TOLERANCE} * "
                "greatest(abs({left}::numeric), abs({right}::numeric)) END"
            )
        special = ident.SQL("'NaN', 'Infinity', '-Infinity'")
        conditions.append(composed(template, left=(left, column), right=(right, column), special=special))
    return ident.SQL("({})").format(ident.SQL(" OR ").join(conditions)) if conditions else ident.SQL("false")


_WIDE = text(
    """
    SELECT attname AS column, CASE WHEN atttypmod < 0 AND atttypid = 1700 THEN 'numeric'
        ELSE format('numeric(1000, %s)', CASE WHEN atttypid = 1700 THEN (atttypmod - 4 & 2047 # 1024) - 1024 ELSE 0 END)
        END AS type
    FROM pg_attribute
    WHERE attrelid = to_regclass(:name) AND attname = ANY (:columns) AND atttypid IN (20, 21, 23, 1700)
    """
)


def make_added(connection: Connection, path: Path, live: Path, columns: Sequence[str], add: Sequence[str]) -> None:
    """Create a table for amounts to add to a live table, without constraints, which hold only for sums.

    Its sums are wider than the live columns, with the same scale, because only the final sum must fit.
    """
    create = "CREATE {unlogged} TABLE {table} AS SELECT {columns} FROM {live} WITH NO DATA"
    run(connection, create, unlogged=unlogged(path[0]), table=path, columns=names(columns), live=live)
    for row in connection.execute(_WIDE, {"name": quoted(*live), "columns": list(add)}).all():
        alter = "ALTER TABLE {table} ALTER {column} TYPE {type}"
        run(connection, alter, table=path, column=(row.column,), type=ident.SQL(row.type))


def _columns(target: Target) -> Mapping[str, Column]:
    return {column.name: column for column in target.columns}
