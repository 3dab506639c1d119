"""Checks a table of sums before the first record: its columns and their types, the key's index, privileges."""

from __future__ import annotations

import psycopg
from psycopg import sql
from sqlalchemy import Connection, text

from seekpoint.errors import ConfigError
from seekpoint.sinks.accumulate.accumulate_sql import AccumulateSql
from seekpoint.sinks.accumulate.aggregate import SumTarget
from seekpoint.sinks.altered_table import rerun_if_changed
from seekpoint.sinks.catalog import Layout, quoted, survey
from seekpoint.sinks.check import explained, plan


def check_accumulate(tx: Connection, target: SumTarget) -> Layout:
    """The table's layout. Raises ConfigError if the table, a column, the key's index or a privilege is missing.

    Also raises it for a column that cannot be added to, or whose values have no order.
    """
    assert target.columns is not None
    with explained(target.name), rerun_if_changed(tx, target.path):
        layout = survey(tx, target).layout
        statements = AccumulateSql(target, layout)
        _check_order(tx, target)
        _check_inheritance(tx, target)
        nothing: list[object] = [[] for _ in target.columns]
        plan(tx, sql.SQL("EXPLAIN ") + statements.insert_exactly, [*nothing, *statements.gate])
    return layout


_INHERITING = text(
    "SELECT min(i.inhrelid::regclass::text) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent "
    "WHERE i.inhparent = to_regclass(:table) AND c.relkind = 'r'"
)


def _check_inheritance(tx: Connection, target: SumTarget) -> None:
    """Raise ConfigError for a table from which other tables inherit: a key might have rows in several of them."""
    if (child := tx.execute(_INHERITING, {"table": quoted(*target.path)}).scalar()) is not None:
        raise ConfigError(
            f"{target.name}: {child} inherits from the table, and a key with a row in both would be added to "
            "twice: use a table that no other inherits from, or a partitioned one"
        )


def _check_order(tx: Connection, target: SumTarget) -> None:
    """Raise ConfigError for a column of ``least`` or ``most`` whose type has no min() and max()."""
    for name in (*target.least, *target.most):
        statement = "EXPLAIN SELECT min({0}), max({0}) FROM {1} WHERE false"
        try:
            plan(tx, sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(*target.path)))
        except psycopg.errors.UndefinedFunction as error:
            raise ConfigError(
                f"{target.name}: column {name!r} cannot be in least= or most=: {error.diag.message_primary}; change "
                "its type to one that has min() and max()"
            ) from error
