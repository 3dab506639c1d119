"""After a failover to an older state a token never comes back; a mere counter would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from seekpoint.errors import Fenced
from seekpoint.ledger.tables import in_schema, partition_offset
from support.ledger_worker import LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]


def test_a_counter_that_comes_back_after_a_failover_admits_no_owner(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I2, I5: the old owner's epoch is drawn a second time, by another worker; its token is not."""
    first, old, new = new_worker(positions={0: 0}), new_worker(), new_worker()
    before = {name: value for name, value in first.row()._mapping.items() if name in partition_offset.c}
    old.claim(0)
    with seekpoint_engine.begin() as tx:  # the standby had not heard of the old owner's claim
        query = partition_offset.update().where(partition_offset.c.consumer_group == "g").values(before)
        tx.execute(query, execution_options=in_schema(old.ledger.schema))
    new.claim(0)
    assert new.claims[0].epoch == old.claims[0].epoch, "the counter has come back"
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        old.hold(tx)
    new.commit({0: 2})
    new.exactly({0: 2})


def test_a_moves_counter_comes_back_too(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I5: a move after the failover draws the epoch that a claim lost by it had; the lost claim stays outside."""
    first, old = new_worker(positions={0: 0}), new_worker()
    before = {name: value for name, value in first.row()._mapping.items() if name in partition_offset.c}
    old.claim(0)
    with seekpoint_engine.begin() as tx:
        query = partition_offset.update().where(partition_offset.c.consumer_group == "g").values(before)
        tx.execute(query, execution_options=in_schema(old.ledger.schema))
    moved = first.ledger.reset_offset("t", 0, to=0, log=None, reason="test", actor="test")
    assert moved.epoch == old.claims[0].epoch, "the counter has come back"
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        old.hold(tx)
