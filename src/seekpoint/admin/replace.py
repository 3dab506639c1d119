"""Replaces a group with another one: waits until that has caught up, then exchanges tables and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from shlex import quote
from time import monotonic, sleep
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.exchange_tables import exchange_tables
from seekpoint.admin.replace_plan import (
    PAUSES,
    Pair,
    ReplacePlan,
    accept_by,
    differences,
    last_moves,
    pauser_of_new,
    pauser_of_old,
    read_pair,
    require_replaceable,
)
from seekpoint.admin.table_dependants import Path
from seekpoint.backoff import retried
from seekpoint.errors import Fenced, NotApplied
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPLACE, RESETS
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from seekpoint.records import Partition, numbered

POLL = 0.1  # seconds between two reads of positions

Progress = Callable[[str, int, int], object]
"""Called with the current step, the number of offsets done, and their total."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A position before and after the replacement."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class ReplaceResult:
    """The result of a replacement: the group's positions, sorted, and whether its workers may continue.

    ``seconds`` is how long the group was paused, None if an operator or an earlier run had paused it.
    """

    positions: tuple[Replaced, ...]
    resumed: bool
    seconds: float | None = None


def replace_group(
    ledger: GroupLedger,
    plan: ReplacePlan,
    attribution: Attribution,
    *,
    wait: float,
    accept_differences: bool,
    progress: Progress | None,
) -> ReplaceResult:
    """Carry the plan out; see :meth:`seekpoint.admin.Admin.replace_group`."""
    replacement = _Replacement(ledger, plan, attribution, accept_differences, progress or (lambda *_: None))
    try:
        return replacement.run(monotonic() + wait)
    except (OperationalError, psycopg.OperationalError) as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        names = ", ".join(name for pair in plan.tables for name in pair)
        raise Fenced(
            f"another session has locked a position of {plan.group} or {plan.by}, or one of {names}, for too long: "
            "nothing was exchanged; end its transaction, and try again"
        ) from error


class _Replacement:
    def __init__(
        self,
        ledger: GroupLedger,
        plan: ReplacePlan,
        attribution: Attribution,
        accept_differences: bool,
        progress: Progress,
    ) -> None:
        self.ledger, self.plan, self.attribution = ledger, plan, attribution
        self.accept_differences, self.progress = accept_differences, progress
        self.pauser = pauser_of_old(plan.by)
        self.result: ReplaceResult | None = None

    def run(self, deadline: float) -> ReplaceResult:
        """Carry out the plan; pauses the old group only for the last records, and resumes it if it is not replaced."""
        self._require_replaceable()
        self._wait(deadline)
        self._require_replaceable()  # refuse before the live group is paused, if possible
        began = monotonic()
        pause = self._pause()
        try:
            self._wait(deadline, pause)
            # Also retries after an unanswered COMMIT: in the ledger, the next attempt sees whether it took effect.
            result = retried(partial(self._exchange, pause))
        except BaseException as error:
            self._resume(pause, error)
            raise
        if self.plan.was_paused or pause.was_paused:
            return result
        return ReplaceResult(result.positions, result.resumed, monotonic() - began)

    # -- until the new group is there ------------------------------------------------------------------------------

    def _wait(self, deadline: float, pause: _Pause | None = None) -> None:
        """Wait until the new group has passed the old group's positions; during ``pause`` these no longer move."""
        goal: dict[Partition, int] | None = None
        first: int | None = None
        step = f"{self.plan.by} catches up" if pause is None else f"{self.plan.by} passes the last records"
        while True:
            with self.ledger.begin() as tx:
                pair = read_pair(tx, self.plan.by)
                if pair.is_done:
                    return
                if pause is not None:
                    _require_pause(tx, pair, pause)
            goal = {partition: row.next_offset for partition, row in pair.old_rows.items()} if goal is None else goal
            behind = pair.behind(goal)
            remaining = sum(behind.values())
            first = remaining if first is None else first
            self.progress(step, first - remaining, first)
            if not behind:
                return
            if monotonic() > deadline:
                raise self._too_late(pair, goal, behind)
            sleep(POLL)

    def _too_late(self, pair: Pair, goal: Mapping[Partition, int], behind: Mapping[Partition, int]) -> NotApplied:
        partition, row = next(iter(behind)), pair.new_rows.get(next(iter(behind)))
        why = (
            f"{pair.new.name} is paused by {pair.new.paused_by or 'unknown'}"
            if pair.new.paused
            else (f"see seekpoint status {quote(pair.new.name)}")
        )
        return NotApplied(
            partition,
            goal[partition] - 1,
            None if row is None else row.next_offset,
            f"{pair.new.name} has not passed the positions of {pair.old.name} in time, and nothing was exchanged: it "
            f"still has {numbered(sum(behind.values()), 'offset')} to pass, in {numbered(len(behind), 'partition')} "
            f"({why}); wait longer (--wait, replace_group(plan, wait=...))",
        )

    def _require_replaceable(self) -> None:
        with self.ledger.begin() as tx:
            pair = read_pair(tx, self.plan.by)
            if not pair.is_done:
                require_replaceable(tx, pair)
                self._require_as_planned(tx, pair)

    def _require_as_planned(self, tx: GroupConnection, pair: Pair) -> None:
        """Raise Fenced if a position was reset since the plan was made, or for differences that are not accepted."""
        if last_moves(tx, pair) != self.plan.last_moves:
            raise Fenced(
                f"{pair.old.name} or {pair.new.name} was reset or forgotten since the plan was made: nothing was "
                "exchanged; make another plan"
            )
        if not self.accept_differences and (sentences := list(differences(tx, pair))):
            raise Fenced(f"{'; '.join(sentences)}: nothing was exchanged; {accept_by(self.plan)}")

    # -- the pause ---------------------------------------------------------------------------------------------------

    def _pause(self) -> _Pause:
        """Pause the old group, which fences its workers (I5); does not change an operator's pause."""
        with self.ledger.begin(lock_wait=self.ledger.limits.transaction_age) as tx:
            row = tx.execute(GROUPS["lock"]).one()
            if row.paused:
                is_ours = row.paused_by == self.pauser
                if not (is_ours or self.plan.was_paused):
                    raise Fenced(
                        f"{row.name} was paused by {row.paused_by} since the plan was made: nothing was exchanged; "
                        "make another plan"
                    )
                return _Pause(row.paused_by, _last_pause(tx), is_ours=is_ours, was_paused=True)
            tx.execute(GROUPS["pause"], paused=True, reason=self.attribution.reason, actor=self.pauser)
            tx.execute(GROUPS["redraw"])
            record_action(tx, "pause", actor=self.attribution.actor, reason=f"{self.pauser}: {self.attribution.reason}")
            return _Pause(self.pauser, _last_pause(tx), is_ours=True, was_paused=False)

    def _resume(self, pause: _Pause, error: BaseException) -> None:
        """Let the old group continue with its tables, unless it was paused or resumed meanwhile."""
        if not pause.is_ours:
            return
        try:
            with self.ledger.begin(lock_wait=self.ledger.limits.transaction_age) as tx:
                row = tx.execute(GROUPS["lock"]).one()
                if (row.paused, _last_pause(tx)) != (True, pause.id):
                    return
                tx.execute(GROUPS["pause"], paused=False, reason=None, actor=None)
                tx.execute(GROUPS["redraw"])
                record_action(
                    tx, "resume", actor=self.attribution.actor, reason=f"it is not replaced with {self.plan.by} now"
                )
        except SQLAlchemyError as failure:
            error.add_note(
                f"{self.plan.group} may still be paused, because it could not be resumed ({failure}): repeat the "
                "command, which completes the replacement, or undo the pause: seekpoint groups resume "
                f"{quote(self.plan.group)} --apply --reason WHY"
            )

    # -- the exchange ------------------------------------------------------------------------------------------------

    def _exchange(self, pause: _Pause) -> ReplaceResult:
        with self.ledger.begin(lock_wait=self.ledger.limits.transaction_age) as tx:
            # Waits for open batches of both groups, and for an earlier attempt whose COMMIT was not answered.
            pair = read_pair(tx, self.plan.by, locked=True)
            if pair.is_done:
                return self.result or ReplaceResult((), resumed=not pair.old.paused)
            _require_pause(tx, pair, pause)
            if behind := sum(pair.behind().values()):
                offsets = numbered(behind, "offset")
                raise Fenced(
                    f"{pair.new.name} still has {offsets} to pass to reach the positions of {pair.old.name}: nothing "
                    "was exchanged"
                )
            tables = require_replaceable(tx, pair)
            self._require_as_planned(tx, pair)
            names = {"old_group": pair.old.name, "new_group": pair.new.name}
            for statement in (
                REPLACE["exchange_positions"],
                REPLACE["end_trouble"],
                REPLACE["dead_letters_aside"],
                REPLACE["dead_letters_to_new"],
                REPLACE["dead_letters_to_old"],
            ):
                tx.execute(statement, **names)
            tx.execute(REPLACE["exchange_losses"], **names)
            exchange_tables(tx.connection, tables)
            self.result = self._record(tx, pair, tables, resumed=pause.is_ours)
        return self.result

    def _record(self, tx: GroupConnection, pair: Pair, tables: Mapping[Path, Path], *, resumed: bool) -> ReplaceResult:
        """Give the old group the new one's handler version, pause the new one, and record both.

        Declarations and resets move with the tables, because a reset before the first claim must know of sums (I1).
        """
        names = {".".join(live): ".".join(successor) for live, successor in tables.items()}
        to_old = _renamed(pair.new.declared, {successor: live for live, successor in names.items()})
        to_new = _renamed(pair.old.declared, names)
        new = GroupConnection(tx.connection, tx.schema, pair.new.name)
        why, version = self.attribution.reason, pair.new.version
        paused = (None, None) if resumed else (pair.old.paused_by, pair.old.paused_reason)
        at_version = {"to_version": version}
        resume = {"to_paused": not resumed, "actor": paused[0], "reason": paused[1]}
        tx.execute(REPLACE["set_group"], declared=to_old, **at_version, **resume)
        pause = {"to_paused": True, "actor": pauser_of_new(pair.old.name), "reason": why}
        new.execute(REPLACE["set_group"], declared=to_new, **at_version, **pause)
        positions = tuple(
            Replaced(partition.topic, partition.number, row.next_offset, pair.new_rows[partition].next_offset)
            for partition, row in pair.old_rows.items()
        )
        record_action(new, "replace", actor=self.attribution.actor, reason=f"of {pair.old.name}: {why}")
        tx.execute(REPLACE["copy_resets"], old_group=pair.old.name, new_group=pair.new.name)
        record_action(tx, "replace", actor=self.attribution.actor, reason=f"by {pair.new.name}: {why}")
        for position in positions:
            record_action(
                tx, "replace", actor=self.attribution.actor, reason=f"by {pair.new.name}: {why}",
                partition=Partition(position.topic, position.partition),
                from_offset=position.from_offset, to_offset=position.to_offset,
            )  # fmt: skip
        if resumed:
            record_action(tx, "resume", actor=self.attribution.actor, reason=f"replaced by {pair.new.name}")
        record_action(new, "pause", actor=self.attribution.actor, reason=f"{pauser_of_new(pair.old.name)}: {why}")
        return ReplaceResult(positions, resumed)


def _renamed(declared: Mapping[str, Any] | None, names: Mapping[str, str]) -> Jsonb | None:
    """A group's declaration, with its tables renamed."""
    if declared is None:
        return None

    def renamed(tables: Sequence[str]) -> list[str]:
        return [names.get(table, table) for table in tables]

    topics = {}
    for topic, declaration in declared.items():
        sinks = [sink | {"tables": renamed(sink["tables"])} for sink in declaration["sinks"]]
        topics[topic] = declaration | {"sinks": sinks, "writes": renamed(declaration.get("writes", ()))}
    return Jsonb(topics)


@dataclass(frozen=True, slots=True)
class _Pause:
    """The old group's pause during which it is replaced: its actor, and its id in admin_action."""

    by: str | None
    id: int | None
    is_ours: bool
    was_paused: bool


def _last_pause(tx: GroupConnection) -> int | None:
    last: int | None = tx.execute(RESETS["last_action"], actions=PAUSES).scalar_one()
    return last


def _require_pause(tx: GroupConnection, pair: Pair, pause: _Pause) -> None:
    if (pair.old.paused, pair.old.paused_by, _last_pause(tx)) != (True, pause.by, pause.id):
        state = f"paused by {pair.old.paused_by}" if pair.old.paused else "not paused"
        raise Fenced(f"{pair.old.name} was paused or resumed meanwhile, and is {state}: nothing was exchanged")
