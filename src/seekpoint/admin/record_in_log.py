"""A record as the log has it, for operators: the one that a partition is stopped at, or that is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range, read_range
from seekpoint.ledger.positions import Position
from seekpoint.records import RawRecord

IDLE = 5.0  # seconds that the brokers may say nothing: an operator waits


@dataclass(frozen=True, slots=True)
class RecordInFront:
    """A record that a partition is stopped at, or that is tried again: as the log has it, with its last error.

    ``error`` is None where the process that tried it never came back, ``attempts`` how often it was tried.
    """

    record: RawRecord
    error: str | None
    attempts: int


def record_in_front(kafka: Mapping[str, Any], position: Position) -> RecordInFront:
    """The record that the partition is stopped at or that is tried again, read from the log now; nothing is changed.

    Raises ConfigError where no record is at fault, RangeLost and RangeStuck where the log does not have it,
    TopicRecreated, and KafkaUnavailable.
    """
    stop = position.stop
    offset, error = position.attempt_offset, position.attempt_error
    if stop is not None and stop.kind == "PoisonStop":
        offset, error = stop.offset, stop.message
    if offset is None:
        raise ConfigError(f"{position.partition}: no record stopped it, and none is tried again")
    if not kafka:
        raise ConfigError(
            "no brokers are named, who have the record: Admin(engine, kafka), seekpoint ui --kafka-config"
        )
    only = Range(position.partition, position.topic_id, offset, offset + 1)
    found: list[RawRecord] = []
    for piece in read_range(kafka, only, idle=IDLE):
        found += [*piece.records, *(record for record, _ in piece.unreadable)]
    if not found:
        raise ConfigError(f"{position.partition} has no record at offset {offset} any more: compaction removed it")
    return RecordInFront(found[0], error, position.attempts)
