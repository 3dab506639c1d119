"""Seekpoint: Kafka to Postgres, effectively exactly once.

Rows and the offsets of their records are committed in one Postgres transaction; when Kafka assigns a partition, the
consumer seeks to the offset stored in Postgres. Names that need the Kafka client or the database driver are loaded when
first used: a declaration (``Pipeline``, codecs, sinks) imports neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.codecs import Bytes, Json, Text
from seekpoint.errors import Fenced, Poison, SeekpointError
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import DeadLetterLimits, Limits, OnPoison, Retry, StartAt
from seekpoint.records import Partition, Record, Span
from seekpoint.sinks import Accumulate, Append, Upsert

if TYPE_CHECKING:
    from seekpoint.kafka.config import consumer_config
    from seekpoint.ledger import Ledger
    from seekpoint.worker.assignment import Assignment
    from seekpoint.worker.worker import Worker

__all__ = [
    "Accumulate",
    "Append",
    "Assignment",
    "Batch",
    "Bytes",
    "DeadLetterLimits",
    "Fenced",
    "Json",
    "Ledger",
    "Limits",
    "OnPoison",
    "Partition",
    "Pipeline",
    "Poison",
    "Record",
    "Retry",
    "SeekpointError",
    "Span",
    "StartAt",
    "Text",
    "Upsert",
    "Worker",
    "consumer_config",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs the Kafka client or the database driver, when it is first used."""
    if name == "Assignment":
        from seekpoint.worker.assignment import Assignment  # noqa: PLC0415 -- the Kafka client and the driver

        return Assignment
    if name == "Ledger":
        from seekpoint.ledger import Ledger  # noqa: PLC0415 -- the driver

        return Ledger
    if name == "Worker":
        from seekpoint.worker.worker import Worker  # noqa: PLC0415 -- the Kafka client and the driver

        return Worker
    if name == "consumer_config":
        from seekpoint.kafka.config import consumer_config  # noqa: PLC0415 -- the Kafka client

        return consumer_config
    raise AttributeError(f"module 'seekpoint' has no attribute {name!r}")
