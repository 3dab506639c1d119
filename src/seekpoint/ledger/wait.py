"""Waits until the position has moved past a record: polls the position, and holds no connection in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint import remedies
from seekpoint.durations import format_duration
from seekpoint.errors import ConfigError, NotApplied, TopicUnknown
from seekpoint.ledger.admin_actions import is_offset
from seekpoint.ledger.claim import DELAYED
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import FORGET, GROUPS, WAIT, Query
from seekpoint.ledger.tables import LARGEST_BIGINT, LARGEST_INTEGER
from seekpoint.records import Partition, State

# A poll costs the server one lookup by primary key. The pause between two polls is a share of the time waited so far,
# within bounds (seconds): the answer is late by at most that share, and a long wait costs ten polls a second.
SHORTEST, LONGEST, SHARE = 0.005, 0.1, 0.25
ENDS_BY_ITSELF = TopicUnknown.__name__  # a stop of this kind ends without an operator

Look = Callable[[], AbstractContextManager[GroupConnection]]
"""Lends a connection for one statement outside of any transaction."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The outcome of the record at an offset that the partition's position has passed.

    ``position`` is the partition's ``next_offset``; ``state`` that of the record's dead letter, None if there is none.
    ``unread`` says why the record was not read (the position was reset across it, or the group started after it), None
    if it was read. ``str()`` is one sentence for people.
    """

    partition: Partition
    offset: int
    position: int
    state: State | None = None
    unread: str | None = None

    @property
    def applied(self) -> bool:
        """Whether the record was applied, or its dead letter replayed."""
        return self.unread is None and self.state in {None, State.REPLAYED}

    def __str__(self) -> str:
        record = f"{self.partition}: offset {self.offset}"
        if self.unread is not None:
            return f"{record} was not read: {self.unread}"
        if self.state is None:
            return f"{record} was applied"
        return f"{record} was {self.state}" + ("" if self.applied else ": it is a dead letter, and was not applied")


@dataclass(frozen=True, slots=True)
class AwaitedRecord:
    """The record to wait for, the timeout in seconds, and the topic id (None: the stored id)."""

    partition: Partition
    offset: Any
    timeout: Any
    topic_id: UUID | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.partition.number <= LARGEST_INTEGER:
            raise ConfigError(f"cannot wait for {self.partition}: partitions are numbered from 0 to {LARGEST_INTEGER}")
        if not is_offset(self.offset) or self.offset == LARGEST_BIGINT:
            raise ConfigError(
                f"cannot wait for offset {self.offset!r} of {self.partition}: offsets begin at 0; use the one in the "
                "producer's delivery report (it has none with acks=0)"
            )
        if not isinstance(self.timeout, int | float) or not 0 <= self.timeout < math.inf:
            raise ConfigError(f"timeout={self.timeout!r}: must be a finite number of seconds, 0 or greater")

    def missed(self, position: int | None, why: str) -> NotApplied:
        """The error for a record that was not passed in time, with the partition's position."""
        return NotApplied(self.partition, self.offset, position, why)

    def ask(self, look: Look, statement: Query, **parameters: Any) -> Row[Any] | None:
        """Run one statement, and return its connection at once."""
        with look() as scope:
            return scope.execute(
                statement, topic=self.partition.topic, partition=self.partition.number, **parameters
            ).one_or_none()


def wait(look: Look, awaited: AwaitedRecord) -> Passed:
    """Wait until the position is past the offset; see :meth:`seekpoint.Ledger.wait_until_applied`."""
    began = monotonic()
    topic_id, met = awaited.topic_id, False
    while True:
        waiting: Passed | None = None
        row = awaited.ask(look, WAIT["passed_yet"])
        if row is not None:  # otherwise not claimed yet: a new group, or a new partition
            topic_id = topic_id or row.topic_id
            if row.topic_id == topic_id:
                met = True
                if row.next_offset > awaited.offset and (passed := _passed(look, awaited, topic_id)) is not None:
                    if passed.state is not State.WAITING:
                        return passed
                    waiting = passed  # the record's retry decides
                if row.stop_kind not in {None, ENDS_BY_ITSELF} and row.next_offset <= awaited.offset:
                    raise _stopped(look, awaited)  # the position does not move before an operator has decided
            elif met:
                raise _recreated(awaited, row, topic_id)
        waited = monotonic() - began
        if waited >= awaited.timeout:
            if waiting is not None:
                raise _waiting(look, awaited, waiting.position)
            raise _unclaimed(look, awaited) if row is None else _late(look, awaited, topic_id)
        sleep(min(pause(waited), awaited.timeout - waited))


def pause(waited: float) -> float:
    """Seconds until the next poll, after this many seconds of waiting."""
    return min(LONGEST, max(SHORTEST, waited * SHARE))


def _passed(look: Look, awaited: AwaitedRecord, topic_id: UUID) -> Passed | None:
    """How the record ended; None if the position was rewound meanwhile."""
    row = awaited.ask(look, WAIT["became"], asked_offset=awaited.offset)
    if row is None or row.topic_id != topic_id or row.next_offset <= awaited.offset:
        return None
    unread, is_reset = None, row.reset_id is not None and row.reset_id > _last_begin(look)
    if is_reset and row.forwards:
        unread = f"{row.actor} reset the position past it ({row.reason})"
    elif not is_reset and awaited.offset < row.first_offset:
        unread = f"the group started after it, at offset {row.first_offset}"
    state = None if row.state is None else State(row.state)
    return Passed(awaited.partition, awaited.offset, row.next_offset, state, unread)


def _last_begin(look: Look) -> int:
    """The id of the last action that began the group again or replaced it: earlier resets do not count."""
    with look() as scope:
        return int(scope.execute(FORGET["last_begin"]).scalar_one())


# -- why a record was not passed --------------------------------------------------------------------------------


def _unclaimed(look: Look, awaited: AwaitedRecord) -> NotApplied:
    """The error for an unclaimed partition or a wrong name, which the ledger cannot tell apart."""
    with look() as scope:
        if scope.execute(GROUPS["read"]).one_or_none() is None:
            why = f"there is no group {scope.group!r} in the ledger yet: start a worker, or check the name"
        else:
            why = (
                f"group {scope.group!r} has no stored offset for the partition yet: it gets one when a worker first "
                "claims it; look at the workers, or check the names"
            )
    return awaited.missed(None, f"not applied within {awaited.timeout:g} s; {why}")


def _recreated(awaited: AwaitedRecord, row: Row[Any], topic_id: UUID) -> NotApplied:
    return awaited.missed(
        row.next_offset,
        f"topic {awaited.partition.topic!r} was recreated meanwhile: the stored offset belonged to topic id "
        f"{topic_id}, now to {row.topic_id}. Whether a record of the old topic was applied is no longer known; for a "
        f"record of the new one, wait again, with topic_id=UUID('{row.topic_id}')",
    )


def _stopped(look: Look, awaited: AwaitedRecord) -> NotApplied:
    row = awaited.ask(look, WAIT["progress"])
    if row is None or row.stop_kind in {None, ENDS_BY_ITSELF}:
        why = "its partition was stopped until just now: wait again"
        return awaited.missed(None if row is None else row.next_offset, why)
    return awaited.missed(
        row.next_offset,
        f"not applied: group {row.consumer_group!r} has stopped the partition at offset {row.stop_offset} "
        f"({row.stop_message}), until an operator decides: see `seekpoint status`",
    )


def _waiting(look: Look, awaited: AwaitedRecord, position: int) -> NotApplied:
    """The error for a record that the position has passed, but that still waits for its retry."""
    row = awaited.ask(look, WAIT["waiting"], asked_offset=awaited.offset)
    why = "its retry has just ended: wait again"
    if row is not None:
        when = f"in {format_duration(row.retry_in)}" if row.retry_in > 0 else "now"
        why = f"dead letter {row.id} waits for its retry: {row.error}; tried {row.attempts} times, and again {when}"
    return awaited.missed(position, f"not applied within {awaited.timeout:g} s; {why}")


def _late(look: Look, awaited: AwaitedRecord, topic_id: UUID | None) -> NotApplied:
    """The error after the timeout: the position, and what the partition waits for."""
    row = awaited.ask(look, WAIT["progress"])
    if row is None:
        return awaited.missed(None, "the partition's row was deleted meanwhile")
    missing = awaited.offset - row.next_offset
    where = f"is at offset {row.next_offset}" + (f", {missing} offsets before it" if missing > 0 else "")
    return awaited.missed(
        row.next_offset,
        f"not applied within {awaited.timeout:g} s; group {row.consumer_group!r} {where}. "
        f"{_reason(awaited, row, topic_id)}",
    )


def _reason(awaited: AwaitedRecord, row: Row[Any], topic_id: UUID | None) -> str:
    """What the partition waits for, as far as the ledger knows."""
    if row.topic_id != topic_id:
        accept = remedies.accept_topic(row.consumer_group, awaited.partition.topic, "--from-beginning")
        return (
            f"That offset belongs to topic id {row.topic_id}, the record to {topic_id}: the topic was recreated; "
            f"decide where to continue: {accept}"
        )
    if row.paused:
        actor, why = row.paused_by or "unknown", row.paused_reason or "no reason given"
        return f"The group is paused by {actor} ({why}): resume it: {remedies.resume(row.consumer_group)}"
    if row.stop_kind is not None:
        return f"The partition has stopped at offset {row.stop_offset}: {row.stop_message}"
    if row.owner is None:
        return "No worker has claimed the partition: start one"
    if row.attempt_offset is not None and row.attempts:  # with 0 attempts, the only attempt was cancelled
        return _attempt(row)
    moved = "It has not moved since it was first claimed:"
    if row.still is not None:
        moved = f"It last moved {format_duration(row.still)} ago: wait again, or"
    return f"{moved} check its worker's log and health"


def _attempt(row: Row[Any]) -> str:
    """A sentence about the stored attempts to apply the record at the position."""
    record = f"The record at offset {row.attempt_offset}"
    if row.attempt_running:
        return f"{record} is in a single-record attempt now, number {row.attempts}"
    if row.attempt_error is None:
        return f"{record} was in attempt {row.attempts} when the process crashed, perhaps because of the record"
    if row.retry_in is None:
        return (
            f"{record} failed ({row.attempt_error}), and the partition is stopped before it until an operator "
            "decides: see `seekpoint status`"
        )
    when = f"in {format_duration(row.retry_in)}" if row.retry_in > 0 else "now"
    if row.attempt_policy == DELAYED:
        return f"{record} is due {when} ({row.attempt_error})"
    tried = f"attempt {row.attempts} of {row.attempts_allowed}"
    return f"{record} failed ({row.attempt_error}), {tried}; it is tried again {when}"
