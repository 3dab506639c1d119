"""Moves by hands that do not own the partition: loud, recorded, and fencing whoever is at work (I5)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from seekpoint.errors import ConfigError, Fenced
from seekpoint.failure import storable
from seekpoint.ledger import administration as sql
from seekpoint.ledger.read import Position, position
from seekpoint.ledger.scope import Scope
from seekpoint.ledger.statements import SHARE_GROUP
from seekpoint.records import Partition
from seekpoint.tables import LARGEST_BIGINT


def record_action(
    tx: Scope,
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


def move(
    tx: Scope,
    partition: Partition,
    to: int,
    *,
    actor: str,
    reason: str,
    expected: int | None = None,
    topic_id: UUID | None = None,
    lost: str | None = None,
) -> Position:
    """Put a partition at ``to``; see :meth:`seekpoint.Ledger.move`.

    Dead letters at or past the new position are superseded: their records will be read again.

    Shares the group row with claims, so that other partitions are claimed while this one's batch is waited for; a
    pause, or whoever else takes the group as a whole, still comes before or after it.
    """
    if not 0 <= to <= LARGEST_BIGINT:
        raise ConfigError(f"cannot move {partition} to offset {to}: offsets begin at 0, and end at {LARGEST_BIGINT}")
    actor, reason = storable(actor), storable(reason)
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
    if lost is not None:
        _record_loss(tx, row, to, actor=actor, reason=storable(lost))
    steps = [(row.next_offset, to)]
    if topic_id not in {None, row.topic_id} and to > 0:
        # Of the topic that is adopted nothing was read: whoever waits for a record in front of `to` must be told.
        steps = [(row.next_offset, 0), (0, to)]
    for from_offset, to_offset in steps:
        record_action(
            tx, "move", actor=actor, reason=reason, partition=partition, from_offset=from_offset, to_offset=to_offset
        )
    moved = tx.execute(
        sql.MOVE,
        at_topic=partition.topic,
        at_partition=partition.number,
        to_offset=to,
        to_topic_id=topic_id or row.topic_id,
        to_claim=uuid4(),  # I5: whoever reads on under the old token is refused
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


def _record_loss(tx: Scope, row: Any, to: int, *, actor: str, reason: str) -> None:
    """The range that is given up is a row (I4)."""
    tx.insert(
        sql.RECORD_LOSS,
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        from_offset=row.next_offset,
        to_offset=max(to, row.next_offset),
        reason=reason,
        decision=f"go on at {to}",
        actor=actor,
    )


def set_paused(tx: Scope, paused: bool, *, actor: str, reason: str) -> None:
    """Pause or resume the group; all its tokens are drawn anew, so that running workers notice (I5)."""
    actor, reason = storable(actor), storable(reason)
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
