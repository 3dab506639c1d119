"""The objects that all classes of one consumer's assignment share: client, ledger, brokers, events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from seekpoint.events import Announcer
from seekpoint.kafka.client import Client
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import GroupLedger
from seekpoint.worker.assignment.partitions import AssignedPartitions


class Resources(NamedTuple):
    """One consumer's partitions, the ledger and the brokers, and where events go."""

    partitions: AssignedPartitions
    client: Client
    ledger: GroupLedger
    identity: Identity
    watermarks: Watermarks
    announce: Announcer

    @classmethod
    def of(cls, consumer: Any, kafka: Mapping[str, Any], ledger: GroupLedger, announce: Announcer) -> Self:
        """Create them for a consumer with this configuration."""
        client, identity = Client(consumer, kafka), Identity(kafka, ledger.limits.kafka_timeout)
        watermarks = Watermarks(identity, committed=kafka.get("isolation.level") != "read_uncommitted")
        return cls(AssignedPartitions(client, announce), client, ledger, identity, watermarks, announce)
