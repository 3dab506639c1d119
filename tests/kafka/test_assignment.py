"""Where reading begins: from the ledger at every assignment, under every protocol and without a group (I6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from seekpoint import Assignment, StartAt, consumer_config, events
from seekpoint.errors import ConfigError, Fenced
from seekpoint.ledger import Ledger
from support.worker_group import WorkerGroup, WorkerOptions

Protocol = Mapping[str, Any]


def commit_to_kafka(worker_group: WorkerGroup, offsets: dict[tuple[str, int], int]) -> None:
    """What anybody may do to a group without members: commit whatever they like."""
    consumer = Consumer({"bootstrap.servers": worker_group.broker, "group.id": worker_group.group, "log_level": 0})
    try:
        consumer.commit(
            offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
        )
    finally:
        consumer.close()


def test_i6_positions_come_from_the_ledger_whatever_was_committed_to_kafka(
    worker_group: WorkerGroup, worker_options: WorkerOptions
) -> None:
    """I6: commits past the ledger's position and before it, before the first start and between two."""
    name = worker_group.topic(2)
    stored = worker_group.produce(name, 30, partition=0) + worker_group.produce(name, 20, partition=1)
    commit_to_kafka(worker_group, {(name, 0): 17, (name, 1): 3})  # before the first start …
    run = worker_group.worker(name, **worker_options(name, 2))
    run.reached(name, 30, 0)
    run.finish(name, 20, 1)
    commit_to_kafka(worker_group, {(name, 0): 1, (name, 1): 20})  # … and between two
    stored += worker_group.produce(name, 5, partition=0) + worker_group.produce(name, 5, partition=1)
    again = worker_group.worker(name, **worker_options(name, 2))
    again.reached(name, 35, 0)
    again.finish(name, 25, 1)
    assert {e.partition.number: e.offset for e in again.seen.all(events.Activated)} == {0: 30, 1: 20}
    worker_group.record_table.assert_holds(name, stored)


def test_a_restart_resumes_at_the_offset_of_a_reset(worker_group: WorkerGroup, worker_options: WorkerOptions) -> None:
    """I6: nothing is remembered elsewhere."""
    name, stored = worker_group.log(20)
    run = worker_group.worker(name, **worker_options(name, 1))
    run.finish(name, 20)
    worker_group.ledger.reset_offset(name, 0, 15, log=None, reason="again")
    again = worker_group.worker(name, **worker_options(name, 1))
    again.finish(name, 20)
    assert worker_group.record_table.written(name) == [*stored, *stored[15:]]


def test_without_a_group_the_newest_claim_wins_and_the_older_worker_ends(worker_group: WorkerGroup) -> None:
    name, stored = worker_group.log(10)
    older = worker_group.worker(name, partitions=[(name, 0)])
    older.reached(name, 10)
    newer = worker_group.worker(name, partitions=[(name, 0)])
    newer.placed()
    older.ends_with(Fenced, "newest claim wins")
    stored += worker_group.produce(name, 10)
    newer.finish(name, 20)
    worker_group.record_table.assert_holds(name, stored)


# -- where a new topic begins -----------------------------------------------------------------------------

STARTS = ["earliest", "latest", "time", "time past the end", "offsets", "committed"]


def start_at(case: str, name: str, middle: datetime) -> tuple[StartAt, int]:
    """StartAt and the first offset it must resolve to, for a log of 10 + 10 records."""
    return {
        "earliest": (StartAt.earliest(), 0),
        "latest": (StartAt.latest(), 20),
        "time": (StartAt.time(middle), 10),
        "time past the end": (StartAt.time(datetime.now(UTC) + timedelta(hours=1)), 20),
        "offsets": (StartAt.offsets({(name, 0): 7}), 7),
        "committed": (StartAt.committed(), 13),
    }[case]


@pytest.mark.parametrize("case", STARTS)
def test_start_at_is_resolved_once_to_numbers_and_stored(case: str, worker_group: WorkerGroup) -> None:
    """I6: from then on the ledger's numbers count, whatever Kafka has."""
    name, now = worker_group.topic(), datetime.now(UTC)
    producer = Producer({"bootstrap.servers": worker_group.broker, "log_level": 0})
    for n in range(20):  # ten records of an hour ago, ten of half an hour ago
        time = now - timedelta(minutes=60 if n < 10 else 30)
        producer.produce(name, str(n), partition=0, timestamp=round(time.timestamp() * 1000))
    producer.flush(20)
    commit_to_kafka(worker_group, {(name, 0): 13})
    start, first = start_at(case, name, now - timedelta(minutes=45))

    run = worker_group.worker(worker_group.pipeline(name, start=start))
    run.placed()
    assert worker_group.ledger.read()[0].first_offset == first
    worker_group.produce(name, 1)
    run.finish(name, 21)
    worker_group.record_table.assert_holds(name, [(0, offset) for offset in range(first, 21)])

    later = worker_group.worker(worker_group.pipeline(name, start=StartAt.earliest()))  # too late to matter
    later.placed()
    later.stop()
    assert [e.offset for e in later.seen.all(events.Activated)] == [21]


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        (None, "has no commit in Kafka for"),
        ([0], "names no offset for"),
        ([0, 1, 2], "2, but topic .* has 2 partitions"),
    ],
)
def test_a_start_that_does_not_fit_the_topic_ends_the_worker(
    numbers: list[int] | None, says: str, worker_group: WorkerGroup
) -> None:
    name = worker_group.topic(2)
    start = StartAt.committed() if numbers is None else StartAt.offsets({(name, number): 0 for number in numbers})
    run = worker_group.worker(worker_group.pipeline(name, start=start))
    run.ends_with(ConfigError, says)
    assert worker_group.positions() == {}


def test_added_partitions_are_read_from_their_beginning_with_any_start(
    worker_group: WorkerGroup, protocol: Protocol
) -> None:
    name = worker_group.topic(1)
    worker_group.produce(name, ["before"])
    run = worker_group.worker(worker_group.pipeline(name, start=StartAt.latest()), kafka=protocol)
    run.placed()
    worker_group.add_partitions(name, 3)
    stored = worker_group.produce(name, 2, partition=1) + worker_group.produce(name, 1, partition=2)
    stored += worker_group.produce(name, ["after"], partition=0)
    run.reached(name, 2, 1)
    run.reached(name, 1, 2)
    run.finish(name, 2, 0)
    worker_group.record_table.assert_holds(name, stored)


def test_a_fixed_list_that_names_a_partition_the_topic_does_not_have_is_refused(worker_group: WorkerGroup) -> None:
    name = worker_group.topic(2)
    with pytest.raises(ConfigError, match=f"{name}/7, but .* 2 partitions"):
        worker_group.worker(name, partitions=[(name, 0), (name, 7)])
    assert worker_group.positions() == {}


# -- people who own their loop ----------------------------------------------------------------------------


def test_a_pause_that_outlives_a_placement_is_ended_by_the_next(worker_group: WorkerGroup, protocol: Protocol) -> None:
    name, stored = worker_group.log(10)
    config = consumer_config({"bootstrap.servers": worker_group.broker, **protocol}, group=worker_group.group)
    consumer = Consumer(config)
    ledger = Ledger(worker_group.engine, worker_group.group, schema=worker_group.schema)
    with Assignment(consumer, ledger, [name], kafka=config) as held:
        assert len(read(held, consumer, 10)) == 10
        consumer.pause([TopicPartition(name, 0)])
        held.resync()  # nothing was committed: from the beginning, and not silently for ever
        chunk = read(held, consumer, 10)
    assert [(m.partition(), m.offset()) for m in chunk] == stored


def read(held: Assignment, consumer: Consumer, count: int) -> list[Any]:
    """Read until so many records are there."""
    records: list[Any] = []
    for _ in range(300):
        records += held.accept_poll(consumer.consume(500, 0.1))
        if len(records) >= count:
            return records
    raise AssertionError(f"{len(records)} of {count} records in 30 s")
