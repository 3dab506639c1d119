"""Ranges of a log, on the real broker: holes and ends of every kind, and logs that change while they are read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka.admin import AdminClient

from kafka.test_odd_records import produce_by_hand
from seekpoint import Partition
from seekpoint.errors import ConfigError, KafkaUnavailable, RangeLost, RangeStuck, TopicRecreated
from seekpoint.kafka.ranges import (
    KEPT,
    Piece,
    Range,
    RangeFollower,
    log_starts,
    read_range,
    stable_ends,
    topic_ids,
)
from support.log_changes import COMPACTED, LARGE, delete, in_transactions, trim

# A client that has next to nothing in store: the log changes under it while it reads.
SMALL_FETCHES = {"queued.min.messages": 1, "fetch.message.max.bytes": 60_000}


def offsets(pieces: Iterable[Piece]) -> list[int]:
    return [record.offset for piece in pieces for record in piece]


def drain(pieces: Iterable[Piece], seen: list[int]) -> None:
    """The offsets go to ``seen`` as they come: an error may be next."""
    for piece in pieces:
        seen += offsets([piece])


@dataclass(frozen=True)
class Log:
    """A broker, and how its topics are filled, read and changed."""

    broker: str
    topic: Callable[..., str]
    produce: Callable[..., list[tuple[int, int]]]
    admin: AdminClient

    @property
    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.broker, "topic.metadata.refresh.interval.ms": 500}

    def filled(self, records: int, partitions: int = 1) -> str:
        """A new topic with so many records in each partition."""
        name = self.topic(partitions)
        for n in range(partitions):
            self.produce(name, map(str, range(records)), partition=n)
        return name

    def id_of(self, name: str) -> UUID:
        topic_id = topic_ids(self.kafka, [name])[name]
        assert topic_id is not None
        return topic_id

    def range(self, name: str, start: int, end: int, number: int = 0) -> Range:
        return Range(Partition(name, number), self.id_of(name), start, end)

    def read(self, name: str, start: int, end: int, **options: Any) -> list[int]:
        """The offsets of a range."""
        return offsets(read_range(self.kafka, self.range(name, start, end), **options))

    def follow(self, name: str, positions: Mapping[int, int]) -> RangeFollower:
        by_partition = {Partition(name, n): position for n, position in positions.items()}
        return RangeFollower(self.kafka, {name: self.id_of(name)}, by_partition)


@pytest.fixture
def log(seekpoint_broker: str, topic: Callable[..., str], produce: Callable[..., list[tuple[int, int]]]) -> Log:
    return Log(seekpoint_broker, topic, produce, AdminClient({"bootstrap.servers": seekpoint_broker, "log_level": 0}))


# -- what a range holds ---------------------------------------------------------------------------------------------


def test_a_range_is_half_open_and_in_order(log: Log) -> None:
    name = log.topic(2)
    log.produce(name, map(str, range(1200)), partition=1)
    pieces = list(read_range(log.kafka, log.range(name, 100, 1100, 1)))
    assert offsets(pieces) == list(range(100, 1100))
    assert [record.value for piece in pieces for record in piece] == [str(n).encode() for n in range(100, 1100)]
    assert max(map(len, pieces)) <= 500
    assert {(record.topic, record.partition) for piece in pieces for record in piece} == {(name, 1)}


def test_a_range_ends_at_its_end_even_if_the_log_is_longer(log: Log) -> None:
    name = log.filled(20)
    assert log.read(name, 0, 7) == list(range(7))
    assert log.read(name, 13, 20) == list(range(13, 20))
    assert log.read(name, 19, 20, chunk=1) == [19]


def test_an_empty_range_asks_no_broker() -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    began = monotonic()
    assert list(read_range(nowhere, Range(Partition("t", 0), uuid4(), 5, 5))) == []
    assert monotonic() - began < 5


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4)])
def test_a_range_that_is_none_is_refused(start: int, end: int) -> None:
    with pytest.raises(ConfigError, match="swap or correct its ends"):
        Range(Partition("t", 0), uuid4(), start, end)


def test_two_ranges_of_a_partition_can_be_read_at_once(log: Log) -> None:
    name = log.filled(3000)
    halves = [log.range(name, 0, 1500), log.range(name, 1500, 3000)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda half: offsets(read_range(log.kafka, half)), halves)
    assert first + second == list(range(3000))


def test_a_record_with_a_header_that_has_no_name_is_reported_unreadable(log: Log) -> None:
    name = log.topic()
    log.produce(name, ["a"])
    produce_by_hand(log.broker, name, b"{}", b"\xff\xfe", 1_785_587_400_000)
    log.produce(name, ["b"])
    pieces = list(read_range(log.kafka, log.range(name, 0, 3)))
    assert offsets(pieces) == [0, 1, 2]
    aside = [pair for piece in pieces for pair in piece.unreadable]
    assert [record.offset for record, _ in aside] == [1]
    assert "headers cannot be read" in str(aside[0][1])


# -- holes ----------------------------------------------------------------------------------------------------------


def test_aborted_records_are_seen_only_by_who_asks_for_them(log: Log) -> None:
    name = log.topic()
    in_transactions(log.broker, name, (3, True), (3, False), (3, True))  # markers at 3, 7 and 11
    assert stable_ends(log.kafka, [Partition(name, 0)]) == {Partition(name, 0): 12}
    whole = log.range(name, 0, 12)
    assert offsets(read_range(log.kafka, whole)) == [0, 1, 2, 8, 9, 10]
    everything = {**log.kafka, "isolation.level": "read_uncommitted"}
    assert offsets(read_range(everything, whole)) == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_a_range_without_a_record_ends_at_once(log: Log) -> None:
    """Wholly aborted, a marker alone, the markers at the end of the log: no count could tell when it is over."""
    name = log.topic()
    in_transactions(log.broker, name, (3, True), (3, False))
    began = monotonic()
    for start, end in [(4, 8), (4, 7), (5, 6), (3, 4), (7, 8)]:
        assert log.read(name, start, end) == [], (start, end)
    log.produce(name, ["more"])  # the same with a record after it
    for start, end in [(4, 8), (4, 7), (5, 6), (3, 4), (7, 8)]:
        assert log.read(name, start, end) == [], (start, end)
    assert monotonic() - began < 30


def test_compaction_leaves_holes_across_both_ends(log: Log) -> None:
    name = log.topic(config=COMPACTED)
    log.produce(name, [("same", str(n)) for n in range(1000)])
    whole, deadline, pause, end = log.range(name, 0, 1000), monotonic() + 90, threading.Event(), 1000
    while len(offsets(read_range(log.kafka, whole))) > 1:
        assert monotonic() < deadline, "the broker did not compact"
        end = log.produce(name, [("same", "again")])[0][1] + 1  # a segment rolls only when something is appended
        pause.wait(0.3)
    for start, stop in [(10, 500), (0, 100), (0, 1), (500, 900)]:
        assert log.read(name, start, stop) == []
    assert log.read(name, 0, end)[-1] == end - 1


# -- ends that cannot be reached ------------------------------------------------------------------------------------


def test_a_range_past_an_open_transaction_is_stuck(log: Log) -> None:
    name = log.filled(5)
    producer = in_transactions(log.broker, name, (3, None))
    partition = Partition(name, 0)
    assert stable_ends(log.kafka, [partition]) == {partition: 5}
    assert stable_ends({**log.kafka, "isolation.level": "read_uncommitted"}, [partition]) == {partition: 8}
    assert log.read(name, 0, 5) == list(range(5))
    seen: list[int] = []
    began = monotonic()
    with pytest.raises(RangeStuck, match="because of an open transaction, the log can be read only up to 5") as stuck:
        drain(read_range(log.kafka, log.range(name, 0, 8), idle=5), seen)
    assert monotonic() - began < 25
    assert seen == list(range(5))
    assert (stuck.value.partition, stuck.value.offset, stuck.value.end) == (partition, 5, 8)
    producer.abort_transaction(30)
    assert log.read(name, 0, 9) == list(range(5))


@pytest.mark.long
def test_an_end_past_the_log_fails_soon_whatever_the_idle_limit(log: Log) -> None:
    name = log.filled(5)
    began = monotonic()
    with pytest.raises(RangeStuck, match="the log ends at 5: it was truncated"):
        list(read_range(log.kafka, log.range(name, 0, 8), idle=300))
    assert monotonic() - began < 60


def test_an_end_that_is_reached_while_it_is_waited_for_is_no_error(log: Log) -> None:
    name = log.filled(5)
    reading = read_range(log.kafka, log.range(name, 0, 8))
    seen = offsets([next(reading)])
    log.produce(name, map(str, range(3)))
    assert seen + offsets(reading) == list(range(8))


@pytest.mark.long
def test_a_slow_reader_is_not_taken_for_a_quiet_broker(log: Log) -> None:
    name = log.filled(10)
    seen = []
    for piece in read_range(log.kafka, log.range(name, 0, 10), chunk=5, idle=2):
        seen += offsets([piece])
        threading.Event().wait(2.2)
    assert seen == list(range(10))


def test_brokers_that_are_away_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seekpoint.kafka.range_checks.ASK", 1.0)
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(KafkaUnavailable):
        list(read_range(nowhere, Range(Partition("t", 0), uuid4(), 0, 5)))


# -- logs that change -----------------------------------------------------------------------------------------------


def test_retention_before_the_start_is_a_loss(log: Log) -> None:
    name = log.filled(50)
    trim(log.admin, name, 30)
    assert log_starts(log.kafka, [Partition(name, 0)]) == {Partition(name, 0): 30}
    with pytest.raises(RangeLost, match="the first offset left is 30") as lost:
        list(read_range(log.kafka, log.range(name, 10, 50)))
    assert (lost.value.partition, lost.value.offset) == (Partition(name, 0), 10)
    with pytest.raises(RangeLost, match=r"past the end of the log \(50\)"):
        list(read_range(log.kafka, log.range(name, 60, 70)))


def test_retention_that_passes_in_mid_read_is_a_loss_and_no_gap(log: Log) -> None:
    name = log.topic()
    log.produce(name, [LARGE] * 200)
    reading = read_range({**log.kafka, **SMALL_FETCHES}, log.range(name, 0, 200), chunk=1)
    seen = offsets([next(reading)])
    trim(log.admin, name, 180)
    with pytest.raises(RangeLost, match="the first offset left is 180") as lost:
        drain(reading, seen)
    assert seen == list(range(len(seen)))
    assert lost.value.offset == len(seen) < 180


def recreate(log: Log, records: int) -> tuple[Iterator[Piece], list[int]]:
    """A range of 200 records, of which some are read when the topic is replaced by one of so many records."""
    name = log.topic()
    log.produce(name, [LARGE] * 200)
    reading = read_range({**log.kafka, **SMALL_FETCHES}, log.range(name, 0, 200), chunk=1)
    seen = offsets([next(reading)])
    delete(log.kafka, log.admin, name)
    log.topic(name=name)
    log.produce(name, [LARGE] * records)
    return reading, seen


def test_a_topic_that_is_recreated_shorter_is_known_by_its_id(log: Log) -> None:
    reading, seen = recreate(log, 1)
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        drain(reading, seen)
    assert len(seen) < 200


def test_a_topic_that_is_recreated_longer_is_read_and_refused_at_the_end(log: Log) -> None:
    """The client itself sees nothing: the iteration is not allowed to end well."""
    reading, seen = recreate(log, 250)
    with pytest.raises(TopicRecreated, match="Discard everything that this run has read from it"):
        drain(reading, seen)
    assert seen == list(range(200)), "this is what the id is for: nothing else looks wrong"


def test_another_topic_of_that_name_is_refused_before_a_record_is_handed_out(log: Log) -> None:
    name = log.filled(5)
    reading = read_range(log.kafka, Range(Partition(name, 0), uuid4(), 0, 5))
    with pytest.raises(TopicRecreated):
        next(reading)


@pytest.mark.long
def test_a_topic_that_is_gone_is_a_loss(log: Log) -> None:
    name = log.filled(5)
    beyond = log.range(name, 0, 8)
    reading = read_range(log.kafka, beyond, chunk=2, idle=5)
    next(reading)
    delete(log.kafka, log.admin, name)
    with pytest.raises(RangeLost, match="does not exist any more"):
        list(reading)
    with pytest.raises(RangeLost, match="does not exist any more"):
        list(read_range(log.kafka, beyond))


# -- the same configuration as a worker's ---------------------------------------------------------------------------


def test_what_a_worker_refuses_is_refused_and_a_group_is_left_out(log: Log) -> None:
    name = log.filled(5)
    whole = log.range(name, 0, 5)
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        list(read_range({**log.kafka, "auto.offset.reset": "earliest"}, whole))
    in_a_group = {**log.kafka, "group.id": "orders", "group.protocol": "consumer", "group.instance.id": "orders-1"}
    assert offsets(read_range(in_a_group, whole)) == list(range(5))
    classic = {**log.kafka, "partition.assignment.strategy": "cooperative-sticky"}
    assert offsets(read_range(classic, whole)) == list(range(5))


# -- following ------------------------------------------------------------------------------------------------------


def by_partition(pieces: Iterable[Piece]) -> dict[int, list[int]]:
    offsets_by_partition: dict[int, list[int]] = {}
    for piece in pieces:
        for record in piece:
            offsets_by_partition.setdefault(record.partition, []).append(record.offset)
    return offsets_by_partition


def test_a_follower_reads_to_each_end_and_resumes_there(log: Log) -> None:
    name = log.filled(100, 3)
    first, second, third = (Partition(name, n) for n in range(3))
    with log.follow(name, {0: 10, 1: 0, 2: 100}) as follower:
        assert by_partition(follower.read_to({first: 50, second: 0, third: 100})) == {0: list(range(10, 50))}
        assert follower.positions == {first: 50, second: 0, third: 100}
        read = by_partition(follower.read_to({first: 60, second: 100}))
        assert read == {0: list(range(50, 60)), 1: list(range(100))}
        log.produce(name, ["late"], partition=2)
        assert by_partition(follower.read_to({third: 101, first: 60})) == {2: [100]}
        assert by_partition(follower.read_to({first: 100, second: 50})) == {0: list(range(60, 100))}
        assert follower.positions == {first: 100, second: 100, third: 101}


def test_a_small_difference_is_read_in_milliseconds(log: Log) -> None:
    name = log.topic(2)
    partitions = [Partition(name, n) for n in range(2)]
    with log.follow(name, {0: 0, 1: 0}) as follower:
        took = []
        for n in range(1, 6):
            log.produce(name, ["a"], partition=0)
            log.produce(name, ["b"], partition=1)
            began = monotonic()
            assert by_partition(follower.read_to(dict.fromkeys(partitions, n))) == {0: [n - 1], 1: [n - 1]}
            took.append(monotonic() - began)
        assert min(took) < 0.25, took  # the broker would wait for more for twice as long


def test_a_follower_goes_back_to_what_is_stored(log: Log) -> None:
    """A cut-over that is rolled back takes staging back with it: what was read must come again, all of it."""
    name = log.filled(3000, 2)
    first, second = (Partition(name, n) for n in range(2))
    with log.follow(name, {0: 0, 1: 0}) as follower:
        for back in (700, 0, 1234):
            assert by_partition(follower.read_to({first: 2000, second: 2500})) != {}
            follower.reassign({first: back, second: back // 2})
            assert follower.positions == {first: back, second: back // 2}
            read = by_partition(follower.read_to({first: 3000, second: 3000}))
            assert read == {0: list(range(back, 3000)), 1: list(range(back // 2, 3000))}
            follower.reassign({first: 10, second: 10})
        dropped = follower.read_to({first: 3000, second: 3000}, chunk=10)
        next(dropped)
        follower.reassign({first: 2990, second: 3000})
        assert by_partition(follower.read_to({first: 3000, second: 3000})) == {0: list(range(2990, 3000))}


def test_records_past_an_end_are_kept_within_bounds_and_come_later(log: Log) -> None:
    many = KEPT * 3
    name = log.filled(many, 2)
    first, second = (Partition(name, n) for n in range(2))
    with log.follow(name, {0: 0, 1: 0}) as follower:
        read = by_partition(follower.read_to({first: 10, second: many}))
        assert read == {0: list(range(10)), 1: list(range(many))}
        assert len(follower._kept[first]) <= KEPT + 500
        assert by_partition(follower.read_to({first: many, second: many})) == {0: list(range(10, many))}
        assert not follower._kept[first]


def test_a_follower_passes_aborted_records_and_markers(log: Log) -> None:
    name = log.topic()
    partition = Partition(name, 0)
    with log.follow(name, {0: 0}) as follower:
        in_transactions(log.broker, name, (3, True))
        assert by_partition(follower.read_to({partition: 4})) == {0: [0, 1, 2]}
        in_transactions(log.broker, name, (3, False))
        assert by_partition(follower.read_to({partition: 7})) == {}
        assert by_partition(follower.read_to({partition: 8})) == {}
        producer = in_transactions(log.broker, name, (2, None))
        with pytest.raises(RangeStuck, match="because of an open transaction, the log can be read only up to 8"):
            list(follower.read_to({partition: 10}, idle=0.5))
        producer.abort_transaction(30)


def test_a_follower_hears_of_losses_and_of_another_topic(log: Log) -> None:
    name = log.filled(20)
    partition = Partition(name, 0)
    with log.follow(name, {0: 20}) as follower:
        follower.check()
        trim(log.admin, name, 15)
        follower.reassign({partition: 5})
        with pytest.raises(RangeLost, match="the first offset left is 15"):
            list(follower.read_to({partition: 20}))
        follower.reassign({partition: 15})
        assert by_partition(follower.read_to({partition: 20})) == {0: list(range(15, 20))}
        delete(log.kafka, log.admin, name)
        log.topic(name=name)
        with pytest.raises(TopicRecreated):
            follower.check()
        log.produce(name, map(str, range(40)))
        follower.reassign({partition: 20})
        with pytest.raises(TopicRecreated):
            list(follower.read_to({partition: 30}))


def test_a_follower_refuses_what_it_does_not_follow(log: Log) -> None:
    name = log.topic()
    with log.follow(name, {0: 0}) as follower:
        with pytest.raises(ConfigError, match="does not read orders/3: add it"):
            list(follower.read_to({Partition("orders", 3): 5}))
        with pytest.raises(ConfigError, match="the ids of the topics orders are missing"):
            follower.reassign({Partition("orders", 3): 5})


def test_what_was_asked_leaves_no_client_to_the_garbage_collector(log: Log) -> None:
    """The collector may come by on a client's own thread, and a client that is ended from there ends the process."""
    name = log.filled(5)
    whole = log.range(name, 0, 5)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(item, AdminClient) for item in gc.get_objects())
        assert offsets(read_range(log.kafka, whole)) == list(range(5))
        assert stable_ends(log.kafka, [whole.partition]) == {whole.partition: 5}
        with log.follow(name, {0: 0}) as follower:
            assert by_partition(follower.read_to({whole.partition: 5})) == {0: list(range(5))}
        del follower
        assert sum(isinstance(item, AdminClient) for item in gc.get_objects()) == before
    finally:
        gc.enable()
