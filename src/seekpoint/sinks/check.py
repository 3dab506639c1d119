"""What can be known of a sink's table before the first record: is it there, with these columns, and may we write it.

Nothing is written, and no trigger fires: statements are planned, which is where the server looks at names and rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

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
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_type import ColumnTypes
from seekpoint.sinks.column_types import types_seen
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.target_table import recalled, rerun_if_changed

_REMEDIES = {
    UNDEFINED_TABLE: "create the table, or correct its name in the pipeline",
    INVALID_SCHEMA_NAME: "create the schema, or correct its name in the pipeline",
    UNDEFINED_COLUMN: "add the column to the table, or take it out of the row",
    INSUFFICIENT_PRIVILEGE: "grant the right to the role of the database's URL (docs/guides/operate.md, Privileges)",
    GENERATED_ALWAYS: "the database makes this column: take it out of the row",
    INVALID_COLUMN_REFERENCE: "the database makes this column: take it out of the row",
    WRONG_OBJECT_TYPE: "name a table",
    FEATURE_NOT_SUPPORTED: "name a table",
}


def check_append(
    tx: Connection, sink: str, path: Sequence[str], columns: Sequence[str] | None
) -> tuple[str, ColumnTypes]:
    """By which statement rows can be appended, and the table's types; ``columns`` are None while they are not known.

    Raises ConfigError where the table, a column or a right is missing.
    """
    with explained(sink), rerun_if_changed(tx, path):
        found = recalled(tx, path)
        if found.is_plain or found.is_secured:
            given = (
                sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
            )
            nothing = sql.SQL(", ").join([sql.SQL("NULL")] * len(columns or ()))
            statement = "EXPLAIN INSERT INTO {}{} OVERRIDING SYSTEM VALUE SELECT {} WHERE false"
            plan(tx, sql.SQL(statement).format(sql.Identifier(*path), given, nothing))
        else:  # a view, or a table with rules: COPY itself says whether it takes them
            given_names = f" ({', '.join(map(quoted, columns))})" if columns else ""
            with psycopg.Cursor(driver_of(tx)).copy(f"COPY {quoted(*path)}{given_names} FROM STDIN"):
                pass
        types = types_seen(driver_of(tx), path)
    return "insert" if found.is_secured else "copy", types


def plan(tx: Connection, statement: sql.Composed, parameters: Sequence[Any] | None = None) -> None:
    """Run an EXPLAIN, which is never prepared."""
    psycopg.Cursor(driver_of(tx)).execute(statement, parameters, prepare=False)


@contextmanager
def explained(sink: str) -> Iterator[None]:
    """Turn what the server says of a name or a right into a ConfigError that says what to do."""
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        cause = driver_error(error)
        if (remedy := _REMEDIES.get(cause.sqlstate or "")) is None:
            raise
        said = [cause.diag.message_primary, *getattr(cause, "__notes__", ())]
        raise ConfigError(f"{sink}: {'; '.join(said)}; {cause.diag.message_hint or remedy}") from error
