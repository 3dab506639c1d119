"""Carries out a plan of resets: locks all rows within a second, or none, and compares them with the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import Any

from sqlalchemy import Row
from sqlalchemy.exc import OperationalError

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.history import last_resets
from seekpoint.admin.reset_plan import Reset, ResetDone, ResetPlan, ResetResult
from seekpoint.backoff import Backoff
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import reset_offset
from seekpoint.ledger.repeats import counted_twice
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, asking_for
from seekpoint.postgres.sqlstates import DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED, sqlstate
from seekpoint.records import Partition, one_line

LOCKS = 1.0  # seconds to take all locks; meanwhile workers wait for the locks already taken
_BUSY = {LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED}
_BACKOFF = Backoff(0.2, 5.0)


def apply_resets(
    ledger: GroupLedger, plan: ResetPlan, attribution: Attribution, *, wait: float, separately: bool, accept_loss: bool
) -> ResetResult:
    """See :meth:`seekpoint.admin.Admin.apply`."""
    moves = sorted(plan.moves, key=lambda reset: reset.topic_partition)
    if plan.needs_accept_loss and not accept_loss:
        ranges = ", ".join(f"{reset.topic_partition} [{reset.wanted}, {reset.target})" for reset in moves if reset.gone)
        raise ConfigError(
            f"retention has removed {ranges}: --accept-loss (accept_loss=True) resets to the logs' starts"
        )
    if plan.counts_twice:
        raise ConfigError(counted_twice(plan.group, plan.counts_twice))
    skipped = tuple(_moved_since(ledger, plan))
    deadline = monotonic() + wait
    if not separately:
        return ResetResult(tuple(_apply(ledger, plan, moves, attribution, deadline)) if moves else (), skipped=skipped)
    resets: list[ResetDone] = []
    refused = []
    for reset in moves:
        try:
            resets += _apply(ledger, plan, [reset], attribution, deadline)
        except Fenced as error:
            refused.append(str(error))
        except Exception as error:  # noqa: BLE001 -- after any error, the partitions that were reset must be reported
            see = "`seekpoint offsets history` shows whether it was reset; later partitions were not tried"
            refused.append(f"{reset.topic_partition}: {one_line(error)}: {see}")
            break
    return ResetResult(tuple(resets), tuple(refused), skipped)


def _moved_since(ledger: GroupLedger, plan: ResetPlan) -> Iterator[str]:
    """A sentence for each partition that was at its target when the plan was made, but no longer is."""
    unmoved = {reset.topic_partition: reset for reset in plan.resets if reset.direction == "none"}
    rows = ledger.positions_of(unmoved, locked=False) if unmoved else {}
    for partition, reset in sorted(unmoved.items()):
        row = rows.get(partition)
        if row is None or (row.topic_id, row.next_offset) != (reset.topic_id, reset.target):
            state = (
                "no longer has a stored offset" if row is None else f"is at {row.next_offset} now: make another plan"
            )
            yield f"{partition} was at its target {reset.target} when the plan was made, and {state}"


def _apply(
    ledger: GroupLedger, plan: ResetPlan, moves: Sequence[Reset], attribution: Attribution, deadline: float
) -> list[ResetDone]:
    """Reset these partitions in one transaction. If it raises Fenced, none is reset."""
    began = monotonic()
    for pause in _BACKOFF.waits():
        try:
            with ledger.begin(lock_wait=LOCKS) as tx:
                rows = _lock(tx, plan, moves)
                return [_reset(tx, rows[move.topic_partition], move, attribution) for move in moves]
        except OperationalError as error:
            if sqlstate(error) not in _BUSY:
                raise
        if monotonic() + pause >= deadline:
            within = f"{max(LOCKS, deadline - began):.3g} s"
            raise Fenced(f"{_busy(ledger, moves)}; not all locks could be taken within {within}: nothing was done")
        sleep(pause)
    raise AssertionError  # without a limit: ``waits`` is endless


def reset_rebuilt(tx: GroupConnection, plan: ResetPlan, attribution: Attribution) -> list[ResetDone]:
    """Lock the plan's rows and reset them, in the transaction that rebuilds the tables.

    Raises Fenced if the group has changed since the plan was made.
    """
    moves = sorted(plan.moves, key=lambda reset: reset.topic_partition)
    rows = _lock(tx, plan, moves)
    return [_reset(tx, rows[move.topic_partition], move, attribution, rebuilt=True) for move in moves]


def _lock(tx: GroupConnection, plan: ResetPlan, moves: Sequence[Reset]) -> dict[Partition, Row[Any]]:
    """Lock the rows and return them. Raises Fenced if the group or a row no longer matches the plan."""
    began = monotonic()
    group = tx.execute(GROUPS["share"]).one_or_none()
    if group is None:
        raise _refused(f"there is no group {plan.group!r} in the ledger any more")
    if group.cluster_id != plan.cluster_id:
        raise _refused(f"group {plan.group!r} belongs to cluster {group.cluster_id}, the plan to {plan.cluster_id}")
    if tx.execute(RESETS["last_forget"]).scalar_one() != plan.last_forget:
        raise _refused(f"group {plan.group!r} was forgotten since the plan was made")
    remaining = max(0.05, LOCKS - (monotonic() - began))
    tx.execute(RESETS["time_limit"], timeout=f"{round(remaining * 1000)}ms")
    parameters = asking_for([move.topic_partition for move in moves])
    rows = {Partition(row.topic, row.partition): row for row in tx.execute(RESETS["lock_rows"], **parameters)}
    tx.execute(RESETS["time_limit"], timeout="0")
    last = last_resets(tx)
    for move in moves:
        _require(rows.get(move.topic_partition), move, last.get(move.topic_partition))
    return rows


def _require(row: Row[Any] | None, move: Reset, last: int | None) -> None:
    partition = move.topic_partition
    if row is None:
        raise _refused(f"{partition} no longer has a stored offset")
    if row.topic_id != move.topic_id:
        raise _refused(f"{partition} belongs to topic id {row.topic_id}, the plan to {move.topic_id}")
    if last != move.last_reset:
        raise _refused(f"{partition} was reset since the plan was made (admin_action id {last})")
    if move.is_exact and row.next_offset != move.position:
        raise _refused(f"{partition} is at offset {row.next_offset}, but the plan has {move.position}")
    if move.direction == "forward" and row.next_offset > move.target:
        raise _refused(f"{partition} is at offset {row.next_offset}, past the forward target {move.target}")
    if move.direction == "backward" and row.next_offset < move.target:
        raise _refused(f"{partition} is at offset {row.next_offset}, before the backward target {move.target}")


def _refused(why: str) -> Fenced:
    return Fenced(f"{why}: nothing was done; make another plan")


def _reset(
    tx: GroupConnection, row: Row[Any], move: Reset, attribution: Attribution, *, rebuilt: bool = False
) -> ResetDone:
    from_offset, reason = row.next_offset, attribution.reason
    if move.gone and move.direction == "backward":  # not lost ranges: records before the position were applied
        reason = f"{reason} (retention has removed [{move.wanted}, {move.target}): not read again)"
    lost = "operator" if move.target > from_offset else None
    log = move.log if move.is_past_end else None  # otherwise log and position have advanced since the plan
    start = None if move.log is None else move.log[0]
    lost = None if log else lost
    why: dict[str, Any] = {"actor": attribution.actor, "reason": reason, "log": log, "lost": lost, "log_start": start}
    # A commit since the plan shows that the log was not truncated.
    expected = move.position if move.is_past_end else None
    reset_offset(tx, move.topic_partition, move.target, rebuilt=rebuilt, expected=expected, **why)
    return ResetDone(move.topic_partition, move.topic_id, from_offset, move.target)


# -- who holds the locks -----------------------------------------------------------------------------------------


def _busy(ledger: GroupLedger, moves: Sequence[Reset]) -> str:
    """Which partition another session has locked, and since when."""
    with ledger.begin(lock_wait=LOCKS) as tx:
        parameters = asking_for([move.topic_partition for move in moves])
        free = {Partition(row.topic, row.partition) for row in tx.execute(RESETS["free_rows"], **parameters)}
    busy = [move.topic_partition for move in moves if move.topic_partition not in free]
    if not busy:
        return "another session had locked the group or one of its partitions"
    with ledger.begin() as tx:
        lock = tx.execute(RESETS["locked_since"], topic=busy[0].topic, partition=busy[0].number).first()
    if lock is None:
        return f"{busy[0]} is locked by another session"
    session = lock.application_name or "another session"
    if lock.xact_start is None:  # this login has neither its role nor pg_read_all_stats
        return f"{busy[0]} is locked by {session} (since when is not visible to this login)"
    return f"{busy[0]} is locked by {session} since {lock.xact_start:%Y-%m-%d %H:%M:%S} UTC"
