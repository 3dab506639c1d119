"""Reads from the log, for operators, the record that stopped a partition or is being retried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range, read_range
from seekpoint.ledger.positions import Position
from seekpoint.records import RawRecord

IDLE = 5.0  # seconds to wait for an answer from the brokers: an operator is waiting


@dataclass(frozen=True, slots=True)
class RecordInFront:
    """The record that stopped a partition or is being retried, as in the log, with its last error.

    ``error`` is None if the process that tried it crashed, or if no attempt has ended yet; ``attempts`` is how often it
    was tried.
    """

    record: RawRecord
    error: str | None
    attempts: int


def record_in_front(kafka: Mapping[str, Any], position: Position) -> RecordInFront:
    """Read from the log the record that stopped the partition or is being retried; changes nothing.

    Raises ConfigError if there is no such record, or if compaction removed it; RangeLost if the log no longer has it;
    RangeStuck if the brokers do not send it; TopicRecreated if the topic was created again; KafkaUnavailable if no
    broker answers.
    """
    stop = position.stop
    offset, error = position.attempt_offset, position.attempt_error
    if stop is not None and stop.kind == "PoisonStop":
        offset, error = stop.offset, stop.message
    if offset is None:
        raise ConfigError(f"{position.partition}: no record has stopped it, and no record is waiting for a retry")
    if not kafka:
        raise ConfigError(
            "the record is read from the brokers, and none are named: Admin(engine, kafka), seekpoint ui --kafka-config"
        )
    only = Range(position.partition, position.topic_id, offset, offset + 1)
    records: list[RawRecord] = []
    for piece in read_range(kafka, only, idle=IDLE):
        records += [*piece.records, *(record for record, _ in piece.unreadable)]
    if not records:
        raise ConfigError(f"{position.partition} has no record at offset {offset} any more: compaction removed it")
    return RecordInFront(records[0], error, position.attempts)
