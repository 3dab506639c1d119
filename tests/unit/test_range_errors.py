"""What the client says in the place of records while a range is read."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import KafkaException

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
