"""A dead letter as a value, and its conversion from and to rows. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.errors import ConfigError
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State, storable

OPEN = (State.DEAD_LETTERED, State.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that was passed and not applied, with the reason and its state. Times are the database's.

    ``value`` is None also where the record was skipped, or where it was not asked for; then ``size`` is still its
    length in bytes, if it was stored. ``error`` and ``traceback`` say why it was dead-lettered, ``replay_error`` and
    ``replay_traceback`` why its last replay failed. ``version`` is the version of the handler, ``dead_lettered_by`` its
    process.
    """

    id: int
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    size: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: State
    cause: Cause
    error: str
    traceback: str | None
    sqlstate: str | None
    attempts: int
    version: int
    dead_lettered_at: datetime
    dead_lettered_by: UUID | None
    replays: int
    replayed_at: datetime | None
    replay_error: str | None
    replay_traceback: str | None
    closed_at: datetime | None
    closed_by: str | None
    closed_reason: str | None

    @property
    def at(self) -> Partition:
        """The partition that it comes from."""
        return Partition(self.topic, self.partition)

    @property
    def is_open(self) -> bool:
        """Whether an operator has to decide."""
        return self.state in OPEN

    @property
    def failure(self) -> Failure:
        """Why it was dead-lettered."""
        return Failure(self.cause, self.error, self.traceback, self.sqlstate, self.attempts)

    @property
    def record(self) -> RawRecord:
        """The record as it was read. Raises ConfigError where its value is not loaded or not stored."""
        if self.value is None and (self.size is not None or self.state is State.SKIPPED):
            why = "its value was not kept" if self.size is None else "its value was not asked for: get(id) has it"
            raise ConfigError(f"dead letter {self.id} ({self.at} offset {self.offset}) has no whole record: {why}")
        return RawRecord(
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
        )


def dead_letter_of(row: Row[Any]) -> DeadLetter:
    """A dead letter from its row."""
    values = row._asdict()
    names, header_values = values.pop("header_names"), values.pop("header_values")
    values["offset"] = values.pop("record_offset")
    values["state"], values["cause"] = State(row.state), Cause(row.cause)
    return DeadLetter(headers=tuple(zip(map(_text, names), header_values, strict=True)), **values)


def row(new: NewDeadLetter, topic_ids: Mapping[str, UUID]) -> dict[str, Any]:
    """The insert's parameters for one record."""
    record, failure = new.record, new.failure
    return {
        "its_topic": record.topic,
        "its_topic_id": topic_ids[record.topic],
        "its_partition": record.partition,
        "its_record_offset": record.offset,
        "its_leader_epoch": record.leader_epoch,
        "its_timestamp_ms": record.timestamp_ms,
        "its_key": record.key,
        "its_value": None if new.state is State.SKIPPED else record.value,
        "its_header_names": [name_bytes(name) for name, _ in record.headers],
        "its_header_values": [value for _, value in record.headers],
        "its_state": new.state.value,
        "its_cause": failure.cause.value,
        **explained(failure),
        "its_sqlstate": failure.sqlstate,
        "its_attempts": failure.attempts,
    }


def explained(failure: Failure) -> dict[str, str | None]:
    """Error and traceback as Postgres can store them: dead-lettering itself must not fail."""
    trace = failure.traceback
    return {"its_error": storable(failure.error), "its_traceback": None if trace is None else storable(trace)}


def values(states: Sequence[State] | None) -> list[str] | None:
    """States as parameters of statements."""
    return None if states is None else [state.value for state in states]


def name_bytes(name: str) -> bytes:
    """A header's name as its bytes in the log: bytes that are not UTF-8 were escaped when it was read."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that escapes no byte: the record was not read from Kafka
        return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
