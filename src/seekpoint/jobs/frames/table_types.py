"""Compares the types of frames with those of their tables, before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.binding import BoundRows
from seekpoint.jobs.frames.exact_types import misfits
from seekpoint.jobs.tables.targets import Target
from seekpoint.sinks.column_types import types_seen
from seekpoint.sinks.copy import driver_of


def require_types(connection: Connection, tables: Iterable[Target], frames: Sequence[BoundRows]) -> None:
    """Raise ConfigError for a frame's column whose type the table's column does not hold exactly."""
    for table in tables:
        types = types_seen(driver_of(connection), table.path)
        for feed in table.feeds:
            frame = frames[feed.number]
            if messages := misfits(frame.written, frame.types, types, frame.sink.conversions):
                raise ConfigError(f"{frame.name}: {table.name}: {messages[0]}")
