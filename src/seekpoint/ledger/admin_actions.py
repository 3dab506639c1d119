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
from seekpoint.ledger.repeats import require_counted_once
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS
from seekpoint.ledger.tables import LARGEST_BIGINT, LOWER_FIRST, TAKE_BACK
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
    """The actor's name, as Postgres can store it: ``actor``, or the user of the operating system.

    A container's uid may have no name.
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
    rebuilt: bool = False,
) -> Position:
    """Reset a partition's position to ``to``; see :meth:`.GroupLedger.reset_offset`.

    ``rebuilt``: this transaction also restores tables with sums to their content at ``to``. ``truncated_at`` is where a
    truncated log ended, if the caller knows; the end of ``log`` and the row's stop may also show that. ``log_start`` is
    the log's first offset, for a caller without a current ``log``.

    Dead letters at or past the new position are superseded: their records will be read again. Locks the group's row FOR
    SHARE, as claims do, so that other partitions can be claimed while this reset waits for a batch.
    """
    _require_offset(partition, to, log)
    actor, reason = storable(actor), required("reason", reason)
    tx.execute(GROUPS["share"])
    row_key = {"topic": partition.topic, "partition": partition.number}
    row = _locked(tx, partition, expected)
    adopted = None if topic_id in {None, row.topic_id} else topic_id
    losses = _Losses(tx, row, to, log, log[0] if log_start is None and log is not None else log_start, lost)
    unread = losses.record(actor, reason, adopted=adopted, truncated_at=truncated_at)
    if not rebuilt:
        is_seen = adopted is not None or expected is not None or truncated_at is not None or _log_end(row) is not None
        require_counted_once(tx, row, to, unread if is_seen else None)
    for before, after in _steps(row.next_offset, to, unread):
        record_action(tx, "reset", actor=actor, reason=reason, partition=partition, from_offset=before, to_offset=after)
    if rebuilt and to < row.next_offset:  # for a later reload: which records of a lost range were applied
        offsets = {"from_offset": row.next_offset, "to_offset": to}
        record_action(tx, TAKE_BACK, actor=actor, reason=reason, partition=partition, **offsets)
    token = uuid4()  # I5: fences a worker that still has the old token
    tx.execute(GROUPS["reset"], to_offset=to, topic_id=topic_id or row.topic_id, token=token, **row_key)
    tx.execute(GROUPS["end_trouble"], **row_key)
    now = positions_of(tx, [partition], locked=False)[partition]
    if adopted is None and now.first_offset < row.first_offset:  # for a later reload: where applied records begin
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


def _locked(tx: GroupConnection, partition: Partition, expected: int | None) -> Position:
    """Lock the partition's row. Raises ConfigError if there is no row, Fenced if its position is not ``expected``."""
    tx.execute(GROUPS["lock_position"], topic=partition.topic, partition=partition.number)
    row = positions_of(tx, [partition], locked=False).get(partition)  # as the lock's previous holder committed it
    if row is None:
        raise ConfigError(
            f"group {tx.group!r} has no stored offset for {partition}: check the names, or start a worker once"
        )
    if expected is not None and row.next_offset != expected:
        raise Fenced(
            f"{partition} is at offset {row.next_offset}, not at the expected {expected}: read the position again, "
            "then decide"
        )
    return row


def _steps(position: int, to: int, before: int | None) -> list[tuple[int, int]]:
    """The resets to record, as pairs (from, to); two if no worker has read the records from ``before`` on.

    A call that waits for one of those records must report the reset as the reason.
    """
    return [(position, to)] if before is None or before >= to else [(position, before), (before, to)]


def last_reset(tx: GroupConnection, partition: Partition) -> LastReset | None:
    """The last reset of a partition by an operator; None if there is none."""
    row = tx.execute(GROUPS["last_reset"], topic=partition.topic, partition=partition.number).one_or_none()
    return None if row is None else LastReset(row.to_offset, row.actor, row.reason, row.at)


_REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class _Loss:
    """A lost range; ``end`` is None if it is unknown."""

    start: int
    end: int | None
    reason: str
    decision: str


@dataclass(frozen=True, slots=True)
class _Losses:
    """Records the ranges that a reset of ``row`` to ``to`` gives up (I4). ``start`` is the log's start, if known."""

    tx: GroupConnection
    row: Position
    to: int
    log: tuple[int, int] | None
    start: int | None
    lost: str | None

    def record(self, actor: str, reason: str, *, adopted: UUID | None, truncated_at: int | None) -> int | None:
        """Record the lost ranges. Returns where the unread part of a recreated or truncated log begins, else None.

        ``adopted`` is the id of a recreated topic. The old topic's range has no end, because the old log's end is
        unknown.
        """
        row, to = self.row, self.to
        attribution = {"actor": actor, "operator_reason": reason}
        if adopted is None:
            truncated = _truncated_at(self.tx.group, row, to, self.log, truncated_at)
            for loss in self._of_this_topic(truncated):
                self._record(loss, row.topic_id, attribution)
            return truncated
        unread = _Loss(row.next_offset, None, self.lost or "recreated", f"continue at {to} of topic id {adopted}")
        self._record(unread, row.topic_id, attribution)
        if (left_out := _left_out(to, self.log, self.lost)) is not None:
            self._record(left_out, adopted, attribution)
        return 0

    def _of_this_topic(self, truncated: int | None) -> Iterator[_Loss]:
        """The lost ranges of an unchanged topic id. A range that retention deleted has that reason, not ``lost``."""
        position, to, decision = self.row.next_offset, self.to, f"continue at {self.to}"
        if truncated is not None:  # these offsets now belong to other records, or will
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

    def _record(self, loss: _Loss, topic_id: UUID, attribution: Mapping[str, str]) -> None:
        row, partition = self.row, self.row.partition
        before = last_reset(self.tx, partition)
        if loss.reason == _REWRITTEN and before is not None and before.to == row.next_offset:
            return  # an operator's reset set the position: no worker has read that far
        self.tx.execute(
            GROUPS["record_loss"],
            topic=partition.topic,
            topic_id=topic_id,
            partition=partition.number,
            from_offset=loss.start,
            to_offset=loss.end,
            reason=storable(loss.reason),
            decision=loss.decision,
            **attribution,
        )


def _truncated_at(
    group: str, row: Position, to: int, log: tuple[int, int] | None, truncated_at: int | None
) -> int | None:
    """Where a truncated log ended; None without a truncation.

    Raises Fenced if that is unknown and ``to`` is at or past the position (I4).
    """
    position = row.next_offset
    ends = [truncated_at, None if log is None else log[1], _log_end(row)]
    truncated = min((end for end in ends if end is not None and end < position), default=None)
    if truncated is None and to >= position and is_rewritten(row, log):
        raise Fenced(unknown_truncation(group, row))
    return truncated


def _log_end(row: Position) -> int | None:
    """Where the log ended when a worker stopped at its truncation."""
    return None if row.stop is None else row.stop.log_end


def is_rewritten(stored: Position, log: tuple[int, int] | None) -> bool:
    """Whether the partition is stopped because its log was truncated at an unknown offset, and written again."""
    stop = stored.stop
    if stop is None or stop.kind != OffsetLost.__name__ or stop.log_end is not None:
        return False
    return log is None or log[0] <= stored.next_offset <= log[1]


def unknown_truncation(group: str, stored: Position) -> str:
    """The message of Fenced for a log truncated at an unknown offset: the stored position and later ones are unsafe."""
    return (
        f"{stored.partition}: its log was truncated before {stored.next_offset} and written again, and no worker has "
        "seen where it ended: the records from there on were never read. Name that offset: "
        f"{remedies.accept_truncated(group, stored.partition)}"
    )


def _left_out(to: int, log: tuple[int, int] | None, lost: str | None) -> _Loss | None:
    """The records at the beginning of a recreated topic that a reset skips, None if it skips none."""
    begin = 0 if log is None else log[0]
    return _Loss(begin, to, lost or "operator", f"continue at {to}") if begin < to else None


def _require_offset(partition: Partition, to: int, log: tuple[int, int] | None) -> None:
    if not is_offset(to):
        raise ConfigError(
            f"cannot reset {partition} to offset {to!r}: it must be a whole number from 0 to {LARGEST_BIGINT}"
        )
    if log is None:
        return
    untyped: Any = log
    start, end = untyped if isinstance(untyped, tuple | list) and len(untyped) == 2 else (None, None)
    if not (is_offset(start) and is_offset(end) and start <= end):
        raise ConfigError(
            f"log= must be the start and end offset that the brokers report for {partition}, as (start, end), or None; "
            f"got {log!r}"
        )
    if not start <= to <= end:
        raise ConfigError(
            f"cannot reset {partition} to offset {to}: according to log=, its log has offsets {start} to {end}. "
            "Name one of them, or pass log=None to reset it without this check"
        )


def is_offset(number: Any) -> TypeGuard[int]:
    """Whether a value is a valid offset."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST_BIGINT


def required(name: str, text: Any) -> str:
    """A required text, as Postgres can store it. Raises ConfigError for a blank one."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{name}= is required: say why, for people who read admin_action later; got {text!r}")
    return storable(text)


PAUSER = "batch "  # prefix of ``paused_by`` if a batch job has paused the group; the run's id follows


def pauser(run: UUID) -> str:
    """``paused_by`` of a group that this run has paused: at its end, a run resumes only groups with this value."""
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
