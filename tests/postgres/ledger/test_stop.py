"""A stop in the ledger: stored under the claim that it happened under, cleared by whatever moves or claims the row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from seekpoint.errors import OffsetLost
from seekpoint.ledger import Stop
from support.ledger_worker import LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]


def stop_of(worker: LedgerWorker, message: str = "gone\0", number: int = 0, log_end: int | None = None) -> OffsetLost:
    stop = OffsetLost(worker.topic_partition(number), 5, message, choices=["one\0", "two"], log_end=log_end)
    stop.token = worker.claims[number].token
    return stop


def stored(worker: LedgerWorker, number: int = 0) -> Stop | None:
    return worker.ledger.positions_of([worker.topic_partition(number)])[worker.topic_partition(number)].stop


def test_a_stop_is_stored_and_keeps_its_time(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 0, 1: 0})
    worker.ledger.record_stops([stop_of(worker)])
    first = stored(worker)
    assert first is not None
    assert (first.kind, first.offset, first.choices) == ("OffsetLost", 5, (r"one\x00", "two"))
    assert first.message == r"gone\x00"
    worker.ledger.record_stops([stop_of(worker, "the same, later")])
    again = stored(worker)
    assert again is not None
    assert (again.at, again.message) == (first.at, "the same, later")
    assert stored(worker, 1) is None


def test_a_row_that_another_session_has_locked_is_left_out(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    worker, other = new_worker(positions={0: 0}), new_worker(positions={1: 0})
    with seekpoint_engine.begin() as tx:
        worker.work(tx, {0: 3})
        assert worker.ledger.record_stops([stop_of(worker), stop_of(other, number=1)]) == {worker.topic_partition(0)}
        assert stored(other, 1) is not None
    assert stored(worker) is None
    assert worker.ledger.record_stops([stop_of(worker)]) == set()
    assert stored(worker) is not None


@pytest.mark.parametrize("by", ["claim", "move"])
def test_a_stop_under_another_claim_is_not_stored(new_worker: NewLedgerWorker, by: str) -> None:
    """I2: the partition is another's by now, or an operator has decided: the stop is over."""
    worker, other = new_worker(positions={0: 0}), new_worker()
    late = stop_of(worker)
    if by == "claim":
        other.claim(0)
    else:
        other.ledger.reset_offset("t", 0, 3, log=None, reason="decided")
    worker.ledger.record_stops([late])
    assert stored(worker) is None


@pytest.mark.parametrize("by", ["claim", "move", "commit"])
def test_a_stop_ends_with_the_next_claim_move_or_commit(new_worker: NewLedgerWorker, by: str) -> None:
    worker = new_worker(positions={0: 0})
    worker.ledger.record_stops([stop_of(worker, log_end=9)])
    assert stored(worker) is not None
    match by:
        case "claim":
            new_worker().claim(0)
        case "move":
            worker.ledger.reset_offset("t", 0, 3, log=None, reason="decided")
        case _:
            worker.commit({0: 6})
    assert stored(worker) is None


def test_a_release_keeps_the_stop(new_worker: NewLedgerWorker) -> None:
    """A worker that leaves decides nothing: the stop is seen until the next claim."""
    worker = new_worker(positions={0: 0})
    worker.ledger.record_stops([stop_of(worker)])
    worker.ledger.release(worker.claims.values())
    assert stored(worker) is not None


@pytest.mark.parametrize("by", ["claim", "move", "commit"])
def test_where_a_truncated_log_ended_is_known_until_it_is_decided(new_worker: NewLedgerWorker, by: str) -> None:
    """I4: the log has grown by the time it is read again, and the new records before the position would be passed."""
    worker = new_worker(positions={0: 5})
    worker.ledger.record_stops([stop_of(worker, log_end=3)])
    match by:
        case "claim":
            worker.claim(0)
        case "move":
            worker.ledger.reset_offset("t", 0, 5, log=None, reason="decided")
            worker.claim(0)
        case _:
            worker.commit({0: 6})
    worker.ledger.record_stops([stop_of(worker, "longer again")])
    stop = stored(worker)
    assert stop is not None
    assert stop.log_end == (3 if by == "claim" else None)
