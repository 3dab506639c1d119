"""The mock cluster's features, each one seen through a real client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    cimpl,
)

from seekpoint.errors import ConfigError
from support import mock_cluster as mock
from support.mock_cluster import ALL_BROKERS, MockCluster

PRODUCE = 0  # the protocol's api key


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(brokers=2) as running:
        yield running


@pytest.fixture
def consumer(cluster: MockCluster) -> Iterator[Consumer]:
    opened = new_consumer(cluster)
    yield opened
    opened.close()


@pytest.fixture
def producer(cluster: MockCluster) -> Producer:
    return new_producer(cluster)


def new_consumer(cluster: MockCluster, group: str = "readers", **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
            **more,
        }
    )


def new_producer(cluster: MockCluster) -> Producer:
    settings = {"linger.ms": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
    return Producer({"bootstrap.servers": cluster.bootstrap, **settings})


def produce(producer: Producer, topic: str, *values: str) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(20) == 0


def take(consumer: Consumer, count: int, seconds: float = 20.0) -> list[Message]:
    """Exactly ``count`` messages, errors included, or a failure after the deadline."""
    taken: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came"
        taken += consumer.consume(count - len(taken), 0.1)
    return taken


def offsets(messages: list[Message]) -> list[int | None]:
    assert not [message.error() for message in messages if message.error()]
    return [message.offset() for message in messages]


def test_what_is_produced_is_consumed_and_stays_in_its_partition(
    cluster: MockCluster, producer: Producer, consumer: Consumer
) -> None:
    cluster.create_topic("orders", partitions=3)
    assert len(consumer.list_topics("orders").topics["orders"].partitions) == 3

    produce(producer, "orders", "a", "b", "c")
    consumer.assign([TopicPartition("orders", partition, OFFSET_BEGINNING) for partition in range(3)])

    assert [(m.partition(), m.offset(), m.value()) for m in take(consumer, 3)] == [
        (0, 0, b"a"),
        (0, 1, b"b"),
        (0, 2, b"c"),
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_gets_its_assignment_without_the_first_join_delay(
    cluster: MockCluster, producer: Producer, protocol: str
) -> None:
    cluster.group_timing(session_ms=3000, heartbeat_ms=200)
    cluster.create_topic("orders")
    produce(producer, "orders", "a")
    member = new_consumer(cluster, **{"group.protocol": protocol})
    started = time.monotonic()

    def start(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([TopicPartition(p.topic, p.partition, 0) for p in partitions])

    def start_incrementally(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(p.topic, p.partition, 0) for p in partitions])

    try:
        member.subscribe(["orders"], on_assign=start if protocol == "classic" else start_incrementally)
        assert offsets(take(member, 1)) == [0]
        assert time.monotonic() - started < 3.0  # the delay that librdkafka's mock has on its own
    finally:
        member.close()


def test_reading_below_the_trimmed_start_is_an_error_not_a_jump(
    cluster: MockCluster, producer: Producer, consumer: Consumer
) -> None:
    cluster.create_topic("orders")
    produce(producer, "orders", *"abcdefghij")

    cluster.delete_records("orders", 0, before=6)

    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (6, 10)
    consumer.assign([TopicPartition("orders", 0, 2)])
    (message,) = take(consumer, 1)
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET == -140
    assert "out of range" in error.str()

    consumer.unassign()
    consumer.assign([TopicPartition("orders", 0, 6)])
    assert offsets(take(consumer, 4)) == [6, 7, 8, 9]


def test_a_topic_deleted_and_created_again_starts_at_zero(
    cluster: MockCluster, producer: Producer, consumer: Consumer
) -> None:
    cluster.create_topic("orders")
    produce(producer, "orders", "a", "b")
    cluster.delete_topic("orders")
    assert consumer.list_topics("orders").topics["orders"].error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    cluster.create_topic("orders")

    # A client that knew the old topic may be slow to find the new one: ask with a fresh one.
    fresh = new_consumer(cluster)
    assert fresh.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 0)
    fresh.close()


def test_an_outage_delays_records_and_loses_none(cluster: MockCluster, producer: Producer, consumer: Consumer) -> None:
    cluster.create_topic("orders")
    consumer.assign([TopicPartition("orders", 0, 0)])
    produce(producer, "orders", "before")
    assert offsets(take(consumer, 1)) == [0]

    cluster.broker_down(ALL_BROKERS)
    producer.produce("orders", b"during", partition=0)
    assert producer.flush(0.3) == 1
    assert consumer.consume(1, 0.1) == []

    cluster.broker_up(ALL_BROKERS)
    assert producer.flush(20) == 0
    assert offsets(take(consumer, 1)) == [1]


def test_a_change_of_leader_raises_the_epoch_that_records_carry(
    cluster: MockCluster, producer: Producer, consumer: Consumer
) -> None:
    cluster.create_topic("orders")
    cluster.set_leader("orders", 0, 1)
    consumer.assign([TopicPartition("orders", 0, 0)])
    produce(producer, "orders", "a")
    (first,) = take(consumer, 1)

    cluster.set_leader("orders", 0, 2)
    produce(producer, "orders", "b")
    (second,) = take(consumer, 1)

    assert (second.offset(), second.leader_epoch()) == (1, (first.leader_epoch() or 0) + 1)
    assert consumer.list_topics("orders").topics["orders"].partitions[0].leader == 2


def test_a_scripted_leader_is_answered_once(cluster: MockCluster, consumer: Consumer) -> None:
    cluster.create_topic("orders")
    cluster.set_leader("orders", 0, 1)
    for _ in range(3):  # a client's first question about a topic is asked twice, the second time by and by
        consumer.list_topics("orders")

    cluster.push_leader_response("orders", 0, broker=2, epoch=7)

    answers = [consumer.list_topics("orders").topics["orders"].partitions[0].leader for _ in range(2)]
    assert answers == [2, 1]


def test_pushed_errors_meet_the_next_requests_in_order(cluster: MockCluster, producer: Producer) -> None:
    cluster.create_topic("orders")
    reports: list[KafkaError | None] = []

    cluster.push_request_errors(PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE])
    for _ in range(2):
        producer.produce("orders", b"a", partition=0, on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(20) == 0

    assert [error.code() if error else None for error in reports] == [KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_cleared_errors_are_forgotten(cluster: MockCluster, producer: Producer) -> None:
    cluster.create_topic("orders")
    reports: list[KafkaError | None] = []
    cluster.push_request_errors(PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE] * 5)

    cluster.clear_request_errors(PRODUCE)

    producer.produce("orders", b"a", partition=0, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(20) == 0
    assert reports == [None]


def test_round_trip_time_is_added_to_every_answer(cluster: MockCluster, consumer: Consumer) -> None:
    cluster.create_topic("orders")
    consumer.list_topics("orders")
    cluster.rtt(ALL_BROKERS, 300)

    started = time.monotonic()
    consumer.list_topics("orders")

    assert time.monotonic() - started >= 0.3


def test_a_group_depends_on_its_coordinator_alone(cluster: MockCluster, consumer: Consumer) -> None:
    cluster.create_topic("orders")
    cluster.set_coordinator("readers", 2)
    cluster.broker_down(2)
    with pytest.raises(KafkaException):
        consumer.committed([TopicPartition("orders", 0)], timeout=1.0)

    cluster.set_coordinator("readers", 1)

    assert consumer.committed([TopicPartition("orders", 0)], timeout=20)[0].error is None


def test_clusters_are_told_apart_by_their_id(cluster: MockCluster, consumer: Consumer) -> None:
    with MockCluster() as other:
        assert cluster.cluster_id == consumer.list_topics().cluster_id
        assert cluster.cluster_id != other.cluster_id
        assert cluster.bootstrap != other.bootstrap


def test_refusals_name_what_was_asked(cluster: MockCluster) -> None:
    cluster.create_topic("orders")
    refused: list[tuple[Callable[[], None], int, str]] = [
        (lambda: cluster.create_topic("orders"), KafkaError.TOPIC_ALREADY_EXISTS, "create topic 'orders'"),
        (lambda: cluster.delete_topic("nowhere"), KafkaError.UNKNOWN_TOPIC_OR_PART, "delete topic 'nowhere'"),
        (
            lambda: cluster.delete_records("orders", 0, 5),
            KafkaError.OFFSET_OUT_OF_RANGE,
            "orders[0] before 5",
        ),
        (lambda: cluster.broker_down(9), KafkaError.BROKER_NOT_AVAILABLE, "broker 9"),
    ]
    for call, code, text in refused:
        with pytest.raises(KafkaException) as caught:
            call()
        error = caught.value.args[0]
        assert error.code() == code
        assert text in error.str()


def test_a_closed_cluster_says_so_and_refuses_connections() -> None:
    cluster = MockCluster()
    assert cluster.brokers == (1,)
    cluster.close()
    cluster.close()

    with pytest.raises(RuntimeError, match="closed"):
        cluster.create_topic("orders")
    late = new_consumer(cluster)
    with pytest.raises(KafkaException):
        late.list_topics(timeout=0.5)
    late.close()


def test_no_broker_at_all_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="at least one broker"):
        MockCluster(brokers=0)


def test_a_librdkafka_without_the_mock_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    mock._library.cache_clear()
    monkeypatch.setattr(cimpl, "__file__", msgspec._core.__file__)  # some library that is not librdkafka
    with pytest.raises(ConfigError, match="published wheel"):
        MockCluster()
    mock._library.cache_clear()
