"""Checks, before anything is read, that tables take the rows of frames, and hold their types exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from seekpoint import remedies
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.binding import BoundRows
from seekpoint.jobs.frames.exact_types import misfits
from seekpoint.jobs.tables.targets import PipelineSource, Target, targets
from seekpoint.sinks.column_types import types_seen
from seekpoint.sinks.copy import driver_of


def checked_tables(connection: Connection, source: PipelineSource) -> tuple[Target, ...]:
    """The tables that the sinks write, as defined now. Raises ConfigError for one that does not take their rows."""
    try:
        source.pipeline.check_tables(connection)
        return targets(connection, [source])
    except ConfigError as error:
        error.args = (remedies.without_command(error.text),)
        raise


def require_types(connection: Connection, tables: Iterable[Target], frames: Sequence[BoundRows]) -> None:
    """Raise ConfigError for a frame's column whose type the table's column does not hold exactly."""
    for table in tables:
        types = types_seen(driver_of(connection), table.path)
        for feed in table.feeds:
            frame = frames[feed.number]
            if messages := misfits(frame.written, frame.types, types, frame.sink.conversions):
                raise ConfigError(f"{frame.name}: {table.name}: {messages[0]}")
