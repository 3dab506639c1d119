"""What the parts of one consumer's assignment work with."""

from __future__ import annotations

from typing import NamedTuple

from seekpoint.events import Announcer
from seekpoint.kafka.client import Client
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Ledger
from seekpoint.worker.assignment.partitions import AssignedPartitions


class Resources(NamedTuple):
    """One consumer's partitions, the ledger and the brokers, and where events go."""

    partitions: AssignedPartitions
    client: Client
    ledger: Ledger
    identity: Identity
    watermarks: Watermarks
    announce: Announcer
