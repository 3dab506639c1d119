"""The group's row: version, pause, cluster, tables; and topics that are not what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from seekpoint.errors import ClusterChanged, ConfigError, Fenced, GroupPaused, HandlerOutdated, TopicRecreated
from seekpoint.ledger.claim import Claimant
from seekpoint.ledger.tables import consumer_group, in_schema
from seekpoint.records import Partition
from support.ledger_worker import CLUSTER, LedgerWorker

NewLedgerWorker = Callable[..., LedgerWorker]


def group_row(worker: LedgerWorker) -> Any:
    query = consumer_group.select().where(consumer_group.c.name == worker.ledger.group)
    with worker.ledger.engine.connect() as tx:
        return tx.execute(query, execution_options=in_schema(worker.ledger.schema)).one()


def refused_at_hold(worker: LedgerWorker, engine: Engine) -> None:
    with pytest.raises(Fenced), engine.begin() as tx:
        worker.hold(tx)


# -- version ------------------------------------------------------------------------------------------------


def test_an_older_handler_is_refused(new_worker: NewLedgerWorker) -> None:
    """I5: the refusal names both versions, and the newer worker's claim is as it was."""
    newer, older = new_worker(version=3, positions={0: 0}), new_worker(version=2)
    before = newer.row()
    with pytest.raises(
        HandlerOutdated, match=r"at handler version 3, but this process runs version 2: deploy version 3"
    ):
        older.claim(0)
    assert newer.row() == before
    newer.commit({0: 1})


def test_a_newer_handler_takes_over(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I5: its claim fences the older workers everywhere, not only where it claims, and leaves a row that says so."""
    older, newer = new_worker(version=1, positions={0: 3, 1: 3}), new_worker(version=2)
    before = older.row(1)
    newer.claim(0)
    assert group_row(newer).version == 2
    after = older.row(1)
    assert (after.token != before.token, after.epoch, after.next_offset) == (True, before.epoch + 1, 3)
    del older.claims[0]
    refused_at_hold(older, seekpoint_engine)  # partition 1, which no other worker has claimed
    with pytest.raises(HandlerOutdated):
        older.claim(1)
    [action] = newer.actions()
    assert (action.action, action.reason) == ("version", "handler version 1 -> 2")
    assert action.actor == f"worker {newer.ledger.owner}"
    newer.claim(1)
    newer.commit({0: 4, 1: 4})
    newer.exactly({0: 4, 1: 4})


def test_the_same_version_raises_nothing(new_worker: NewLedgerWorker) -> None:
    """I5: a second worker of the version that the group has fences no other by starting."""
    started = new_worker(version=2, positions={0: 0})
    new_worker(version=2, positions={1: 0})
    started.commit({0: 1})
    assert started.actions() == []


# -- pause --------------------------------------------------------------------------------------------------


def test_a_pause_fences_until_a_resume(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I5: pausing draws every token again: a worker in full run is refused; positions stay where they are."""
    worker = new_worker(positions={0: 3, 1: 0})
    before = worker.row(1)
    worker.ledger.pause(reason="index rebuild", actor="alice")
    refused_at_hold(worker, seekpoint_engine)
    with pytest.raises(GroupPaused, match="is paused by alice: index rebuild") as caught:
        worker.claim(0)
    assert (caught.value.reason, caught.value.actor) == ("index rebuild", "alice")
    worker.ledger.resume(reason="done", actor="bob")
    assert worker.row(1).epoch == before.epoch + 2
    refused_at_hold(worker, seekpoint_engine)  # the old token does not come back
    worker.claim(0, 1)
    worker.commit({0: 4})
    worker.exactly({0: 4, 1: 0})
    assert [(a.action, a.actor, a.reason) for a in worker.actions()] == [
        ("pause", "alice", "index rebuild"),
        ("resume", "bob", "done"),
    ]
    assert (group_row(worker).paused, group_row(worker).paused_by) == (False, None)


def test_a_group_that_is_not_there_cannot_be_paused(new_worker: NewLedgerWorker) -> None:
    """I5: an order to a misspelled group is an error, not a success."""
    with pytest.raises(ConfigError, match="there is no group 'unknown'"):
        new_worker("unknown").ledger.pause(reason="x")


@pytest.mark.parametrize("kind", [HandlerOutdated, GroupPaused, ClusterChanged])
def test_a_claim_that_is_refused_after_tokens_were_drawn_is_rolled_back(
    new_worker: NewLedgerWorker, kind: type[Exception]
) -> None:
    """I2, I4, I5: the group's row is read in the same round trip, and checked before COMMIT.

    As where the group changes after it was read without a lock, before the claim.
    """
    here = new_worker(positions={0: 3, 1: 0})
    claimant = Claimant("g", uuid4(), 1, "cluster-2" if kind is ClusterChanged else CLUSTER, {"t": here.topic_id})
    if kind is GroupPaused:
        here.ledger.pause(reason="x")
    if kind is HandlerOutdated:
        new_worker(version=2).claim(0)
    before = here.row(0), here.row(1)
    with pytest.raises(kind):
        here.ledger._claim_together(claimant, [here.topic_partition(0), here.topic_partition(1)], None)
    assert (here.row(0), here.row(1)) == before


# -- cluster and topic --------------------------------------------------------------------------------------


def test_another_cluster_is_refused(new_worker: NewLedgerWorker) -> None:
    """I4: offsets of one cluster mean nothing in another; the refusal names both and the choices."""
    worker, stranger = new_worker(positions={0: 0}), new_worker()
    stranger.cluster_id = "cluster-2"
    with pytest.raises(ClusterChanged, match="cluster cluster-1, but these brokers are cluster cluster-2") as caught:
        stranger.claim(0)
    assert any("bootstrap.servers" in choice for choice in caught.value.choices)
    worker.commit({0: 1})  # unharmed


def test_a_recreated_topic_stops_its_partitions_alone(new_worker: NewLedgerWorker) -> None:
    """I4: the offset belongs to the topic's earlier life: refused with the choices; the row is not touched."""
    worker, other = new_worker(positions={0: 5}), new_worker()
    before = worker.row()
    renewed = uuid4()
    wanted, ids = [Partition("t", 0), Partition("u", 0)], {"t": renewed, "u": uuid4()}
    claimed = other.ledger.claim(wanted, ids, cluster_id=other.cluster_id, start=lambda t: {Partition(t, 0): 0})
    assert set(claimed.granted) == {Partition("u", 0)}
    stop = claimed.refused[Partition("t", 0)]
    assert isinstance(stop, TopicRecreated)
    assert stop.offset == 5
    assert stop.token == before.token
    assert [choice.split(":")[0] for choice in stop.choices] == ["restart", "continue", "stop"]
    assert str(renewed) in str(stop)
    assert str(worker.topic_id) in str(stop)
    assert worker.row() == before


def test_a_reset_binds_the_row_to_the_recreated_topic(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I4, I5: the operator's decision binds the row to the new topic; the old life's reader is fenced."""
    worker, successor = new_worker(positions={0: 5}), new_worker()
    successor.topic_id = uuid4()
    assert successor.topic_partition(0) in successor.claim(0).refused
    successor.ledger.reset_offset(
        "t", 0, to=0, topic_id=successor.topic_id, log=None, reason="recreated with the same schema"
    )
    refused_at_hold(worker, seekpoint_engine)
    assert worker.topic_partition(0) in worker.claim(0).refused  # a worker that still sees the old id
    assert successor.claim(0).refused == {}
    assert (successor.claims[0].next_offset, successor.claims[0].topic_id) == (0, successor.topic_id)


def test_the_tables_that_a_group_writes_are_kept(new_worker: NewLedgerWorker) -> None:
    """I5: who writes this table? Every worker's tables are added, none is dropped."""
    new_worker(tables=["orders", "audit"]).claim(0)
    last = new_worker(tables=["lines", "orders"])
    last.topic = "u"
    last.claim(0)
    assert group_row(last).tables == ["audit", "lines", "orders"]
