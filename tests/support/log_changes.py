"""Changes a topic's log by transactions, retention and deletion, and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from seekpoint.kafka.ranges import topic_ids
from seekpoint.testing.servers.container import Container
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.testing.servers.process import Child
from support.waiting import until

LARGE = "x" * 50_000  # a value: few of them are one answer of a broker
# A topic's configuration with which the broker compacts at once.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "0",
}


def in_transactions(broker: str, name: str, *batches: tuple[int, bool | None], partition: int = 0) -> Producer:
    """Produce each batch in a transaction: committed, aborted, or (None) left open; returns the producer."""
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{name}-{uuid4()}", "log_level": 0})
    producer.init_transactions(30)
    for records, outcome in batches:
        producer.begin_transaction()
        for n in range(records):
            producer.produce(name, str(n), partition=partition)
        producer.flush(20)
        if outcome is not None:
            (producer.commit_transaction if outcome else producer.abort_transaction)(30)
    return producer


def messages(broker: str, topic: str, partition: int = 0) -> list[Message]:
    """All records that are in a partition's log now; no offset is committed."""
    config = {"bootstrap.servers": broker, "group.id": "none", "enable.auto.commit": False}
    consumer, messages = Consumer({**config, "enable.partition.eof": True, "log_level": 0}), list[Message]()
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            messages.append(message)
        assert message is not None, f"no end of {topic} within 30 s"
        return messages
    finally:
        consumer.close()


def log_folder(broker: KafkaServer, name: str) -> Path:
    """The folder with the log of the topic's partition 0; skips the test if the broker runs in a container."""
    handle = broker._handle
    if isinstance(handle, Container):
        pytest.skip("the broker's files are in its container")
    assert isinstance(handle, Child)
    return handle._folder.path / "data" / f"{name}-0"


def trim(admin: AdminClient, name: str, to: int, *, partition: int = 0) -> None:
    """Delete the records before ``to``, as retention does."""
    end = TopicPartition(name, partition, to)
    admin.delete_records([end])[end].result(20)


def delete(kafka: Mapping[str, Any], admin: AdminClient, name: str) -> None:
    """Delete the topic, and wait until the brokers no longer know it."""
    admin.delete_topics([name])[name].result(20)
    until(lambda: topic_ids(kafka, [name])[name] is None, f"the end of {name}")
