"""Checks for jobs whether columns can hold the fields of a pipeline's values."""

from __future__ import annotations

from sqlalchemy import Connection

from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.base import TableSink
from seekpoint.sinks.column_types import read_types
from seekpoint.sinks.copy import driver_of


def check_values(tx: Connection, pipeline: Pipeline) -> None:
    """Raise ConfigError for a field that its column cannot hold as it is, as a worker's start does; takes no lock.

    The digits that a float has lost of its JSON number are not seen later.
    """
    for sink in pipeline.sinks:
        if isinstance(sink, TableSink):
            sink.check_fields(pipeline.codecs_of(sink), read_types(driver_of(tx), sink.path).columns)
