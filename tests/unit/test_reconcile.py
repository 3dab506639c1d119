"""Reconciling active partitions with the ledger's rows: the five cases, and partitions revoked meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from seekpoint.events import Announcer
from seekpoint.ledger import Claim
from seekpoint.pipeline.policy import Limits, StartAt
from seekpoint.records import Partition
from seekpoint.worker.assignment import Resources, WorkerAssignment
from seekpoint.worker.assignment.partitions import AssignedPartitions
from seekpoint.worker.assignment.reconcile import ReconcileCase, classify
from seekpoint.worker.assignment.states import ActivePartition

P = Partition("t", 0)
CLAIM = Claim(P, uuid4(), 1, 5, None, uuid4())
OTHER = Partition("t", 1)
OTHER_CLAIM = Claim(OTHER, uuid4(), 1, 0, None, CLAIM.topic_id)


@pytest.mark.parametrize(
    ("stored", "read_position", "start", "standing"),
    [
        (5, 9, 5, ReconcileCase.IN_STEP),  # nothing was committed: the batch may be tried again
        (5, 5, None, ReconcileCase.IN_STEP),
        (9, 9, None, ReconcileCase.IN_STEP),
        (9, 9, 5, ReconcileCase.COMMITTED_UNSEEN),  # all of the batch
        (8, 9, 5, ReconcileCase.COMMITTED_UNSEEN),  # it ended before what was read
        (3, 9, 5, ReconcileCase.ROLLED_BACK),
        (3, 5, None, ReconcileCase.ROLLED_BACK),
        (5, 9, None, ReconcileCase.AHEAD),  # what was read was dropped
        (5, 9, 7, ReconcileCase.AHEAD),  # a part of it was
    ],
)
def test_a_row_is_classified(stored: int, read_position: int, start: int | None, standing: ReconcileCase) -> None:
    row: Any = SimpleNamespace(token=CLAIM.token, next_offset=stored)
    assert classify(row, ActivePartition(CLAIM, read_position), start) is standing


@pytest.mark.parametrize("row", [None, SimpleNamespace(token=uuid4(), next_offset=5)])
def test_a_claim_that_is_not_ours_is_lost(row: Any) -> None:
    assert classify(row, ActivePartition(CLAIM, 5), 5) is ReconcileCase.LOST


class Client:
    """Keeps which partitions it was asked to read."""

    rebalanced = False

    def __init__(self) -> None:
        self.assigned: list[Partition] = []
        self.continued: list[Mapping[Partition, tuple[int, int | None]]] = []

    def continue_reading(self, positions: Mapping[Partition, tuple[int, int | None]]) -> None:
        self.continued.append(positions)

    def assign(self, fresh: Collection[Partition], _others: Mapping[Partition, int]) -> None:
        self.assigned += fresh

    def unassign(self, _partitions: Collection[Partition], _others: Mapping[Partition, int]) -> None: ...


class OneWorker:
    """A worker that reads P under CLAIM up to offset 9, and the ledger's row of P."""

    def __init__(self, **row: Any) -> None:
        stored = SimpleNamespace(owner=uuid4(), attempt_offset=None, leader_epoch=None, epoch=1, **row)
        self.actions: list[str] = []
        rows = {P: stored, OTHER: SimpleNamespace(**{**vars(stored), "token": OTHER_CLAIM.token, "next_offset": 0})}
        ledger = SimpleNamespace(
            group="g",
            limits=Limits(),
            owner=uuid4(),
            positions_of=lambda asked: {p: rows[p] for p in asked},
            record_action=lambda action, *_, **__: self.actions.append(action),
        )
        self.client = Client()
        client: Any = self.client
        self.partitions = AssignedPartitions(client, Announcer())
        unused = None
        parts: Any = (self.partitions, self.client, ledger, unused, unused, Announcer())
        self.assignment = WorkerAssignment(Resources(*parts), ["t"], StartAt.earliest(), None)
        self.partitions.activate({P: CLAIM})
        self.partitions.active[P].read_position = 9
        self.client.assigned.clear()


def test_after_a_rebalance_remaining_partitions_are_read_from_their_read_positions() -> None:
    """The client would begin again up to a second later."""
    worker = OneWorker(token=CLAIM.token, next_offset=5)
    worker.assignment.maintain()
    assert worker.client.continued == []
    worker.client.rebalanced = True
    worker.assignment.maintain()
    assert worker.client.continued == [{P: (9, None)}]


def test_a_lost_claim_of_a_revoked_partition_is_released() -> None:
    """I2: an unreleased claim would count as a crash of the process; released once, even if P was assigned again."""
    worker = OneWorker(token=uuid4(), next_offset=5)
    worker.partitions.on_revoked([P], False)
    worker.partitions.on_assigned([P])
    assert worker.assignment.reconcile({}) == {P}
    assert worker.partitions.claiming[P].known is None
    assert worker.partitions.claims() == [CLAIM]
    assert worker.partitions.leave() == [CLAIM]
    assert worker.partitions.leave() == []


def test_a_revoked_partition_is_not_read_again() -> None:
    """I2: the client must not assign itself what another member may read by now."""
    worker = OneWorker(token=CLAIM.token, next_offset=5)
    worker.partitions.on_revoked([P], False)
    assert worker.assignment.reconcile({}) == {P}
    assert worker.client.assigned == []
    assert worker.partitions.leave() == [CLAIM]


def test_a_revoked_partition_that_was_rolled_back_is_not_held_again() -> None:
    """I2: each transaction that holds it would be refused, and the loop that releases it would never have its time."""
    worker = OneWorker(token=CLAIM.token, next_offset=3)
    worker.assignment.accept([CLAIM])  # it moved lately
    worker.partitions.on_revoked([P], False)
    worker.partitions.activate({OTHER: OTHER_CLAIM})
    assert worker.assignment.reconcile({OTHER: 0}) == {P}
    assert [e.claim.partition for e in worker.assignment.expected({OTHER: 0})] == [OTHER]
    assert worker.assignment.reconcile({OTHER: 0}) == set()
    assert [claim.token for claim in worker.partitions.leave()] == [CLAIM.token]
    assert worker.actions == ["rolled back"], "on record once"


def test_a_claim_that_was_replaced_before_accept_is_not_taken_over() -> None:
    """I2: the owner of a loop may accept what it committed after the next poll, under an earlier token."""
    worker = OneWorker(token=CLAIM.token, next_offset=5)
    worker.assignment.accept([Claim(P, uuid4(), 1, 9, None, CLAIM.topic_id)])
    assert worker.partitions.active[P].claim == CLAIM


def test_a_revoked_partition_is_not_mirrored() -> None:
    """Between its revocation and the next ``maintain``: its new owner may have committed a later offset to Kafka."""
    worker = OneWorker(token=CLAIM.token, next_offset=9)
    assert worker.assignment.current_claims() == [CLAIM]
    worker.partitions.on_revoked([P], False)
    assert worker.assignment.current_claims() == []


def test_the_topic_of_a_revoked_partition_is_compared_until_its_batch_has_ended() -> None:
    """I4: Kafka may take it away while the answer is awaited whose id decides on COMMIT."""
    worker = OneWorker(token=CLAIM.token, next_offset=5)
    answer: Any = SimpleNamespace(result=lambda: {"t": uuid4()})
    worker.partitions.on_revoked([P], False)
    assert list(worker.assignment.topic_id_mismatches(answer, [P])) == [P]
    worker.partitions.leave()
    assert worker.assignment.topic_id_mismatches(answer, [P]) == {}
