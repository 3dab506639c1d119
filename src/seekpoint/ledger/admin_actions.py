"""Resets, pauses and other actions of operators: each is recorded, and fences the owner (I5)."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard
from uuid import UUID, uuid4

from seekpoint import remedies
from seekpoint.errors import ConfigError, Fenced, GroupForgotten, OffsetLost
from seekpoint.ledger.positions import Position, positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.ledger.tables import LARGEST_BIGINT, LOWER_FIRST
from seekpoint.records import Partition, storable


@dataclass(frozen=True, slots=True)
class LastReset:
    """An operator's last reset of a partition, as stored; ``str()`` is one sentence."""

    to: int
    actor: str
    reason: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.actor} reset it to {self.to} on {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({self.reason})"


def operator(actor: str | None = None) -> str:
    """Who acts, as Postgres can store it: ``actor``, or the user of the operating system.

    A container may run under a uid that has no name.
    """
    try:
        return storable(actor or getpass.getuser())
    except (KeyError, OSError):  # OSError: since Python 3.13
        return f"uid {os.getuid()}"


def record_action(
    tx: GroupConnection,
    action: str,
    *,
    actor: str,
    reason: str,
    partition: Partition | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
) -> None:
    """Insert a row into ``admin_action``: who did what, when and why."""
    tx.execute(
        GROUPS["record_action"],
        action=action,
        topic=None if partition is None else partition.topic,
        partition=None if partition is None else partition.number,
        from_offset=from_offset,
        to_offset=to_offset,
        actor=actor,
        reason=reason,
    )


def reset_offset(
    tx: GroupConnection,
    partition: Partition,
    to: int,
    *,
    actor: str,
    reason: str,
    log: tuple[int, int] | None,
    expected: int | None = None,
    topic_id: UUID | None = None,
    lost: str | None = None,
    truncated_at: int | None = None,
    log_start: int | None = None,
) -> Position:
    """Reset a partition's position to ``to``; see :meth:`seekpoint.Ledger.reset_offset`.

    ``truncated_at`` is where the log ended before the position, where the caller knows it; it is read from ``log``, and
    from the stop in the row, too. ``log_start`` is where the log begins, for a caller that has no ``log`` of now.

    Dead letters at or past the new position are superseded: their records will be read again.

    The group's row is locked FOR SHARE, as by claims, so that others are claimed while this one's batch is waited for.
    """
    _require_offset(partition, to, log)
    actor, reason = storable(actor), required("reason", reason)
    tx.execute(GROUPS["share"])
    at = {"topic": partition.topic, "partition": partition.number}
    tx.execute(GROUPS["lock_position"], **at)
    row = positions_of(tx, [partition], locked=False).get(partition)  # what the transaction that held it has committed
    if row is None:
        raise ConfigError(
            f"group {tx.group!r} has no stored offset for {partition}: check the names, or start a worker once"
        )
    if expected is not None and row.next_offset != expected:
        raise Fenced(
            f"{partition} is at offset {row.next_offset}, not at the expected {expected}: read it again, then decide"
        )
    adopted = None if topic_id in {None, row.topic_id} else topic_id
    losses = _Losses(tx, row, to, log, log[0] if log_start is None and log is not None else log_start, lost)
    unread = losses.record(actor, reason, adopted=adopted, truncated_at=truncated_at)
    for before, after in _steps(row.next_offset, to, unread):
        record_action(tx, "reset", actor=actor, reason=reason, partition=partition, from_offset=before, to_offset=after)
    token = uuid4()  # I5: fences a worker that still has the old token
    tx.execute(GROUPS["reset"], to_offset=to, topic_id=topic_id or row.topic_id, token=token, **at)
    tx.execute(GROUPS["end_trouble"], **at)
    now = positions_of(tx, [partition], locked=False)[partition]
    if adopted is None and now.first_offset < row.first_offset:  # a reload asks from where on records were applied
        first = {"from_offset": row.first_offset, "to_offset": now.first_offset}
        record_action(tx, LOWER_FIRST, actor=actor, reason=reason, partition=partition, **first)
    tx.execute(
        GROUPS["supersede"],
        topic_id=now.topic_id,
        partition=partition.number,
        to_offset=to,
        actor=actor,
        reason=f"reset to {to}: {reason}",
    )
    return now


def _steps(position: int, to: int, before: int | None) -> list[tuple[int, int]]:
    """The resets on record: two where nothing was read from ``before`` to ``to``, of a topic that was created again, or
    of what was written after a truncation. A wait for one of these records must end with that reason.
    """
    return [(position, to)] if before is None or before >= to else [(position, before), (before, to)]


def last_reset(tx: GroupConnection, partition: Partition) -> LastReset | None:
    """The last reset of a partition by an operator, None where there was none."""
    row = tx.execute(GROUPS["last_reset"], topic=partition.topic, partition=partition.number).one_or_none()
    return None if row is None else LastReset(row.to_offset, row.actor, row.reason, row.at)


_REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class _Loss:
    """A lost range; ``end`` is None where it is unknown."""

    start: int
    end: int | None
    reason: str
    decision: str


@dataclass(frozen=True, slots=True)
class _Losses:
    """What a reset of this row to ``to`` gives up (I4). ``start`` is the log's first offset, None: not known."""

    tx: GroupConnection
    row: Position
    to: int
    log: tuple[int, int] | None
    start: int | None
    lost: str | None

    def record(self, actor: str, reason: str, *, adopted: UUID | None, truncated_at: int | None) -> int | None:
        """Record it. Returns from where nothing was read of what is in front of ``to``, if anything.

        ``adopted`` is the id of a topic that was created again; the end of the old topic's log is not known.
        """
        row, to = self.row, self.to
        who = {"actor": actor, "operator_reason": reason}
        if adopted is None:
            truncated = _truncated_at(self.tx.group, row, to, self.log, truncated_at)
            for loss in self._of_this_topic(truncated):
                self._record(loss, row.topic_id, who)
            return truncated
        gone = _Loss(row.next_offset, None, self.lost or "recreated", f"continue at {to} of topic id {adopted}")
        self._record(gone, row.topic_id, who)
        if (left_out := _left_out(to, self.log, self.lost)) is not None:
            self._record(left_out, adopted, who)
        return 0

    def _of_this_topic(self, truncated: int | None) -> Iterator[_Loss]:
        """Retention's part has that reason whichever command accepts it."""
        position, to, decision = self.row.next_offset, self.to, f"continue at {self.to}"
        if truncated is not None:  # its offsets were given to other records, or will be
            yield _Loss(truncated, position, _REWRITTEN, decision)
        if self.lost is not None and to <= position and truncated is None:
            raise ConfigError(
                f"lost={self.lost!r} gives up nothing: {self.row.partition} is at {position}, and a "
                f"reset to {to} passes no record; leave lost= out"
            )
        start = position if self.start is None else min(max(self.start, position), max(to, position))
        if position < start and (self.start == start or self.lost is not None):
            yield _Loss(position, start, "retention", decision)
        if self.lost is not None and to > start:
            yield _Loss(start, to, self.lost, decision)

    def _record(self, loss: _Loss, topic_id: UUID, who: Mapping[str, str]) -> None:
        row, partition = self.row, self.row.partition
        before = last_reset(self.tx, partition)
        if loss.reason == _REWRITTEN and before is not None and before.to == row.next_offset:
            return  # an operator has put it there: no worker has read up to there
        self.tx.execute(
            GROUPS["record_loss"],
            topic=partition.topic,
            topic_id=topic_id,
            partition=partition.number,
            from_offset=loss.start,
            to_offset=loss.end,
            reason=storable(loss.reason),
            decision=loss.decision,
            **who,
        )


def _truncated_at(group: str, row: Position, to: int, log: tuple[int, int] | None, known: int | None) -> int | None:
    """Where the log ended before the position, None where it did not. Raises Fenced for a `to` that needs it (I4)."""
    at = row.next_offset
    ends = [known, None if log is None else log[1], None if row.stop is None else row.stop.log_end]
    truncated = min((end for end in ends if end is not None and end < at), default=None)
    if truncated is None and to >= at and is_rewritten(row, log):
        raise Fenced(unknown_truncation(group, row))
    return truncated


def is_rewritten(stored: Position, log: tuple[int, int] | None) -> bool:
    """Whether the partition is stopped in a log that was truncated and written again, and where is not known."""
    stop = stored.stop
    if stop is None or stop.kind != OffsetLost.__name__ or stop.log_end is not None:
        return False
    return log is None or log[0] <= stored.next_offset <= log[1]


def unknown_truncation(group: str, stored: Position) -> str:
    """Why such a partition does not continue at its position, or past it."""
    return (
        f"{stored.partition}: its log was truncated before {stored.next_offset} and written again, and no worker has "
        "seen where it ended: the records from there on were never read. Name that offset: "
        f"{remedies.accept_truncated(group, stored.partition)}"
    )


def _left_out(to: int, log: tuple[int, int] | None, lost: str | None) -> _Loss | None:
    """What a reset onto a new topic leaves out of it."""
    begin = 0 if log is None else log[0]
    return _Loss(begin, to, lost or "operator", f"continue at {to}") if begin < to else None


def _require_offset(partition: Partition, to: int, log: tuple[int, int] | None) -> None:
    if not is_offset(to):
        raise ConfigError(
            f"cannot reset {partition} to offset {to!r}: it must be a whole number from 0 to {LARGEST_BIGINT}"
        )
    if log is None:
        return
    given: Any = log
    start, end = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    if not (is_offset(start) and is_offset(end) and start <= end):
        raise ConfigError(
            f"log= is the range of offsets that the brokers answered for {partition}, as (start, end), or None; "
            f"got {log!r}"
        )
    if not start <= to <= end:
        raise ConfigError(
            f"cannot reset {partition} to offset {to}: the brokers answered offsets {start} to {end}. Name one of "
            "them, or say log=None to reset it all the same"
        )


def is_offset(given: Any) -> TypeGuard[int]:
    """Whether a value is a valid offset."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= LARGEST_BIGINT


def required(name: str, given: Any) -> str:
    """A required text, as Postgres can store it. Raises ConfigError where it is blank."""
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{name}= is required: say why, for people who read admin_action later; got {given!r}")
    return storable(given)


PAUSER = "batch "  # begins ``paused_by`` of a group that a batch job has paused; the run's id follows


def pauser(run: UUID) -> str:
    """``paused_by`` of a group that this run has paused: only such a pause is ended with the run."""
    return f"{PAUSER}{run}"


def set_paused(tx: GroupConnection, paused: bool, *, actor: str, reason: str) -> None:
    """Pause or resume the group; draws new tokens, which fences its workers (I5)."""
    actor, reason = storable(actor), required("reason", reason)
    group = tx.execute(GROUPS["lock"]).one_or_none()
    if group is None:
        raise ConfigError(f"there is no group {tx.group!r} in the ledger: check the name, or start a worker once")
    if group.forgotten is not None:
        raise GroupForgotten.of(tx.group, group.forgotten)
    tx.execute(
        GROUPS["pause"],
        paused=paused,
        reason=reason if paused else None,
        actor=actor if paused else None,
    )
    tx.execute(GROUPS["redraw"])
    record_action(tx, "pause" if paused else "resume", actor=actor, reason=reason)
