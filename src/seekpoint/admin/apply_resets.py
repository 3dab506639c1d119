"""Carries out a plan of resets: all rows' locks within a second, or none; what the plan was made from is compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import Any

from sqlalchemy import Row
from sqlalchemy.exc import OperationalError

from seekpoint.admin.by import By
from seekpoint.admin.history import last_resets
from seekpoint.admin.reset_plan import Reset, ResetDone, ResetPlan, ResetResult
from seekpoint.backoff import Backoff
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import reset_offset
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, RESETS, asking_for
from seekpoint.postgres.sqlstates import DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED, sqlstate
from seekpoint.records import Partition, one_line

LOCKS = 1.0  # seconds in which all locks are taken: workers wait for those that we have
_BUSY = {LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED}
_BACKOFF = Backoff(0.2, 5.0)


def apply_resets(ledger: Ledger, plan: ResetPlan, by: By, *, wait: float, each: bool, accept_loss: bool) -> ResetResult:
    """See :meth:`seekpoint.admin.Admin.apply`."""
    moves = sorted(plan.moves, key=lambda reset: reset.at)
    if plan.needs_accept_loss and not accept_loss:
        gone = ", ".join(f"{reset.at} [{reset.wanted}, {reset.target})" for reset in moves if reset.gone)
        raise ConfigError(f"retention has removed {gone}: --accept-loss (accept_loss=True) resets to the logs' starts")
    skipped = tuple(_moved_since(ledger, plan))
    deadline = monotonic() + wait
    if not each:
        return ResetResult(tuple(_apply(ledger, plan, moves, by, deadline)) if moves else (), skipped=skipped)
    done: list[ResetDone] = []
    refused = []
    for reset in moves:
        try:
            done += _apply(ledger, plan, [reset], by, deadline)
        except Fenced as error:
            refused.append(str(error))
        except Exception as error:  # noqa: BLE001 -- whatever it is, those that are done must be reported
            see = "`seekpoint offsets history` shows whether it was reset; those after it were not tried"
            refused.append(f"{reset.at}: {one_line(getattr(error, 'orig', None) or error)}: {see}")
            break
    return ResetResult(tuple(done), tuple(refused), skipped)


def _moved_since(ledger: Ledger, plan: ResetPlan) -> Iterator[str]:
    """A sentence for each partition that was at its target when the plan was made, and is not any more."""
    still = {reset.at: reset for reset in plan.resets if reset.direction == "none"}
    rows = ledger.positions_of(still, locked=False) if still else {}
    for at, reset in sorted(still.items()):
        row = rows.get(at)
        if row is None or (row.topic_id, row.next_offset) != (reset.topic_id, reset.target):
            now = "has no stored offset any more" if row is None else f"is at {row.next_offset} now: make another plan"
            yield f"{at} was at its target {reset.target} when the plan was made, and {now}"


def _apply(ledger: Ledger, plan: ResetPlan, moves: Sequence[Reset], by: By, deadline: float) -> list[ResetDone]:
    """Reset these in one transaction, or none of them; raises Fenced."""
    began = monotonic()
    for pause in _BACKOFF.waits():
        try:
            with ledger.begin(lock_wait=LOCKS) as tx:
                rows = _lock(tx, plan, moves)
                return [_reset(tx, rows[move.at], move, by) for move in moves]
        except OperationalError as error:
            if sqlstate(error) not in _BUSY:
                raise
        if monotonic() + pause >= deadline:
            within = f"{max(LOCKS, deadline - began):.3g} s"
            raise Fenced(f"{_busy(ledger, moves)}; not all locks could be taken within {within}: nothing was done")
        sleep(pause)
    raise AssertionError  # the waits are endless


def _lock(tx: GroupConnection, plan: ResetPlan, moves: Sequence[Reset]) -> dict[Partition, Row[Any]]:
    """The locked rows, which are as the plan needs them. Raises Fenced."""
    began = monotonic()
    group = tx.execute(GROUPS["share"]).one_or_none()
    if group is None:
        raise _refused(f"there is no group {plan.group!r} in the ledger any more")
    if group.cluster_id != plan.cluster_id:
        raise _refused(f"group {plan.group!r} belongs to cluster {group.cluster_id}, the plan to {plan.cluster_id}")
    if tx.execute(RESETS["last_forget"]).scalar_one() != plan.last_forget:
        raise _refused(f"group {plan.group!r} was forgotten since the plan was made")
    left = max(0.05, LOCKS - (monotonic() - began))
    tx.execute(RESETS["time_limit"], timeout=f"{round(left * 1000)}ms")
    asked = asking_for([move.at for move in moves])
    rows = {Partition(row.topic, row.partition): row for row in tx.execute(RESETS["lock_rows"], **asked)}
    tx.execute(RESETS["time_limit"], timeout="0")
    last = last_resets(tx)
    for move in moves:
        _require(rows.get(move.at), move, last.get(move.at))
    return rows


def _require(row: Row[Any] | None, move: Reset, last: int | None) -> None:
    at = move.at
    if row is None:
        raise _refused(f"{at} has no stored offset any more")
    if row.topic_id != move.topic_id:
        raise _refused(f"{at} belongs to topic id {row.topic_id}, the plan to {move.topic_id}")
    if last != move.last_reset:
        raise _refused(
            f"{at} was reset since the plan was made (its last reset is {last}, in the plan {move.last_reset})"
        )
    if move.is_exact and row.next_offset != move.position:
        raise _refused(f"{at} is at offset {row.next_offset}, in the plan at {move.position}")
    if move.direction == "forward" and row.next_offset > move.target:
        raise _refused(f"{at} is at offset {row.next_offset}, past the forward target {move.target}")
    if move.direction == "backward" and row.next_offset < move.target:
        raise _refused(f"{at} is at offset {row.next_offset}, before the backward target {move.target}")


def _refused(why: str) -> Fenced:
    return Fenced(f"{why}: nothing was done; make another plan")


def _reset(tx: GroupConnection, row: Row[Any], move: Reset, by: By) -> ResetDone:
    at, reason = row.next_offset, by.reason
    if move.gone and move.direction == "backward":  # no loss: what is in front of the position was applied
        reason = f"{reason} (retention has removed [{move.wanted}, {move.target}): not read again)"
    lost = "operator" if move.target > at else None
    log = move.log if move.is_past_end else None  # it moves on: of use only where no worker does
    start = None if move.log is None else move.log[0]
    lost = None if log else lost
    reset_offset(tx, move.at, move.target, actor=by.actor, reason=reason, log=log, lost=lost, log_start=start)
    return ResetDone(move.at, move.topic_id, at, move.target)


# -- who holds the locks -----------------------------------------------------------------------------------------


def _busy(ledger: Ledger, moves: Sequence[Reset]) -> str:
    """Which partition is locked by another session, and since when."""
    with ledger.begin(lock_wait=LOCKS) as tx:
        asked = asking_for([move.at for move in moves])
        free = {Partition(row.topic, row.partition) for row in tx.execute(RESETS["free_rows"], **asked)}
    busy = [move.at for move in moves if move.at not in free]
    if not busy:
        return "another session had locked the group or one of its partitions"
    with ledger.begin() as tx:
        held = tx.execute(RESETS["locked_since"], topic=busy[0].topic, partition=busy[0].number).first()
    if held is None:
        return f"{busy[0]} is locked by another session"
    session = held.application_name or "another session"
    if held.xact_start is None:  # this login has neither its role nor pg_read_all_stats
        return f"{busy[0]} is locked by {session} (since when is not visible to this login)"
    return f"{busy[0]} is locked by {session} since {held.xact_start:%Y-%m-%d %H:%M:%S} UTC"
