"""A driver of DataFrames whose partitions another owner has locked: it waits, and says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from seekpoint import Partition
from seekpoint.errors import Fenced
from seekpoint.jobs.frames.under_claims import claimed
from seekpoint.ledger import Claim, Claimed

A, B = Partition("orders", 0), Partition("orders", 1)
BROKERS: Any = SimpleNamespace(ids={}, cluster_id="c", start=dict)


def granted(*partitions: Partition) -> dict[Partition, Claim]:
    return {partition: Claim(partition, UUID(int=1), 1, 0, None, UUID(int=2)) for partition in partitions}


def claim(answers: list[Claimed], wait: Callable[[float], bool]) -> dict[Partition, Claim]:
    ledger: Any = SimpleNamespace(group="g", claim=lambda *_, **__: answers.pop(0))
    claims: dict[Partition, Claim] = {}
    claimed(ledger, BROKERS, [A, B], claims.update, wait)
    return claims


def test_a_claim_that_waits_for_another_owners_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "seekpoint.jobs.frames.under_claims")
    answers = [Claimed(granted(A), {}, (B,)), Claimed({}, {}, (B,)), Claimed(granted(B), {})]
    assert claim(answers, lambda _: False).keys() == {A, B}
    assert [record.getMessage() for record in caplog.records] == [
        "group g: another owner's transaction has locked orders/1; the claim waits for its end"
    ]


def test_a_stop_ends_the_wait() -> None:
    with pytest.raises(Fenced, match="orders/1 is locked by another owner's transaction"):
        claim([Claimed(granted(A), {}, (B,))], lambda _: True)
