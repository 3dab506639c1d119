"""Where the ledger is, compared with where the reader is: the five cases, from values alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from seekpoint.ledger import Claim
from seekpoint.records import Partition
from seekpoint.worker.assignment.partitions import ActivePartition
from seekpoint.worker.assignment.reconcile import Standing, classify

CLAIM = Claim(Partition("t", 0), uuid4(), 1, 5, None, uuid4())


@pytest.mark.parametrize(
    ("stored", "cursor", "start", "standing"),
    [
        (5, 9, 5, Standing.IN_STEP),  # nothing was committed: the batch may be tried again
        (5, 5, None, Standing.IN_STEP),
        (9, 9, None, Standing.IN_STEP),
        (9, 9, 5, Standing.COMMITTED_UNSEEN),  # all of the batch
        (8, 9, 5, Standing.COMMITTED_UNSEEN),  # it ended before what was read
        (3, 9, 5, Standing.ROLLED_BACK),
        (3, 5, None, Standing.ROLLED_BACK),
        (5, 9, None, Standing.AHEAD),  # what was read was dropped
        (5, 9, 7, Standing.AHEAD),  # a part of it was
    ],
)
def test_a_row_is_classified(stored: int, cursor: int, start: int | None, standing: Standing) -> None:
    row: Any = SimpleNamespace(token=CLAIM.token, next_offset=stored)
    assert classify(row, ActivePartition(CLAIM, cursor), start) is standing


@pytest.mark.parametrize("row", [None, SimpleNamespace(token=uuid4(), next_offset=5)])
def test_a_claim_that_is_not_ours_is_lost(row: Any) -> None:
    assert classify(row, ActivePartition(CLAIM, 5), 5) is Standing.LOST
