"""Kafka to Postgres, effectively exactly once: for declarations, for workers, and for your own loop.

Rows and the offsets of their records are committed in one Postgres transaction; when Kafka assigns a partition, the
consumer seeks to the offset stored in Postgres. Names that need the Kafka client or the database driver are loaded when
first used: a declaration (``Pipeline``, codecs, sinks) imports neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.codecs import Bytes, Json, Text
from seekpoint.errors import Fenced, Poison, SeekpointError
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pattern import Pattern
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import DeadLetterLimits, Limits, OnPoison, Retry, StartAt
from seekpoint.pipeline.sink import AsyncHandler, Handler
from seekpoint.records import Partition, RawRecord, Record, Span
from seekpoint.sinks import Accumulate, Append, Upsert

if TYPE_CHECKING:
    from seekpoint.kafka.config import consumer_config
    from seekpoint.ledger import Attempt, Claim, Claimed, Expected, Ledger, Move, Passed, Position, Stop
    from seekpoint.worker.assignment import Assignment, Chunk
    from seekpoint.worker.health import Health
    from seekpoint.worker.worker import Running, Worker

__all__ = [
    "Accumulate",
    "Append",
    "Assignment",
    "AsyncHandler",
    "Attempt",
    "Batch",
    "Bytes",
    "Chunk",
    "Claim",
    "Claimed",
    "DeadLetterLimits",
    "Expected",
    "Fenced",
    "Handler",
    "Health",
    "Json",
    "Ledger",
    "Limits",
    "Move",
    "OnPoison",
    "Partition",
    "Passed",
    "Pattern",
    "Pipeline",
    "Poison",
    "Position",
    "RawRecord",
    "Record",
    "Retry",
    "Running",
    "SeekpointError",
    "Span",
    "StartAt",
    "Stop",
    "Text",
    "Upsert",
    "Worker",
    "consumer_config",
]

_LEDGER = {"Attempt", "Claim", "Claimed", "Expected", "Ledger", "Move", "Passed", "Position", "Stop"}


def __getattr__(name: str) -> Any:
    """Import a name that needs the Kafka client or the database driver, when it is first used."""
    if name in _LEDGER:
        from seekpoint import ledger  # noqa: PLC0415 -- the driver

        return getattr(ledger, name)
    if name in {"Assignment", "Chunk"}:
        from seekpoint.worker import assignment  # noqa: PLC0415 -- the Kafka client and the driver

        return getattr(assignment, name)
    if name in {"Running", "Worker"}:
        from seekpoint.worker import worker  # noqa: PLC0415 -- the Kafka client and the driver

        return getattr(worker, name)
    if name == "Health":
        from seekpoint.worker.health import Health  # noqa: PLC0415 -- the driver

        return Health
    if name == "consumer_config":
        from seekpoint.kafka.config import consumer_config  # noqa: PLC0415 -- the Kafka client

        return consumer_config
    raise AttributeError(f"module 'seekpoint' has no attribute {name!r}")
