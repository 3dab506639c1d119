"""Compares stored rows with active partitions after a refusal, or a COMMIT without an answer (I2, I3, I6).

``classify`` returns one of five cases, without I/O; ``Reconciler`` acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from time import monotonic

from seekpoint import events
from seekpoint.backoff import Backoff
from seekpoint.errors import Fenced
from seekpoint.ledger import Claim, Position
from seekpoint.records import Partition
from seekpoint.worker.assignment.claiming import Claiming
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.states import ActivePartition


class ReconcileCase(Enum):
    """How a partition's stored position compares with the expected one; only LOST means another claim."""

    IN_STEP = auto()  # at the batch's start, or at the reader's position: the same records may be tried again
    COMMITTED_UNSEEN = auto()  # after the expected one: a COMMIT took effect, but its answer was lost
    ROLLED_BACK = auto()  # before a confirmed commit: a failover lost that commit
    AHEAD = auto()  # unchanged, but the reader is ahead: records that it had read were dropped
    LOST = auto()  # another claim has replaced ours, or the row is gone


def classify(row: Position | None, active: ActivePartition, start: int | None) -> ReconcileCase:
    """Compare a row with the partition; ``start`` is where the open batch begins, None if it has no record of it."""
    if row is None or row.token != active.claim.token:
        return ReconcileCase.LOST
    if row.next_offset == (active.position if start is None else start):
        return ReconcileCase.IN_STEP
    if row.next_offset > active.claim.next_offset:
        return ReconcileCase.COMMITTED_UNSEEN
    return ReconcileCase.ROLLED_BACK if row.next_offset < active.claim.next_offset else ReconcileCase.AHEAD


class Reconciler:
    """Brings the partitions of one consumer in line with the ledger. ``has_group``: Kafka assigns the partitions."""

    def __init__(self, resources: Resources, claiming: Claiming, *, has_group: bool) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._claiming, self._has_group = claiming, has_group
        self.reset_backoff()

    def reset_backoff(self) -> None:
        """Note progress, which makes the wait after the next lost claim short again."""
        self._lost = 0  # claims lost since the last progress

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        """Lock the ledger's rows and compare with them; returns the partitions to drop from the batch.

        The open batch begins at ``starts``. A partition in step may be tried again. Any other is read again from the
        ledger's position, or claimed again.
        """
        owned = self._partitions.all_owned()
        rows = self._ledger.positions_of(owned)
        dropped: set[Partition] = set()
        fresh: dict[Partition, Claim] = {}
        for partition, active in list(owned.items()):
            row, start = rows.get(partition), starts.get(partition)
            standing = classify(row, active, start)
            if standing is not ReconcileCase.IN_STEP:
                dropped.add(partition)
            if row is None or standing is ReconcileCase.LOST:
                self.claim_lost(active.claim, row)
                continue
            claimed, expected = active.claim.next_offset, active.position if start is None else start
            if row.next_offset == active.position:  # the reader is at the ledger's position, and continues
                active.reached(row.next_offset, row.leader_epoch)
            elif standing is not ReconcileCase.IN_STEP and (claim := self._reread(active.claim, row)) is not None:
                fresh[partition] = claim
            if standing is ReconcileCase.COMMITTED_UNSEEN:
                self._announce(
                    events.Resynced(partition=partition, expected=expected, found=row.next_offset, cause="reply lost")
                )
            elif standing is ReconcileCase.ROLLED_BACK:
                self._claiming.rolled_back(partition, claimed, row.next_offset)
        self._claiming.activate(fresh)
        return dropped

    def _reread(self, claim: Claim, row: Position) -> Claim | None:
        """The claim at the ledger's position, to read from there; None for a partition to claim again or release."""
        current = replace(claim, next_offset=row.next_offset, leader_epoch=row.leader_epoch, epoch=row.epoch)
        # If the row has an attempt, claim again: only a claim returns when it is due, and how often it was tried. A
        # revoked partition must be released: if it stayed in the batch, every commit would be refused, without end.
        if row.attempt_offset is not None or claim.partition not in self._partitions.active:
            self._partitions.claim_again(claim.partition, current)
            return None
        return replace(
            current,
            unreleased=row.unreleased_claims,
            attempt=None,
            suspect_end=row.suspect_end,
            crashed_part_end=None if row.suspect_running else row.suspect_part_end,
        )

    def claim_lost(self, claim: Claim, row: Position | None) -> None:
        """Stop reading at once; claim again if Kafka still assigns the partition to this consumer.

        Without a group, the newest claim wins: raises Fenced unless the position was reset.
        """
        partition = claim.partition
        self._announce(events.ClaimLost(partition=partition))
        was_reset = row is not None and row.owner == self._ledger.owner  # an operator's reset keeps the owner
        if not self._has_group and not was_reset:
            self._partitions.deactivate([partition])
            raise Fenced(
                f"{partition} was claimed by another worker; without a group the newest claim wins: start only one "
                "worker with this partition in partitions="
            )
        wait = 0.0
        if not was_reset:
            self._lost += 1
            wait = Backoff().wait(self._lost)
        self._partitions.claim_again(partition, claim, monotonic() + wait)
