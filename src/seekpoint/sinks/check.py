"""Checks a sink's table before the first record: it exists, has the columns, and the role may write to it.

Nothing is written, and no trigger fires: for EXPLAIN the server already checks names and privileges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.postgres.sqlstates import (
    FEATURE_NOT_SUPPORTED,
    GENERATED_ALWAYS,
    INSUFFICIENT_PRIVILEGE,
    INVALID_COLUMN_REFERENCE,
    INVALID_SCHEMA_NAME,
    UNDEFINED_COLUMN,
    UNDEFINED_TABLE,
    WRONG_OBJECT_TYPE,
    driver_error,
)
from seekpoint.sinks.altered_table import rerun_if_changed
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.session_tables import looked_up

_REMEDIES = {
    UNDEFINED_TABLE: f"{remedies.create_table()}, or correct its name in the pipeline",
    INVALID_SCHEMA_NAME: "create the schema, or correct its name in the pipeline",
    UNDEFINED_COLUMN: f"add the column to the table ({remedies.change_table()}), or leave it out of the row",
    INSUFFICIENT_PRIVILEGE: "grant the right to the role of the database's URL (docs/guides/operate.md, Privileges)",
    GENERATED_ALWAYS: "the database generates this column: leave it out of the row",
    INVALID_COLUMN_REFERENCE: "the database generates this column: leave it out of the row",
    WRONG_OBJECT_TYPE: "name a table",
    FEATURE_NOT_SUPPORTED: "name a table",
}


def check_append(
    tx: Connection, sink: str, path: Sequence[str], columns: Sequence[str] | None
) -> tuple[str, ColumnTypes]:
    """The statement that can append rows, and the table's types. ``columns`` is None while they are not known.

    Raises ConfigError if the table, a column or a privilege is missing.
    """
    with explained(sink), rerun_if_changed(tx, path):
        table = looked_up(driver_of(tx), path)
        if table.is_plain or table.is_secured:
            column_list = (
                sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
            )
            nothing = sql.SQL(", ").join([sql.SQL("NULL")] * len(columns or ()))
            statement = "EXPLAIN INSERT INTO {}{} OVERRIDING SYSTEM VALUE SELECT {} WHERE false"
            plan(tx, sql.SQL(statement).format(sql.Identifier(*path), column_list, nothing))
        else:  # a view, or a table with rules: only COPY itself shows whether it takes rows
            given_names = f" ({', '.join(map(quoted, columns))})" if columns else ""
            with psycopg.Cursor(driver_of(tx)).copy(f"COPY {quoted(*path)}{given_names} FROM STDIN"):
                pass
        types = read_types(driver_of(tx), path).columns
    return "insert" if table.is_secured else "copy", types


def plan(tx: Connection, statement: sql.Composed, parameters: Sequence[Any] | None = None) -> None:
    """Run an EXPLAIN without preparing it."""
    psycopg.Cursor(driver_of(tx)).execute(statement, parameters, prepare=False)


@contextmanager
def explained(sink: str) -> Iterator[None]:
    """Turn the server's errors about names and privileges into a ConfigError with a remedy."""
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if (remedy := _REMEDIES.get(cause.sqlstate or "")) is None:
            raise
        lines = [cause.diag.message_primary, *getattr(cause, "__notes__", ())]
        hint = f" ({cause.diag.message_hint.rstrip('.')})" if cause.diag.message_hint else ""
        raise ConfigError(f"{sink}: {'; '.join(lines)}{hint}; {remedy}") from error
