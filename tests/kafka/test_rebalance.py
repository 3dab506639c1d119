"""Members that join, leave, die and freeze, under the three protocols: every record once, in order.

Records flow all the time. In the end the table equals what the broker acknowledged, and the fence must have
fired where a test is about it: a run in which nothing was refused proves nothing about the fence.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Connection

from seekpoint import Batch, Limits, Partition, events
from seekpoint.kafka.client import Client
from seekpoint.worker import loop
from seekpoint.worker.assignment import resources
from seekpoint.worker.open_batch import CHUNK
from support.events import Gate, Run
from support.worker_group import PROTOCOLS, WorkerGroup

pytestmark = [
    pytest.mark.usefixtures("short_backoff"),
    pytest.mark.pins("batch"),  # a batch of all partitions says that a worker has them all
]

PARTITIONS = 4

Protocol = Mapping[str, Any]


@pytest.fixture
def worker_group(worker_group: WorkerGroup) -> WorkerGroup:
    """One in which dead members are noticed soon."""
    worker_group.expire_sessions_after()
    return worker_group


def writes_all(event: events.Committed) -> bool:
    """Whether one batch had records of every partition: its worker has them all."""
    return len({span.partition for span in event.spans}) == PARTITIONS


def test_members_that_join_and_leave_hand_their_partitions_over(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name = worker_group.topic(PARTITIONS)
    with worker_group.stream(name, PARTITIONS) as stream:
        first: Run = worker_group.worker(name, kafka=protocol)
        first.placed(PARTITIONS)
        second: Run = worker_group.worker(name, kafka=protocol)
        second.seen.wait_for(events.Committed, count=5)
        third: Run = worker_group.worker(name, kafka=protocol)
        third.seen.wait_for(events.Committed, count=5)
        mark = first.seen.mark()
        second.stop()
        third.stop()
        first.seen.wait_for(events.Committed, writes_all, since=mark)
    worker_group.finish(first, name, stream.stored)
    worker_group.record_table.assert_holds(name, stream.stored)
    assert [row.owner for row in worker_group.ledger.read()] == [None] * PARTITIONS, "everybody has left in order"


def test_the_partitions_of_a_killed_member_are_taken_over(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name = worker_group.topic(PARTITIONS)
    with worker_group.stream(name, PARTITIONS) as stream:
        doomed = worker_group.worker_process(name, kafka=protocol)
        doomed.wait_for("Committed", count=3)
        heir = worker_group.worker(name, kafka=protocol)
        heir.placed()
        doomed.wait_for("Committed", count=10)
        mark = heir.seen.mark()
        doomed.kill()
        heir.seen.wait_for(events.Committed, writes_all, since=mark)
    worker_group.finish(heir, name, stream.stored)
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_member_frozen_past_its_session_is_fenced_when_it_wakes(
    worker_group: WorkerGroup, protocol: Protocol
) -> None:
    name = worker_group.topic(PARTITIONS)
    with worker_group.stream(name, PARTITIONS) as stream:
        # It stops itself with records read and nothing sent: on waking it goes straight to hold.
        frozen = worker_group.worker_process(name, kafka=protocol, stop_at=("BatchOpened", 10))
        frozen.wait_until_stopped()
        heir = worker_group.worker(name, kafka=protocol)
        heir.seen.wait_for(events.Committed, writes_all)
        frozen.thaw()
        frozen.wait_for("Refused")
        frozen.wait_for("Activated", count=PARTITIONS + 1)  # it is a member again, with a part of the partitions
    worker_group.finish(heir, name, stream.stored)
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_member_frozen_in_its_transaction_delays_its_successor_briefly(
    worker_group: WorkerGroup, protocol: Protocol
) -> None:
    name = worker_group.topic(2)
    with worker_group.stream(name, 2) as stream:
        limits = {"transaction_age": 4.0, "claim_wait": 0.3}
        frozen = worker_group.worker_process(name, kafka=protocol, stop_at=("Applied", 5), limits=limits)
        frozen.wait_until_stopped()
        heir = worker_group.worker(name, kafka=protocol, limits=Limits(transaction_age=4.0, claim_wait=0.3))
        heir.placed(2)
        heir.seen.wait_for(events.Committed)
        frozen.thaw()
        frozen.wait_for("DatabaseTrouble")  # the server has ended its transaction: nothing of it was written
    worker_group.finish(heir, name, stream.stored)
    worker_group.record_table.assert_holds(name, stream.stored)


def test_a_rebalance_while_the_handler_runs_commits_or_is_fenced(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name = worker_group.topic(2)
    entered, go_on = threading.Event(), threading.Event()

    def slow(tx: Connection, batch: Batch[str, Any]) -> None:
        worker_group.record_table.enter(tx, batch)
        entered.set()
        assert go_on.wait(30)

    stored = worker_group.produce(name, 50, partition=0) + worker_group.produce(name, 50, partition=1)
    first = worker_group.worker(worker_group.pipeline(name, handle=slow), kafka=protocol)
    assert entered.wait(30)
    second = worker_group.worker(name, kafka=protocol)  # joins while the handler stands still
    stored += worker_group.produce(name, 50, partition=0) + worker_group.produce(name, 50, partition=1)
    go_on.set()
    second.placed()
    worker_group.finish(first, name, stored)
    second.stop()
    assert first.seen.all(events.Committed)
    worker_group.record_table.assert_holds(name, stored)


def test_an_open_batch_reads_nothing_more_after_a_revocation(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the next owner waits for what was read, and not until the batch is full."""
    name, revoke = worker_group.topic(2), []
    worker_group.produce(name, 5 * CHUNK, partition=0)

    class RevokingClient(Client):
        def subscribe(self, topics: Any, on_assigned: Any, on_revoked: Any) -> None:
            revoke.append(lambda: on_revoked([Partition(name, 1)], False))
            super().subscribe(topics, on_assigned, on_revoked)

    def rebalance(event: events.Event) -> None:
        if isinstance(event, events.ChunkRead) and event.records == CHUNK and revoke:
            revoke.pop()()

    monkeypatch.setattr(resources, "Client", RevokingClient)
    run = worker_group.worker(name, limits=Limits(batch_records=100 * CHUNK, batch_age=60.0), observe=[rebalance])
    run.seen.wait_for(events.Released)
    run.stop()
    happened = [e for e in run.seen.events if isinstance(e, events.ChunkRead | events.Revoked | events.Released)]
    index = next(n for n, e in enumerate(happened) if isinstance(e, events.Revoked))
    assert isinstance(happened[index + 1], events.Released)


# -- a handler that takes longer than the group would wait ---------------------------------------------------

IMPATIENT = {"max.poll.interval.ms": 3500}


@pytest.mark.long
def test_a_handler_longer_than_the_poll_interval_keeps_its_partitions(
    worker_group: WorkerGroup, protocol: Protocol
) -> None:
    name, stored = worker_group.log(3)
    gate = Gate(events.Applied)
    run = worker_group.worker(name, kafka={**protocol, **IMPATIENT}, observe=[gate])
    gate.wait()
    run.seen.wait_for(events.MembershipRenewed, count=5)  # a third of the interval each: well past it
    gate.open()
    run.finish(name, 3)
    assert not run.seen.all(events.Refused)
    assert not [e for e in run.seen.all(events.Revoked) if e.lost]
    assert len(run.seen.all(events.Activated)) == 1
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_handler_past_the_heartbeats_deadline_is_refused(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name, stored = worker_group.log(3)
    gate = Gate(events.BatchOpened)  # before hold: there is no transaction yet that the server could end
    limits = Limits(transaction_age=2.0, claim_wait=0.3)
    run = worker_group.worker(name, kafka={**protocol, **IMPATIENT}, observe=[gate], limits=limits)
    gate.wait()
    heir = worker_group.worker(name, kafka=protocol)
    heir.reached(name, 3)
    gate.open()
    run.seen.wait_for(events.Refused)
    stored += worker_group.produce(name, 1)
    worker_group.finish(run, name, stored)
    heir.stop()
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_restarted_static_member_waits_for_the_session_of_the_killed_one(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-848: the brokers refuse its id until then, and the client ends for good with each refusal."""
    monkeypatch.setattr(loop, "REJOIN", 0.5)
    worker_group.expire_sessions_after()
    kafka = {**PROTOCOLS["848"], "group.instance.id": f"{worker_group.group}-1"}
    name, stored = worker_group.log(20)
    process = worker_group.worker_process(name, kafka=kafka)
    process.wait_for("Committed")
    run = worker_group.worker(name, kafka=kafka)
    refused = run.seen.wait_for(events.KafkaTrouble)
    assert "another member of the group has this group.instance.id" in refused.error
    process.kill()
    stored += worker_group.produce(name, ["more"])
    run.seen.wait_for(events.Recovered)
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)


FATAL = "Fatal error: Broker: Invalid request: ConsumerGroupHeartbeat fatal error: Broker: Invalid request"


@pytest.mark.long
@pytest.mark.parametrize("interval", [1_000, 300_000])
def test_a_client_whose_heartbeat_is_refused_is_replaced_where_it_rejoins(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    """librdkafka rejoins wrongly after a broker was away for longer than max.poll.interval.ms, and ends for good then.

    Before that interval has passed the configuration is at fault, and the worker ends with the error.
    """
    read, is_refused, began = Client._read, threading.Event(), monotonic()

    def refuse_once(client: Client, most: int, wait: float) -> list[Any]:
        if is_refused.is_set() and monotonic() - began > 1.5:
            is_refused.clear()
            raise KafkaException(KafkaError(KafkaError._FATAL, FATAL))
        return read(client, most, wait)

    monkeypatch.setattr(Client, "_read", refuse_once)
    name, stored = worker_group.log(20)
    run = worker_group.worker(name, kafka={**PROTOCOLS["848"], "max.poll.interval.ms": interval})
    run.reached(name, 20)
    is_refused.set()
    if interval > 1_000:
        ended = run.seen.wait_for(events.WorkerStopped)
        assert FATAL in str(ended.error)
        with pytest.raises(KafkaException):
            run.stop()
        return
    assert run.seen.wait_for(events.KafkaTrouble).error == FATAL
    stored += worker_group.produce(name, ["more"])
    worker_group.finish(run, name, stored)
    assert len(run.seen.all(events.Started)) == 2
    worker_group.record_table.assert_holds(name, stored)
