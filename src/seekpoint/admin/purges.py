"""Plans to delete closed dead letters, counts them by state, and carries the plan out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.groups import known_group
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import record_action
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, PURGE, RESETS
from seekpoint.records import State, numbered

APPLIED = (State.REPLAYED,)
"""States of applied records, whose rows are not needed. (A superseded dead letter's record may still be unread.)"""
CLOSED = (*APPLIED, State.SUPERSEDED, State.DISCARDED, State.SKIPPED)


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """A plan to delete a group's dead letters in these ``states`` that were closed before ``before``.

    ``counts`` has their numbers by state; ``kept`` the numbers of dead letters in other closed states, which stay.
    """

    group: str
    before: datetime
    states: tuple[State, ...]
    counts: Mapping[str, int]
    kept: Mapping[str, int]
    consequences: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self.counts


def plan_purge(ledger: GroupLedger, older_than: timedelta, states: Collection[State]) -> PurgePlan:
    """A plan to delete closed dead letters.

    Raises ConfigError for an unknown group, an open state, and an age that is negative or beyond the calendar; Fenced
    while a run of the group is open.
    """
    purged_states = tuple(state for state in CLOSED if state in states)
    if not purged_states or len(purged_states) != len(set(states)):
        named = ", ".join(states) or "none"
        raise ConfigError(f"only closed dead letters are purged: {', '.join(CLOSED)}; not {named}")
    if older_than < timedelta(0):
        raise ConfigError(f"dead letters are purged by their age, which must not be negative: {older_than}")
    with ledger.begin() as tx:
        known_group(tx)
        _require_no_run(tx)
        try:
            before = tx.execute(PURGE["clock"]).scalar_one() - older_than
        except OverflowError:
            raise ConfigError(f"{older_than} ago is before the year 1: nothing is that old") from None
        closed = {row.state: int(row.n) for row in tx.execute(PURGE["count_closed"], before=before)}
        of_runs = int(tx.execute(PURGE["count_run_dead_letters"], before=before).scalar_one())
    counts = {state: count for state, count in closed.items() if state in purged_states}
    kept = {state: count for state, count in closed.items() if state not in purged_states}
    return PurgePlan(ledger.group, before, purged_states, counts, kept, tuple(_in_words(before, counts, kept, of_runs)))


def by_state(counts: Mapping[str, int]) -> str:
    """The counts as text, by the state's name: ``3 replayed, 1 superseded``."""
    return ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))


def _in_words(before: datetime, counts: Mapping[str, int], kept: Mapping[str, int], of_runs: int) -> Iterator[str]:
    if counts:
        deleted = numbered(sum(counts.values()), "dead letter")
        yield f"deletes {deleted} closed before {before:%F %T %Z}: {by_state(counts)}"
    if State.DISCARDED in counts or State.SKIPPED in counts:
        yield "without its row, a record that was discarded or skipped counts as applied"
    if State.SUPERSEDED in counts:
        yield "a superseded dead letter's record was read again only if the position has passed it: check that first"
    if kept:
        yield f"{by_state(kept)} stay: to delete them, name their states with --state"
    if of_runs:
        yield (
            f"keeps {numbered(of_runs, 'dead letter')} of reprocesses: the ledger's owner can delete them "
            "from reprocess_dead_letter"
        )


def apply_purge(ledger: GroupLedger, plan: PurgePlan, attribution: Attribution) -> dict[str, int]:
    """Delete the dead letters that are still closed, in one transaction; returns counts by state. Raises Fenced."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        tx.execute(GROUPS["lock"]).one_or_none()  # no run begins before COMMIT
        _require_no_run(tx)
        rows = tx.execute(PURGE["delete_closed"], before=plan.before, states=list(plan.states))
        deleted = {row.state: int(row.n) for row in rows}
        if deleted:
            reason = f"{attribution.reason} ({by_state(deleted)}, closed before {plan.before:%F %T %Z})"
            record_action(tx, "purge", actor=attribution.actor, reason=reason)
        return deleted


def _require_no_run(tx: GroupConnection) -> None:
    """Raise Fenced if a run is open: from dead letters it adds records that were replayed since it began."""
    if runs := tx.execute(RESETS["open_runs_of_group"]).all():
        raise Fenced(
            f"run {runs[0].id} ({runs[0].strategy}, {runs[0].state}) of group {tx.group!r} is open, and adds records "
            "that were replayed since it began: purge dead letters after its end"
        )
