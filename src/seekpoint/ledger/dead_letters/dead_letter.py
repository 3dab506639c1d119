"""One dead letter as a value, and the ways between a record and its row. No I/O."""

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
    """A record that was passed and not applied: the record, why, and what became of it. Times are the database's.

    ``value`` is None also where the record was skipped, or where it was not asked for; ``size`` is its length in bytes
    all the same. ``error`` and ``traceback`` say why it was parked, ``replay_error`` and ``replay_traceback`` why its
    last replay failed. ``version`` is that of the handler that parked it, ``dead_lettered_by`` its process.
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
        """Whether somebody has to decide."""
        return self.state in OPEN

    @property
    def failure(self) -> Failure:
        """Why it was parked."""
        return Failure(self.cause, self.error, self.traceback, self.sqlstate, self.attempts)

    @property
    def record(self) -> RawRecord:
        """The record as it was read. Raises ConfigError where its value is not here."""
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
    """A row as a value."""
    values = row._asdict()
    names, header_values = values.pop("header_names"), values.pop("header_values")
    values["offset"] = values.pop("record_offset")
    values["state"], values["cause"] = State(row.state), Cause(row.cause)
    return DeadLetter(headers=tuple(zip(map(_text, names), header_values, strict=True)), **values)


def row(aside: NewDeadLetter, topic_ids: Mapping[str, UUID]) -> dict[str, Any]:
    """A record that was set aside, as the statement wants it."""
    record, failure = aside.record, aside.failure
    return {
        "its_topic": record.topic,
        "its_topic_id": topic_ids[record.topic],
        "its_partition": record.partition,
        "its_record_offset": record.offset,
        "its_leader_epoch": record.leader_epoch,
        "its_timestamp_ms": record.timestamp_ms,
        "its_key": record.key,
        "its_value": None if aside.state is State.SKIPPED else record.value,
        "its_header_names": [name_bytes(name) for name, _ in record.headers],
        "its_header_values": [value for _, value in record.headers],
        "its_state": aside.state.value,
        "its_cause": failure.cause.value,
        **explained(failure),
        "its_sqlstate": failure.sqlstate,
        "its_attempts": failure.attempts,
    }


def explained(failure: Failure) -> dict[str, str | None]:
    """Error and traceback as Postgres can hold them, whoever wrote them: parking itself must not fail."""
    trace = failure.traceback
    return {"its_error": storable(failure.error), "its_traceback": None if trace is None else storable(trace)}


def values(states: Sequence[State] | None) -> list[str] | None:
    """States as the statements want them."""
    return None if states is None else [state.value for state in states]


def name_bytes(name: str) -> bytes:
    """A header's name as it stands in the log: what was not UTF-8 there was read with its bytes escaped."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that no byte is escaped by: from a record made by hand
        return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
