"""What the client says in the place of records while a range is read."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import KafkaException

from seekpoint.kafka.client import Client
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.range_checks import RangeChecks, bounded_config
from seekpoint.kafka.ranges import Range, _IdleLimit, _read
from seekpoint.records import Partition
from support.mock_cluster import MockCluster

FIND_COORDINATOR, GROUP_AUTHORIZATION_FAILED = 10, 30


def test_a_missing_right_is_reported_as_such() -> None:
    """It comes as a message without topic and offset: nothing may be asked of that before its error."""
    at = Partition("orders", 0)
    with MockCluster() as cluster:
        cluster.create_topic(at.topic)
        cluster.push_request_errors(FIND_COORDINATOR, [GROUP_AUTHORIZATION_FAILED] * 50)
        kafka = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        config = bounded_config(kafka)
        client = Client(make_consumer(config), config)
        client.assign({at: (0, None)}, {})
        try:
            with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
                list(_read(client, RangeChecks(kafka), Range(at, uuid4(), 0, 10), 500, _IdleLimit(30)))
        finally:
            client.close(3)
