"""Checks an upsert's table before the first record: its columns, the key's index, and privileges."""

from __future__ import annotations

from typing import Any

from psycopg import sql
from sqlalchemy import Connection

from seekpoint.sinks.altered_table import rerun_if_changed
from seekpoint.sinks.catalog import Layout, survey
from seekpoint.sinks.check import explained, plan
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.upsert.upsert_sql import UpsertSql


def check_upsert(tx: Connection, target: Target, *, deletes: bool) -> Layout:
    """The table's layout. Raises ConfigError if the table, a column, the key's index or a privilege is missing."""
    with explained(target.name), rerun_if_changed(tx, target.path):
        layout = survey(tx, target).layout
        statements = UpsertSql(target, layout)
        if target.columns is not None:
            _explain(tx, statements.insert, len(target.columns), statements)
        if deletes:
            _explain(tx, statements.delete, len(target.deletes), statements)
    return layout


def _explain(tx: Connection, statement: sql.Composed, arrays: int, statements: UpsertSql) -> None:
    nothing: list[Any] = [[] for _ in range(arrays)]
    plan(tx, sql.SQL("EXPLAIN ") + statement, [*nothing, *statements.gate])
