"""Seekpoint: Kafka to Postgres, effectively exactly once.

The offset of what was read and the rows it produced are committed in one Postgres transaction; when Kafka
assigns a partition, the consumer seeks to the offset stored in Postgres. Names are loaded when first used, so
that a declaration (``Pipeline``, codecs, sinks) imports neither the Kafka client nor the database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seekpoint.assignment import Assignment
    from seekpoint.codecs import Bytes, Json, Text
    from seekpoint.errors import Fenced, Poison, SeekpointError
    from seekpoint.kafka.config import consumer_config
    from seekpoint.ledger import Ledger
    from seekpoint.pipeline import Pipeline
    from seekpoint.policy import DeadLetterLimits, Limits, OnPoison, Retry, StartAt
    from seekpoint.records import Batch, Partition, Record, Span
    from seekpoint.running import Worker
    from seekpoint.sinks import Append, Upsert

_HOMES = {
    "Append": "seekpoint.sinks",
    "Assignment": "seekpoint.assignment",
    "Batch": "seekpoint.records",
    "Bytes": "seekpoint.codecs",
    "DeadLetterLimits": "seekpoint.policy",
    "Fenced": "seekpoint.errors",
    "Json": "seekpoint.codecs",
    "Ledger": "seekpoint.ledger",
    "Limits": "seekpoint.policy",
    "OnPoison": "seekpoint.policy",
    "Partition": "seekpoint.records",
    "Pipeline": "seekpoint.pipeline",
    "Poison": "seekpoint.errors",
    "Record": "seekpoint.records",
    "Retry": "seekpoint.policy",
    "SeekpointError": "seekpoint.errors",
    "Span": "seekpoint.records",
    "StartAt": "seekpoint.policy",
    "Text": "seekpoint.codecs",
    "Upsert": "seekpoint.sinks",
    "Worker": "seekpoint.running",
    "consumer_config": "seekpoint.kafka.config",
}

__all__ = [
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
    if name not in _HOMES:
        raise AttributeError(f"module 'seekpoint' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
