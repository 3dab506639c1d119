"""Resets and pauses by processes that do not own the partition: recorded, and the owner is fenced (I5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard
from uuid import UUID, uuid4

from sqlalchemy import Row

from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger.group_connection import GroupConnection
from seekpoint.ledger.positions import Position, position
from seekpoint.ledger.sql import admin as sql
from seekpoint.ledger.sql.worker import SHARE_GROUP
from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition, storable


@dataclass(frozen=True, slots=True)
class LastReset:
    """A move by hand, as it is on record; ``str()`` names it and its author."""

    to: int
    actor: str
    reason: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.actor} moved it to {self.to} on {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({self.reason})"


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
    """Write who did what, when and why."""
    tx.insert(
        sql.RECORD_ACTION,
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
) -> Position:
    """Put a partition at ``to``; see :meth:`seekpoint.Ledger.reset_offset`.

    Dead letters at or past the new position are superseded: their records will be read again.

    Shares the group row with claims, so that other partitions are claimed while this one's batch is waited for; a
    pause, or another statement that locks the whole group, still comes before or after it.
    """
    _require_offset(partition, to, log)
    actor, reason = storable(actor), required("reason", reason)
    tx.execute(SHARE_GROUP)
    row = tx.execute(sql.LOCK_ROW, topic=partition.topic, partition=partition.number).one_or_none()
    if row is None:
        raise ConfigError(
            f"group {tx.group!r} has no stored offset for {partition}: check the names, or start a worker once"
        )
    if expected is not None and row.next_offset != expected:
        raise Fenced(
            f"{partition} stands at {row.next_offset}, not at the expected {expected}: look again, then decide"
        )
    is_recreated = topic_id not in {None, row.topic_id}
    _record_loss(tx, row, _loss(row, to, log, lost, topic_id if is_recreated else None), actor)
    steps = [(row.next_offset, to)]
    if is_recreated and to > 0:
        # Of the topic that is adopted nothing was read: a wait for a record in front of `to` must end with that reason.
        steps = [(row.next_offset, 0), (0, to)]
    for from_offset, to_offset in steps:
        record_action(
            tx, "reset", actor=actor, reason=reason, partition=partition, from_offset=from_offset, to_offset=to_offset
        )
    moved = tx.execute(
        sql.RESET_OFFSET,
        at_topic=partition.topic,
        at_partition=partition.number,
        to_offset=to,
        to_topic_id=topic_id or row.topic_id,
        to_token=uuid4(),  # I5: a worker that reads on under the old token is refused
    ).one()
    tx.execute(
        sql.SUPERSEDE,
        at_topic_id=moved.topic_id,
        at_partition=partition.number,
        to_offset=to,
        actor=actor,
        reason=f"moved to {to}: {reason}",
    )
    return position(moved)


def last_reset(tx: GroupConnection, partition: Partition) -> LastReset | None:
    """The last move of a partition by hand, None where there was none."""
    row = tx.execute(sql.LAST_RESET, at_topic=partition.topic, at_partition=partition.number).one_or_none()
    return None if row is None else LastReset(row.to_offset, row.actor, row.reason, row.at)


def _record_loss(tx: GroupConnection, row: Row[Any], loss: _Loss | None, actor: str) -> None:
    if loss is None:
        return
    before = last_reset(tx, Partition(row.topic, row.partition))
    if loss.reason == _REWRITTEN and before is not None and before.to == row.next_offset:
        return  # no worker has read up to there: a move put it there
    tx.insert(
        sql.RECORD_LOSS,
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        from_offset=loss.start,
        to_offset=loss.end,
        reason=storable(loss.reason),
        decision=loss.decision,
        actor=actor,
    )


_REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class _Loss:
    """A range that is given up, or that the log has lost; ``end`` is None where it is unknown."""

    start: int
    end: int | None
    reason: str
    decision: str


def _loss(row: Row[Any], to: int, log: tuple[int, int] | None, lost: str | None, adopted: UUID | None) -> _Loss | None:
    """The row of what was not applied, which a move writes (I4)."""
    at, decision = row.next_offset, f"go on at {to}"
    if adopted is not None:  # how far the old topic's log went is not known
        return _Loss(at, None, lost or "recreated", f"{decision} of topic id {adopted}")
    if log is not None and log[1] < at:  # these offsets will be given to other records
        return _Loss(log[1], at, _REWRITTEN, decision)
    if lost is not None:
        if to <= at:
            raise ConfigError(
                f"lost={lost!r} gives up nothing: {row.topic}/{row.partition} is at {at}, and a move to {to} "
                "passes no record; leave lost= out"
            )
        return _Loss(at, to, lost, decision)
    if log is not None and at < log[0] <= to:
        return _Loss(at, log[0], "retention", decision)
    return None


def _require_offset(partition: Partition, to: int, log: tuple[int, int] | None) -> None:
    if not is_offset(to):
        raise ConfigError(
            f"cannot move {partition} to offset {to!r}: it must be a whole number from 0 to {LARGEST_BIGINT}"
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
            f"cannot move {partition} to offset {to}: the brokers answered offsets {start} to {end}. Name one of them, "
            "or say log=None to move it all the same"
        )


def is_offset(given: Any) -> TypeGuard[int]:
    """Whether a value can be an offset."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= LARGEST_BIGINT


def required(name: str, given: Any) -> str:
    """A text that people will read, as it can be stored. Raises ConfigError where it says nothing."""
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{name}= is required: say why, for people who read admin_action later; got {given!r}")
    return storable(given)


def set_paused(tx: GroupConnection, paused: bool, *, actor: str, reason: str) -> None:
    """Pause or resume the group; all its tokens are drawn again, so that running workers notice (I5)."""
    actor, reason = storable(actor), required("reason", reason)
    if tx.execute(sql.LOCK_GROUP).one_or_none() is None:
        raise ConfigError(f"there is no group {tx.group!r} in the ledger: check the name, or start a worker once")
    tx.execute(
        sql.PAUSE_GROUP,
        to_paused=paused,
        reason=reason if paused else None,
        actor=actor if paused else None,
    )
    tx.execute(sql.REDRAW)
    record_action(tx, "pause" if paused else "resume", actor=actor, reason=reason)
