"""Checks for jobs whether columns can hold the fields of a pipeline's values."""

from __future__ import annotations

from sqlalchemy import Connection

from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.copy import driver_of


def check_values(tx: Connection, pipeline: Pipeline) -> None:
    """Raise ConfigError, as a worker's start does, for a field that its column cannot hold unchanged; takes no lock.

    The digits of a JSON number that a float has lost cannot be seen later.
    """
    for sink in pipeline.sinks:
        if isinstance(sink, TableSink):
            sink.check_fields(pipeline.codecs_of(sink), read_types(driver_of(tx), sink.path).columns)
