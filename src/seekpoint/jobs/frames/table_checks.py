"""Checks the tables of a pipeline of DataFrames, before anything is claimed or read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, text

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.binding import BoundRows
from seekpoint.jobs.frames.spark_types import misfits
from seekpoint.jobs.reload.open import of_rights
from seekpoint.jobs.tables.targets import PipelineSource, Target, targets
from seekpoint.sinks.catalog import quoted
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.copy import driver_of

_UNREADABLE = text(
    """
    SELECT quote_ident(current_user) AS role
    WHERE NOT has_table_privilege(CAST(to_regclass(:name) AS oid), 'SELECT')
    """
)


def checked_tables(connection: Connection, source: PipelineSource, frames: Sequence[BoundRows]) -> tuple[Target, ...]:
    """The tables that the frames write. Raises SchemaMismatch, and ConfigError for a table that cannot hold their rows.

    Also raises it if the role lacks a privilege; the message has the GRANT to run.
    """
    try:
        source.pipeline.check_tables(connection)
        tables = targets(connection, [source])
    except ConfigError as error:
        error.args = (remedies.without_command(error.text),)
        raise
    _require_order_between(tables)
    _require_types(connection, tables, frames)
    _require_rights(connection, tables)
    return tables


def _require_order_between(tables: Iterable[Target]) -> None:
    """Raise ConfigError if two frames upsert rows of one table without a column that orders them."""
    for table in tables:
        if len(table.feeds) > 1 and any(feed.sink.guarded is False for feed in table.feeds):
            raise ConfigError(
                f"{table.name} is written by {len(table.feeds)} frames, one after the other, so a row of an older "
                "record may overwrite a newer one: make one frame of them (unionByName), or name the column that "
                "orders the rows, Upsert(order_by=...) or Upsert(offset_column=...)"
            )


def _require_types(connection: Connection, tables: Iterable[Target], frames: Sequence[BoundRows]) -> None:
    """Raise ConfigError for a frame's column whose type the table's column does not hold exactly."""
    for table in tables:
        types = read_types(driver_of(connection), table.path).columns
        for feed in table.feeds:
            frame = frames[feed.number]
            if messages := misfits(frame.written, frame.types, types, frame.sink.conversions):
                raise ConfigError(f"{frame.name}: {table.name}: {messages[0]}")


def _require_rights(connection: Connection, tables: Iterable[Target]) -> None:
    """Raise ConfigError, with the GRANT to run, if the role may not stage rows for these tables."""
    missing = of_rights(connection)
    for target in tables:
        table = quoted(*target.path)
        for row in connection.execute(_UNREADABLE, {"name": table}):
            missing.append(
                f"role {row.role} may not read {table}, and tasks stage rows in tables that are made like it: "
                f"GRANT SELECT ON {table} TO {row.role}"
            )
    if missing:
        raise ConfigError("; ".join(missing))
