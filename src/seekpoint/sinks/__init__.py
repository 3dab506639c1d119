"""Sinks, for declarations: tables to which records are written, in the transaction that advances the position.

Classes of your own sinks inherit from ``Sink`` and ``SinkWriter``. ``AppendArrow`` and ``copy_into`` write columns
instead of rows, and need the extra ``arrow``; ``Batch.arrow()`` gives a handler its batch as a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.pipeline.sink import Row, RowRefused, Sink, SinkWriter, Writer
from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.append import Append
from seekpoint.sinks.upsert.upsert import Upsert

if TYPE_CHECKING:
    from seekpoint.sinks.arrow import AppendArrow, copy_into

__all__ = [
    "Accumulate",
    "Append",
    "AppendArrow",
    "Row",
    "RowRefused",
    "Sink",
    "SinkWriter",
    "Upsert",
    "Writer",
    "copy_into",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs the database driver, when it is first used."""
    if name in {"AppendArrow", "copy_into"}:
        from seekpoint.sinks import arrow  # noqa: PLC0415 -- the driver

        return getattr(arrow, name)
    raise AttributeError(f"module 'seekpoint.sinks' has no attribute {name!r}")
