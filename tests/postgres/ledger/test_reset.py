"""A reset by another than the owner is recorded: a new token, a higher epoch, a row that says who and why."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from postgres.ledger.test_group import refused_at_hold
from seekpoint.errors import ConfigError, Fenced, OffsetLost
from seekpoint.ledger.tables import admin_action, in_schema, lost_range
from seekpoint.pipeline.policy import Limits
from support.ledger_worker import LedgerWorker, backend, wait_until_blocked

NewLedgerWorker = Callable[..., LedgerWorker]


def test_i5_a_reset_fences_the_owner(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I5: rewound or not, even to its own offset: the owner's token is no longer good, and it is still the owner."""
    worker = new_worker(positions={0: 5, 1: 5})
    before = worker.row()
    moved = worker.ledger.reset_offset("t", 0, to=5, log=None, reason="look again", actor="alice")
    after = worker.row()
    assert (moved.token, moved.epoch, moved.next_offset) == (after.token, before.epoch + 1, 5)
    assert after.token != before.token
    assert (after.owner, after.leader_epoch) == (worker.ledger.owner, None)
    refused_at_hold(worker, seekpoint_engine)
    worker.claim(0)
    worker.commit({0: 6, 1: 6})
    worker.exactly({0: 6, 1: 6})


def test_a_reset_leaves_a_row(new_worker: NewLedgerWorker) -> None:
    """I5: who, from where, to where, why."""
    worker = new_worker(positions={0: 5})
    worker.ledger.reset_offset("t", 0, to=2, log=None, reason="bug 17", actor="alice")
    [action] = worker.actions()
    assert (action.action, action.topic, action.partition) == ("reset", "t", 0)
    assert (action.from_offset, action.to_offset, action.actor, action.reason) == (5, 2, "alice", "bug 17")
    assert action.at is not None


def test_a_reset_waits_for_a_transaction(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I1, I5: the open batch is finished, and the reset starts from what it committed."""
    worker = new_worker(positions={0: 0})
    operator = new_worker().ledger
    with seekpoint_engine.begin() as tx:
        worker.work(tx, {0: 5})
        moving = threads.submit(operator.reset_offset, "t", 0, 2, log=None, reason="rewind")
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        assert not moving.done()
    assert moving.result().next_offset == 2
    assert worker.actions()[0].from_offset == 5


def test_a_reset_of_an_expected_position_is_a_comparison(new_worker: NewLedgerWorker) -> None:
    """I5: what was looked up an hour ago may no longer be so: nothing is reset, nothing recorded."""
    worker = new_worker(positions={0: 5})
    before = worker.row()
    with pytest.raises(Fenced, match=r"t/0 is at offset 5, not at the expected 4: read the position again"):
        worker.ledger.reset_offset("t", 0, to=2, expected=4, log=None, reason="late")
    assert worker.row() == before
    assert worker.actions() == []
    assert worker.ledger.reset_offset("t", 0, to=2, expected=5, log=None, reason="in time").next_offset == 2


def test_a_skip_writes_what_is_lost(new_worker: NewLedgerWorker) -> None:
    """I4: the range that is given up is a row, in the same transaction."""
    worker = new_worker(positions={0: 5})
    worker.ledger.reset_offset("t", 0, to=8, log=None, reason="cannot be decoded", actor="alice", lost="poison")
    with worker.ledger.engine.connect() as tx:
        [lost] = tx.execute(lost_range.select(), execution_options=in_schema(worker.ledger.schema))
    assert (lost.topic, lost.partition, lost.topic_id) == ("t", 0, worker.topic_id)
    assert (lost.from_offset, lost.to_offset, lost.reason, lost.actor) == (5, 8, "poison", "alice")
    assert lost.decision == "continue at 8"


def steps(worker: LedgerWorker) -> list[tuple[str, int, int | None, int | None]]:
    """What was done: action, partition, from and to."""
    with worker.ledger.engine.connect() as tx:
        rows = tx.execute(admin_action.select().order_by("id"), execution_options=in_schema(worker.ledger.schema))
        return [(r.action, r.partition, r.from_offset, r.to_offset) for r in rows]


def lost_ranges(worker: LedgerWorker) -> list[tuple[int, int | None, str, str, bool]]:
    with worker.ledger.engine.connect() as tx:
        rows = tx.execute(lost_range.select().order_by("id"), execution_options=in_schema(worker.ledger.schema))
        return [(r.from_offset, r.to_offset, r.reason, r.decision, r.topic_id == worker.topic_id) for r in rows]


@pytest.mark.parametrize("to", [0, 4])
def test_what_was_not_read_of_a_recreated_topic_is_a_row(new_worker: NewLedgerWorker, to: int) -> None:
    """I4: from the stored position of the old topic on; where it ended is not known."""
    worker, new = new_worker(), uuid4()
    worker.claim(0)
    worker.commit({0: 5})
    worker.ledger.reset_offset("t", 0, to=to, topic_id=new, log=(0, 4), reason="recreated by accident")
    skipped = [(0, to, "operator", f"continue at {to}", False)] if to else []
    assert lost_ranges(worker) == [(5, None, "recreated", f"continue at {to} of topic id {new}", True), *skipped]


def first_offset(worker: LedgerWorker) -> int:
    [row] = worker.ledger.read()
    return row.first_offset


def test_a_reset_to_before_the_first_offset_lowers_it(new_worker: NewLedgerWorker) -> None:
    """I4: a reload, an export and Spark read from there; what it was is on record."""
    worker = new_worker()
    worker.claim(0, start={0: 100})
    assert worker.ledger.reset_offset("t", 0, to=120, log=None, reason="on").first_offset == 100
    assert worker.ledger.reset_offset("t", 0, to=40, log=None, reason="back").first_offset == 40
    worker.ledger.reset_offset("t", 0, to=90, log=None, reason="on again")
    assert first_offset(worker) == 40
    assert [step for step in steps(worker) if step[0] != "reset"] == [("lower first offset", 0, 100, 40)]


@pytest.mark.parametrize("to", [0, 30, 130])
def test_a_recreated_topic_has_a_first_offset_of_its_own(new_worker: NewLedgerWorker, to: int) -> None:
    """I4: what the earlier topic was first read from says nothing of this one."""
    worker = new_worker()
    worker.claim(0, start={0: 100})
    worker.ledger.reset_offset("t", 0, to=to, topic_id=uuid4(), log=(0, 200), reason="created again")
    assert first_offset(worker) == to


@pytest.mark.parametrize("to", [2, 3])
def test_what_a_truncation_took_is_a_row(new_worker: NewLedgerWorker, to: int) -> None:
    """I4: the offsets between the log's end and the position will be those of other records."""
    worker = new_worker(positions={0: 5})
    worker.ledger.reset_offset("t", 0, to=to, log=(0, 3), reason="unclean leader election")
    assert lost_ranges(worker) == [(3, 5, "rewritten", f"continue at {to}", True)]
    worker.ledger.reset_offset("t", 0, to=1, log=(0, 3), reason="read again")
    assert len(lost_ranges(worker)) == 1


def stop(worker: LedgerWorker, log_end: int | None) -> None:
    lost = OffsetLost(worker.topic_partition(0), 5, "truncated", log_end=log_end)
    lost.token = worker.claims[0].token
    worker.ledger.record_stops([lost])


@pytest.mark.parametrize("log", [(0, 9), None])
@pytest.mark.parametrize(("to", "lost"), [(2, None), (3, None), (5, None), (7, "operator")])
def test_what_was_truncated_is_a_row_where_the_log_has_grown_since(
    new_worker: NewLedgerWorker, log: tuple[int, int] | None, to: int, lost: str | None
) -> None:
    """I4: the stop has where it ended; records that were written there since are passed on record, or read."""
    worker = new_worker(positions={0: 5})
    stop(worker, 3)
    worker.ledger.reset_offset("t", 0, to=to, log=log, lost=lost, reason="go on", actor="ann")
    passed = [] if lost is None else [(5, to, lost, f"continue at {to}", True)]
    assert lost_ranges(worker) == [(3, 5, "rewritten", f"continue at {to}", True), *passed]
    if to > 3:
        position = worker.ledger.wait_until_applied("t", 0, 3, timeout=0)
        assert not position.applied
        assert "ann reset the position past it" in str(position)


def test_a_rewritten_log_is_not_passed_where_it_is_not_known_from_where_on(new_worker: NewLedgerWorker) -> None:
    """I4: no range could be recorded; a reset to before the position reads what is there now."""
    worker = new_worker(positions={0: 5})
    stop(worker, None)
    for to in (5, 7):
        with pytest.raises(Fenced, match=r"truncated before 5 and written again.*lost accept .* --to-offset OFFSET"):
            worker.ledger.reset_offset("t", 0, to=to, log=(0, 9), reason="x")
    assert worker.positions() == {0: 5}
    worker.ledger.reset_offset("t", 0, to=4, log=(0, 9), reason="x")
    assert lost_ranges(worker) == []


def test_what_retention_deleted_is_a_row_where_the_log_is_known(new_worker: NewLedgerWorker) -> None:
    """I4: even if the reset does not say that anything is lost."""
    worker = new_worker(positions={0: 5})
    worker.ledger.reset_offset("t", 0, to=9, log=(8, 20), reason="go on")
    assert lost_ranges(worker) == [(5, 8, "retention", "continue at 9", True)]


def test_a_reset_past_the_log_is_refused(new_worker: NewLedgerWorker) -> None:
    """I5: a number that no broker reported is refused, unless it is said that the brokers were not asked."""
    worker = new_worker(positions={0: 0})
    for to in (1, 11, 10**6):
        with pytest.raises(
            ConfigError, match=rf"t/0 to offset {to}: according to log=, its log has offsets 2 to 10\. .*log=None"
        ):
            worker.ledger.reset_offset("t", 0, to=to, log=(2, 10), reason="x")
    for to in (2, 10):
        worker.ledger.reset_offset("t", 0, to=to, log=(2, 10), reason="x")
    worker.ledger.reset_offset("t", 0, to=10**6, log=None, reason="x")
    assert worker.positions() == {0: 10**6}
    moved = worker.ledger.last_reset(worker.topic_partition(0))
    assert moved is not None
    assert (moved.to, moved.reason) == (10**6, "x")
    local_time = moved.at.astimezone(timezone(timedelta(hours=9)))
    assert str(replace(moved, at=local_time)) == str(moved)
    assert f"{moved.at.astimezone(UTC):%H:%M:%S} UTC" in str(moved)
    assert worker.ledger.last_reset((worker.topic_partition(0).topic, worker.topic_partition(0).number)) == moved
    assert worker.ledger.last_reset(worker.topic_partition(1)) is None


@pytest.mark.parametrize("log", [(5, 2), (-1, 5), (0,), (0, 1, 2), "09", 7, (0, "9"), (True, 9)])
def test_a_log_that_is_none_is_refused(new_worker: NewLedgerWorker, log: Any) -> None:
    worker = new_worker(positions={0: 0})
    with pytest.raises(ConfigError, match="log= must be the start and end offset that the brokers report for t/0"):
        worker.ledger.reset_offset("t", 0, to=1, log=log, reason="x")


@pytest.mark.parametrize("reason", ["", "  ", "\n", None, 7])
def test_a_reason_is_required(new_worker: NewLedgerWorker, reason: Any) -> None:
    worker = new_worker(positions={0: 0})
    with pytest.raises(ConfigError, match="reason= is required"):
        worker.ledger.reset_offset("t", 0, to=1, log=None, reason=reason)
    with pytest.raises(ConfigError, match="reason= is required"):
        worker.ledger.pause(reason=reason)
    assert worker.actions() == []


def test_what_gives_up_nothing_is_refused(new_worker: NewLedgerWorker) -> None:
    """I4: a range that is empty, or ends before it begins, says nothing of what was lost."""
    worker = new_worker(positions={0: 5})
    with pytest.raises(ConfigError, match=r"lost='x' gives up nothing: t/0 is at 5, and a reset to 3 passes no"):
        worker.ledger.reset_offset("t", 0, to=3, log=None, reason="x", lost="x")


def test_orders_that_cannot_be_meant_are_refused(new_worker: NewLedgerWorker) -> None:
    """I5: a misspelled topic or an impossible offset is an error that says so."""
    worker = new_worker(positions={0: 0})
    with pytest.raises(ConfigError, match=r"group 'g' has no stored offset for t/7"):
        worker.ledger.reset_offset("t", 7, to=0, log=None, reason="x")
    with pytest.raises(ConfigError, match=r"cannot reset t/0 to offset -1"):
        worker.ledger.reset_offset("t", 0, to=-1, log=None, reason="x")
    target: Any = "5"
    with pytest.raises(ConfigError, match=r"cannot reset t/0 to offset '5': it must be a whole number from 0 to \d+"):
        worker.ledger.reset_offset("t", 0, to=target, log=None, reason="x")
    assert worker.positions() == {0: 0}


def test_a_waiting_reset_blocks_no_claim(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I5: a reset of a busy partition blocks no other: another is claimed, and a trace is written, meanwhile."""
    worker, other = new_worker(positions={0: 0, 1: 0}), new_worker(limits=Limits(claim_wait=0.5))
    with seekpoint_engine.begin() as tx:
        transaction = worker.hold(tx, 0)
        worker.write(tx, 0, 0, 5)
        moving = threads.submit(new_worker().ledger.reset_offset, "t", 0, 2, log=None, reason="rewind")
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        assert other.claim(1).stalled == ()
        other.ledger.record_action("seen", other.topic_partition(1), 0, 0, reason="test")
        assert not moving.done()
        worker.ledger.advance(tx, [worker.move(0, 5)], transaction)
    assert moving.result().next_offset == 2
