"""What the client says in the place of records while a range is read."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from seekpoint.errors import RangeStuck
from seekpoint.kafka import ranges
from seekpoint.kafka.client import END_OF_PARTITION
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.range_consumer import RangeConsumer
from seekpoint.kafka.ranges import Range, _IdleLimit, _read
from seekpoint.records import Partition
from support.mock_cluster import MockCluster

FIND_COORDINATOR, GROUP_AUTHORIZATION_FAILED = 10, 30


def test_a_missing_right_is_reported_as_such() -> None:
    """It comes as a message without topic and offset: nothing may be asked of that before its error."""
    partition = Partition("orders", 0)
    with MockCluster() as cluster:
        cluster.create_topic(partition.topic)
        cluster.push_request_errors(FIND_COORDINATOR, [GROUP_AUTHORIZATION_FAILED] * 50)
        kafka = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        checks = RangeChecks(kafka)
        consumer = RangeConsumer(checks, {partition: 0})
        try:
            with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
                list(_read(consumer, checks, Range(partition, uuid4(), 0, 10), 500, _IdleLimit(30)))
        finally:
            consumer.client.close(3)


def test_the_logs_end_counts_if_it_comes_together_with_the_last_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says it once: a range past the end would otherwise wait for the whole idle limit."""
    monkeypatch.setattr(ranges, "AT_END", 0.01)
    records = [Message(topic="orders", partition=0, offset=offset, value=b"1") for offset in range(5)]
    end = Message(topic="orders", partition=0, offset=5, error=KafkaError(END_OF_PARTITION))
    answers = [[*records, end]]
    consumer: Any = SimpleNamespace(
        client=SimpleNamespace(read=lambda most, wait: answers.pop() if answers else []),
        replace_if_unanswered=lambda topic, positions: False,
    )
    checks: Any = SimpleNamespace(
        stuck=lambda partition, topic_id, position, until: RangeStuck(partition, position, until, "")
    )
    reading = _read(consumer, checks, Range(Partition("orders", 0), uuid4(), 0, 8), 500, _IdleLimit(20))
    assert [message.offset() for message in next(reading)] == [0, 1, 2, 3, 4]
    began = monotonic()
    with pytest.raises(RangeStuck):
        next(reading)
    assert monotonic() - began < 10
