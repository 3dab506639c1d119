"""What Kafka can do to a position: retention, truncation, another topic under the same name, brokers that go away.

Work resumes by itself, or the partition stops with the choices spelled out; nothing is lost silently (I4).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition

from seekpoint import Limits, Partition, events
from seekpoint.admin import Admin
from seekpoint.errors import OffsetLost, PartitionStopped, TopicRecreated, TopicUnknown
from seekpoint.kafka.client import OUT_OF_RANGE, Client
from seekpoint.kafka.identity import Answer
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.worker.assignment import claiming as claims
from support.events import Gate, Run
from support.log_changes import LARGE, in_transactions, log_folder, trim
from support.waiting import until
from support.worker_group import QUICK, WorkerGroup, WorkerOptions

pytestmark = pytest.mark.usefixtures("short_backoff")

Protocol = Mapping[str, Any]
WorkerGroupOn = Callable[..., WorkerGroup]
Stop = TypeVar("Stop", bound=PartitionStopped)

# Fetches of one record at a time: the client has nothing in store when the log changes under it.
ROUNDS = 3
SMALL_FETCHES = {**QUICK, "queued.min.messages": 1, "fetch.message.max.bytes": 60_000}


def stop_of(run: Run, kind: type[Stop], since: int = 0) -> Stop:
    """The first stop of this kind that the worker announces."""
    error = run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, kind), since=since).error
    assert isinstance(error, kind)
    return error


def lost_ranges(worker_group: WorkerGroup) -> list[tuple[int, int | None, str]]:
    """What the group has given up: from, to, why."""
    return list(
        map(tuple, worker_group.sql("SELECT from_offset, to_offset, reason FROM {schema}.lost_range ORDER BY id"))
    )


# -- positions that are not in the log ----------------------------------------------------------------------------


def test_i4_retention_past_the_stored_offset_stops_the_partition_until_it_is_decided(worker_group: WorkerGroup) -> None:
    """I4: nothing jumps by itself: the partition stops, and the other does not."""
    name, stored = worker_group.log(10, 2)
    run = worker_group.worker(name)
    worker_group.finish(run, name, stored)
    late = worker_group.produce(name, 40, partition=0)
    trim(worker_group.admin, name, 30)
    run = worker_group.worker(name)
    stop = stop_of(run, OffsetLost)
    assert (stop.partition, stop.offset) == (Partition(name, 0), 10)
    assert "retention has passed it: the first offset left is 30" in str(stop)
    assert f"give them up: seekpoint lost accept {worker_group.group} {name}:0 --apply" in str(stop)
    assert list(run.health().stopped) == [Partition(name, 0)]
    other = worker_group.produce(name, 5, partition=1)
    run.reached(name, 15, 1)  # the other partition is read
    assert worker_group.positions()[Partition(name, 0)] == 10

    worker_group.ledger.reset_offset(name, 0, 30, log=None, reason="not needed", lost="retention", actor="ann")
    run.reached(name, 50, 0)
    assert run.health().stopped == {}
    run.stop()
    assert lost_ranges(worker_group) == [(10, 30, "retention")]
    worker_group.record_table.assert_holds(name, [*stored, *late[20:], *other])


def test_i4_retention_that_overtakes_a_running_reader_stops_it(worker_group: WorkerGroup) -> None:
    """I4: also in mid-reading, and the error names the first offset left."""
    name, stored = worker_group.log([LARGE] * 100)
    gate = Gate(events.Applied)
    run = worker_group.worker(name, observe=[gate], kafka=SMALL_FETCHES, limits=Limits(batch_records=1))
    gate.wait()
    trim(worker_group.admin, name, 95)
    gate.open()
    stop = stop_of(run, OffsetLost)
    assert 0 < stop.offset < 95
    assert "the first offset left is 95" in str(stop)
    worker_group.ledger.reset_offset(name, 0, 95, log=None, reason="go on", lost="retention")
    run.finish(name, 100)
    assert lost_ranges(worker_group) == [(stop.offset, 95, "retention")]
    worker_group.record_table.assert_holds(name, stored[: stop.offset] + stored[95:])


@pytest.mark.long
def test_i4_a_decided_stop_does_not_come_back(worker_group: WorkerGroup, protocol: Protocol) -> None:
    """I4: what the client reported about the position before the decision says nothing about the one after it."""
    admin = Admin(worker_group.engine, {"bootstrap.servers": worker_group.broker}, schema=worker_group.schema)
    for _ in range(ROUNDS):
        name, stored = worker_group.log(10, 4)
        run = worker_group.worker(name, kafka=protocol)
        worker_group.finish(run, name, stored)
        for n in range(4):
            worker_group.produce(name, 50, partition=n)
            trim(worker_group.admin, name, 30, partition=n)
        run = worker_group.worker(name, kafka=protocol)
        run.seen.wait_for(events.PartitionStopped, count=4)
        for n in range(4):  # as `seekpoint lost accept` does
            plan = admin.plan_accept_lost(worker_group.group, Partition(name, n))
            assert [(accepted.from_offset, accepted.to_offset) for accepted in plan.acceptances] == [(10, 30)]
            admin.apply(plan, reason="not needed")
        for n in range(4):
            run.reached(name, 60, n)
        run.stop()
        stops = [event.error for event in run.seen.all(events.PartitionStopped)]
        assert sorted(stop.partition.number for stop in stops) == [0, 1, 2, 3]
        assert all("retention has passed it" in str(stop) for stop in stops)


@pytest.mark.pins("queued_messages")  # of 1, the client may not have asked by then, whatever the order is
def test_i4_a_position_out_of_range_is_sought_before_the_brokers_refuse_it(
    worker_group: WorkerGroup, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: a client that was refused has ended the partition, and each seek fails for as long as it is assigned."""
    name, stored = worker_group.log(10, 2)
    worker_group.finish(worker_group.worker(name, kafka=protocol), name, stored)
    for n in range(2):
        worker_group.produce(name, 50, partition=n)
        trim(worker_group.admin, name, 30, partition=n)
    seek = Client._seek

    def seek_late(client: Client, partition: TopicPartition) -> None:
        _wait_for_refusal(worker_group.broker, partition)
        seek(client, partition)

    monkeypatch.setattr(Client, "_seek", seek_late)
    run = worker_group.worker(name, kafka=protocol)
    for n in range(2):
        event = run.seen.wait_for((events.PartitionStopped, events.KafkaTrouble), count=n + 1)
        assert isinstance(event, events.PartitionStopped), event
        assert "retention has passed it" in str(event.error)
    run.stop()


def _wait_for_refusal(broker: str, partition: TopicPartition) -> None:
    """Until the brokers have refused this position to another client, three times."""
    config = {"bootstrap.servers": broker, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**config, "auto.offset.reset": "error"})
    try:
        for _ in range(3):
            consumer.assign([TopicPartition(partition.topic, partition.partition, partition.offset)])
            message = consumer.poll(20)
            assert message is not None
            error = message.error()
            assert error is not None
            assert error.code() == OUT_OF_RANGE
            consumer.unassign()
    finally:
        consumer.close()


@pytest.mark.long
def test_i4_the_stop_of_a_recreated_topic_does_not_come_back(worker_group: WorkerGroup, protocol: Protocol) -> None:
    """I4: the position of the earlier topic is past the end of the new one, and that of the decision is not."""
    admin = Admin(worker_group.engine, {"bootstrap.servers": worker_group.broker}, schema=worker_group.schema)
    for _ in range(ROUNDS):
        name, stored = worker_group.log(10, 4)
        run = worker_group.worker(name, kafka=protocol)
        worker_group.wait_until_caught_up(name, stored)
        worker_group.delete_topic(name)
        worker_group.topic(4, name=name)
        for n in range(4):
            worker_group.produce(name, 5, partition=n)
        for n in range(4):
            run.seen.wait_for(events.PartitionStopped, _of(TopicRecreated, n))
        admin.apply(admin.plan_accept_topic(worker_group.group, name), reason="restart")
        for n in range(4):
            run.reached(name, 5, n)
        run.stop()
        stops = [event.error for event in run.seen.all(events.PartitionStopped)]  # again where it was assigned again
        assert all(isinstance(stop, TopicRecreated) and stop.offset == 10 for stop in stops)


def _of(kind: type[PartitionStopped], number: int) -> Callable[[events.PartitionStopped], bool]:
    return lambda event: isinstance(event.error, kind) and event.partition.number == number


def test_a_position_past_the_end_of_the_log_stops_the_partition(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(10)
    run = worker_group.worker(name)
    run.reached(name, 10)
    worker_group.ledger.reset_offset(name, 0, 1000, log=None, reason="a slip of the hand", actor="ada")
    stop = stop_of(run, OffsetLost)
    assert re.search(
        r"it is past the end of the log \(10\): ada reset it to 1000 on .*\(a slip of the hand\)", str(stop)
    )
    assert "brokers" not in str(stop).splitlines()[0]
    place = rf"{worker_group.group} {name}:0"
    assert re.search(f"seekpoint lost accept {place} --apply --reason WHY reads only new records", stop.choices[0])
    assert any(f"--topic {name}:0 --to-offset OFFSET" in choice for choice in stop.choices)
    worker_group.ledger.reset_offset(name, 0, 10, log=(0, 10), reason="corrected")
    assert lost_ranges(worker_group) == []  # nothing was read up to there
    stored += worker_group.produce(name, 5)
    run.finish(name, 15)
    worker_group.record_table.assert_holds(name, stored)


@contextmanager
def stopped(kafka: KafkaServer) -> Iterator[None]:
    """While the broker is down (killed, which is quicker than asking it to go)."""
    kafka.kill()
    yield
    kafka.start()


@pytest.mark.long
def test_i4_a_truncated_log_is_noticed_by_the_stored_leader_epoch(
    worker_group_on: WorkerGroupOn, own_kafka: KafkaServer, tmp_path: Path, protocol: Protocol
) -> None:
    """I4: other records have the same offsets; the epoch shows it."""
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic()
    log = log_folder(own_kafka, name)
    worker_group.produce(name, 50)
    with stopped(own_kafka):
        shutil.copytree(log, tmp_path / "older")
    worker_group.produce(name, 50)  # under a higher leader epoch
    run = worker_group.worker(name, kafka=protocol)
    run.finish(name, 100)
    with stopped(own_kafka):
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "older", log)
    worker_group.produce(name, 100)  # the log is longer than before, and other records are at 50 to 99
    run = worker_group.worker(name, kafka=protocol)
    stop = stop_of(run, OffsetLost)
    assert "the log was truncated before it and written again" in str(stop)
    assert len(worker_group.record_table.written(name)) == 100
    worker_group.ledger.reset_offset(name, 0, 50, log=None, reason="read what stands there now")
    run.finish(name, 150)
    assert worker_group.record_table.written(name) == [(0, n) for n in range(100)] + [(0, n) for n in range(50, 150)]


# -- another topic under the same name ----------------------------------------------------------------------------


def recreate(worker_group: WorkerGroup, name: str, records: int) -> list[tuple[int, int]]:
    """Delete the topic, and create it again with more records than it had."""
    worker_group.delete_topic(name)
    worker_group.topic(name=name)
    return worker_group.produce(name, (f"new {n}" for n in range(records)))


def decide_for(worker_group: WorkerGroup, name: str, stop: TopicRecreated) -> None:
    """Take the choice ``restart`` that the stop spells out."""
    new = worker_group.topic_id(name)
    assert f"{name} --from-beginning --apply" in stop.choices[0]
    worker_group.ledger.reset_offset(name, 0, 0, topic_id=new, log=None, reason="restart", lost="topic recreated")


def test_i4_a_topic_recreated_under_an_idle_worker_is_not_read_on(
    worker_group: WorkerGroup, worker_options: WorkerOptions
) -> None:
    """I4: nothing comes that would be refused: the idle look notices the new id."""
    name, stored = worker_group.log(["old"] * 10)
    run = worker_group.worker(name, **worker_options(name, 1))
    run.reached(name, 10)
    new = recreate(worker_group, name, 50)
    stop = stop_of(run, TopicRecreated)
    assert worker_group.record_table.written(name) == stored
    decide_for(worker_group, name, stop)
    run.finish(name, 50)
    assert worker_group.record_table.written(name) == stored + new
    assert lost_ranges(worker_group) == [(10, None, "topic recreated")]


def test_i4_a_topic_recreated_while_the_worker_is_down_is_not_read_on(
    worker_group: WorkerGroup, protocol: Protocol
) -> None:
    """I4: the claim compares the topic's id with the stored one."""
    name, stored = worker_group.log(["old"] * 10)
    run = worker_group.worker(name, kafka=protocol)
    run.finish(name, 10)
    new = recreate(worker_group, name, 50)
    run = worker_group.worker(name, kafka=protocol)
    stop = stop_of(run, TopicRecreated)
    assert worker_group.record_table.written(name) == stored
    decide_for(worker_group, name, stop)
    run.finish(name, 50)
    assert worker_group.record_table.written(name) == stored + new


def test_i4_a_topic_recreated_while_a_batch_is_applied_rolls_it_back(worker_group: WorkerGroup) -> None:
    """I4: the id is asked for after the last read, before COMMIT."""
    name = worker_group.topic()
    gate = Gate(events.ChunkRead)
    run = worker_group.worker(name, observe=[gate], kafka=SMALL_FETCHES)
    run.placed()
    worker_group.produce(name, [LARGE] * 5)
    gate.wait()  # a chunk of the old topic is in hand, the transaction not yet begun
    new = recreate(worker_group, name, 50)
    gate.open()
    stop = stop_of(run, TopicRecreated)
    assert not run.seen.all(events.Committed)
    assert worker_group.record_table.written(name) == []
    decide_for(worker_group, name, stop)
    run.finish(name, 50)
    assert worker_group.record_table.written(name) == new


def test_a_recreated_topic_resumes_at_the_offset_that_was_chosen(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(["old"] * 10)
    run = worker_group.worker(name)
    run.finish(name, 10)
    new = recreate(worker_group, name, 50)
    run = worker_group.worker(name)
    stop_of(run, TopicRecreated)
    worker_group.ledger.reset_offset(
        name, 0, 10, topic_id=worker_group.topic_id(name), log=None, reason="the first ten are the same"
    )
    run.finish(name, 50)
    assert worker_group.record_table.written(name) == stored + new[10:]


def test_a_deleted_topic_stops_its_partitions_alone(worker_group: WorkerGroup, protocol: Protocol) -> None:
    doomed, other = worker_group.topic(), worker_group.topic()
    stored = worker_group.produce(doomed, 5)
    run = worker_group.worker(worker_group.record_table.pipeline(worker_group.group, [doomed, other]), kafka=protocol)
    run.reached(doomed, 5)
    worker_group.admin.delete_topics([doomed])[doomed].result(20)
    run.seen.wait_for((events.PartitionStopped, events.Revoked))
    kept = worker_group.produce(other, 5)
    run.finish(other, 5)
    worker_group.record_table.assert_holds(doomed, stored)
    worker_group.record_table.assert_holds(other, kept)


@pytest.mark.long
def test_a_topic_that_comes_back_after_its_deletion_is_another_topic(
    worker_group: WorkerGroup, short_topic_wait: None
) -> None:
    name, stored = worker_group.log(["old"] * 10)
    run = worker_group.worker(name, partitions=[(name, 0)])  # no group assigns it again
    run.reached(name, 10)
    worker_group.admin.delete_topics([name])[name].result(20)
    stop = stop_of(run, TopicUnknown)
    assert "does not exist any more" in str(stop)
    mark = run.seen.mark()
    worker_group.topic(name=name)
    new = worker_group.produce(name, 20)
    decide_for(worker_group, name, stop_of(run, TopicRecreated, since=mark))
    run.finish(name, 20)
    assert worker_group.record_table.written(name) == stored + new
    assert [row.owner for row in worker_group.ledger.read()] == [None]


# -- topics that a broker does not know at this moment ------------------------------------------------------------


@pytest.fixture
def short_topic_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown topic stops its partitions after half a second."""
    monkeypatch.setattr(claims, "UNKNOWN_FOR", 0.5)
    monkeypatch.setattr(claims, "UNKNOWN_ANSWERS", 2)


@pytest.fixture
def unknown_topics(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics that the brokers do not know, as one answers whose metadata lags; empty at first."""
    topics: set[str] = set()
    result = Answer.result
    monkeypatch.setattr(
        Answer, "result", lambda self: result(self) | {topic: None for topic in self.topics if topic in topics}
    )
    return topics


def is_unknown(event: events.KafkaTrouble) -> bool:
    return "is unknown to the broker that was asked" in event.error


def test_i4_while_a_topic_is_unknown_only_the_others_commit(
    worker_group: WorkerGroup, unknown_topics: set[str], worker_options: WorkerOptions
) -> None:
    """I4: the answer says nothing about the records in hand: they are neither committed nor given up."""
    name, other = worker_group.topic(), worker_group.topic()
    stored, kept = worker_group.produce(name, 5), worker_group.produce(other, 5)
    gate = Gate(events.Applied)
    options = worker_options(name, 1)
    if "partitions" in options:
        options["partitions"].append((other, 0))
    run = worker_group.worker(
        worker_group.record_table.pipeline(worker_group.group, [name, other]), observe=[gate], **options
    )
    gate.wait()
    unknown_topics.add(name)
    gate.open()
    run.reached(other, 5)
    run.seen.wait_for(events.KafkaTrouble, is_unknown)
    kept += worker_group.produce(other, 5)
    run.reached(other, 10)
    assert worker_group.positions()[Partition(name, 0)] == 0
    assert worker_group.record_table.written(name) == []
    unknown_topics.clear()
    run.reached(name, 5)
    run.seen.wait_for(events.Recovered)
    run.stop()
    assert not run.seen.all(events.PartitionStopped)
    worker_group.record_table.assert_holds(name, stored)
    worker_group.record_table.assert_holds(other, kept)


def test_i4_nothing_of_a_topic_that_was_deleted_after_the_last_read_commits(worker_group: WorkerGroup) -> None:
    """I4: between deletion and creation the topic is unknown, and that is not the id that was claimed."""
    name = worker_group.topic()
    gate = Gate(events.ChunkRead)
    run = worker_group.worker(name, observe=[gate], partitions=[(name, 0)])
    run.placed()
    worker_group.produce(name, 5)
    gate.wait()
    worker_group.delete_topic(name)
    gate.open()
    run.seen.wait_for(events.KafkaTrouble, is_unknown)
    until(
        lambda: not run.worker._board._has_open_batch,
        "the end of a batch that was dropped whole, for the worker's health",
    )
    assert worker_group.record_table.written(name) == []
    worker_group.topic(name=name)
    new = worker_group.produce(name, 20)
    stop = stop_of(run, TopicRecreated)
    decide_for(worker_group, name, stop)
    run.finish(name, 20)
    assert worker_group.record_table.written(name) == new


def test_a_topic_that_is_known_again_by_its_id_resumes(
    worker_group: WorkerGroup, unknown_topics: set[str], short_topic_wait: None
) -> None:
    name, stored = worker_group.log(5)
    run = worker_group.worker(name, limits=Limits(idle_check=0.1))
    run.reached(name, 5)
    unknown_topics.add(name)
    stop_of(run, TopicUnknown)
    assert list(run.health().stopped) == [Partition(name, 0)]
    unknown_topics.clear()
    stored += worker_group.produce(name, 5)
    run.reached(name, 10)
    assert run.health().stopped == {}
    run.stop()
    worker_group.record_table.assert_holds(name, stored)
    assert [row.owner for row in worker_group.ledger.read()] == [None]


# -- brokers that go away -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_killed_broker_that_comes_back_costs_only_time(
    worker_group_on: WorkerGroupOn, own_kafka: KafkaServer, worker_options: WorkerOptions
) -> None:
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic(2)
    with worker_group.stream(name, 2, rate=50) as stream:
        run = worker_group.worker(name, **worker_options(name, 2))
        run.seen.wait_for(events.Committed, count=5)
        own_kafka.kill()
        run.seen.wait_for(events.KafkaTrouble)
        worker_group.wait(lambda: run.health().trouble is not None)
        assert run.health().live
        assert not run.health().ready
        own_kafka.start()
        mark = run.seen.mark()
        run.seen.wait_for(events.Committed, count=5, since=mark)
    worker_group.wait_until_caught_up(name, stream.stored)
    run.ready()
    run.stop()
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_quiet_worker_is_healthy_again_when_its_broker_is_back(
    worker_group_on: WorkerGroupOn, own_kafka: KafkaServer
) -> None:
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic()
    run = worker_group.worker(name, limits=Limits(kafka_timeout=1.0))
    run.placed()
    own_kafka.kill()
    run.seen.wait_for(events.KafkaTrouble, lambda e: e.wait > 0)  # it has noticed, and backs off
    assert not run.health().ready
    assert not run.seen.all(events.Recovered), "nothing is over while no broker has answered"
    own_kafka.start()
    run.seen.wait_for(events.Recovered)
    run.ready()
    stored = worker_group.produce(name, 5)
    run.finish(name, 5)
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.long
def test_a_frozen_broker_is_waited_for(
    worker_group_on: WorkerGroupOn, own_kafka: KafkaServer, protocol: Protocol
) -> None:
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic()
    with worker_group.stream(name, 1, rate=200) as stream:
        run = worker_group.worker(name, kafka=protocol, limits=Limits(kafka_timeout=1.0))
        run.seen.wait_for(events.Committed, count=5)
        own_kafka.freeze()
        run.seen.wait_for(events.KafkaTrouble, lambda e: e.wait > 0)
        own_kafka.thaw()
        mark = run.seen.mark()
        run.seen.wait_for(events.Committed, count=5, since=mark)
    worker_group.finish(run, name, stream.stored)
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_worker_drains_while_the_broker_is_away(worker_group_on: WorkerGroupOn, own_kafka: KafkaServer) -> None:
    worker_group = worker_group_on(kafka=own_kafka)
    name, stored = worker_group.log(5)
    run = worker_group.worker(name, limits=Limits(kafka_timeout=1.0))
    run.reached(name, 5)
    own_kafka.kill()
    began = monotonic()
    run.stop()
    assert monotonic() - began < 30
    assert [row.owner for row in worker_group.ledger.read()] == [None]
    worker_group.record_table.assert_holds(name, stored)


# -- ends and epochs ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_i3_an_end_under_a_new_leader_epoch_is_no_truncation(
    worker_group_on: WorkerGroupOn, own_kafka: KafkaServer
) -> None:
    """I3: only the epoch that the broker has at the end may be kept with it."""
    worker_group = worker_group_on(kafka=own_kafka)
    name = worker_group.topic()
    in_transactions(worker_group.broker, name, (5, True))  # 0 to 4, marker at 5
    run = worker_group.worker(name)
    worker_group.wait_for_position(name, 6)
    own_kafka.kill()
    own_kafka.start()  # every restart raises the epoch
    in_transactions(worker_group.broker, name, (2, False))  # nothing to apply: only the end moves, under the new epoch
    worker_group.wait_for_position(name, 9)
    run.stop()
    run = worker_group.worker(name)  # its claim brings the stored epoch, and seek asks the broker about it
    in_transactions(worker_group.broker, name, (3, True))
    worker_group.wait_for_position(name, 13)
    run.stop()
    assert not run.seen.all(events.PartitionStopped)
    assert not run.seen.all(events.Resynced)
    worker_group.record_table.assert_holds(name, [(0, n) for n in (*range(5), *range(9, 12))])
