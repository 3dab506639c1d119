"""Plans to pause or resume a group, and carries the plan out as a compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.groups import known_group
from seekpoint.errors import Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import set_paused
from seekpoint.ledger.claim import refuse_forgotten
from seekpoint.ledger.sql import GROUPS, RESETS

_PAUSES = ["pause", "resume"]


@dataclass(frozen=True, slots=True)
class PausePlan:
    """A plan to pause a group (``paused``), or to resume it; ``consequences`` in words.

    ``last_pause`` is the id of the group's last pause or resume; a later one outdates the plan.
    """

    group: str
    paused: bool
    was_paused: bool
    paused_by: str | None
    paused_reason: str | None
    last_pause: int | None
    consequences: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.paused == self.was_paused


def plan_pause(ledger: GroupLedger, paused: bool) -> PausePlan:
    """A plan to pause or resume the group.

    Raises ConfigError for an unknown group, GroupForgotten for a forgotten one.
    """
    with ledger.begin() as tx:
        row = known_group(tx)
        refuse_forgotten(row)
        last = tx.execute(RESETS["last_action"], actions=_PAUSES).scalar_one()
        owned = sum(position.owner is not None for position in tx.execute(GROUPS["positions"]))
    return PausePlan(
        ledger.group,
        paused,
        row.paused,
        row.paused_by,
        row.paused_reason,
        last,
        tuple(_consequences(ledger, paused, row.paused_by, owned)),
    )


def apply_pause(ledger: GroupLedger, plan: PausePlan, attribution: Attribution) -> None:
    """Carry out the plan. Raises Fenced if the group was paused or resumed since planning."""
    with ledger.begin(lock_wait=ledger.limits.transaction_age) as tx:
        row = tx.execute(GROUPS["lock"]).one_or_none()
        pause = None if row is None else (row.paused, row.paused_by, row.paused_reason)
        if pause != (plan.was_paused, plan.paused_by, plan.paused_reason):
            word = "gone" if row is None else f"paused by {row.paused_by}" if row.paused else "not paused"
            raise Fenced(
                f"group {plan.group!r} has changed since the plan was made, and is {word} now: nothing was done; "
                "make another plan"
            )
        if tx.execute(RESETS["last_action"], actions=_PAUSES).scalar_one() != plan.last_pause:
            raise Fenced(
                f"group {plan.group!r} was acted on since the plan was made: it was paused and resumed; nothing was "
                "done; make another plan"
            )
        set_paused(tx, plan.paused, actor=attribution.actor, reason=attribution.reason)


def _consequences(ledger: GroupLedger, paused: bool, by: str | None, owned: int) -> list[str]:
    if paused:
        return [
            f"the pause waits for open batches, at most {ledger.limits.transaction_age:g} s; claims wait meanwhile",
            f"the owners of {owned} partitions are fenced before their next commit, keep their partitions, and wait",
        ]
    consequences = ["workers claim their partitions again within seconds, and continue at the stored offsets"]
    if by is not None and by.startswith("batch "):
        consequences.append(f"the group was paused by {by}, which ends without writing if it still runs")
    return consequences
