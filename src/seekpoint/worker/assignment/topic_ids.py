"""Whether the brokers' topics still are those that the claims belong to (I4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seekpoint.errors import PartitionStopped
from seekpoint.kafka.identity import NO_ID, Answer
from seekpoint.ledger.claim import recreated
from seekpoint.records import Partition
from seekpoint.worker.assignment.partitions import ActivePartition


def topic_id_mismatches(
    active: Mapping[Partition, ActivePartition], answer: Answer, partitions: Iterable[Partition]
) -> dict[Partition, PartitionStopped | None]:
    """Those of ``partitions`` whose topic is not the one their claim belongs to, each with its stop.

    None where the topic's id is unknown at this moment: nothing of it may commit, and nothing is decided.
    Raises KafkaUnavailable.
    """
    ids = answer.result()
    found: dict[Partition, PartitionStopped | None] = {}
    for partition in partitions:
        at, topic_id = active.get(partition), ids[partition.topic]
        if at is None or topic_id == at.claim.topic_id:
            continue
        if topic_id is None or topic_id == NO_ID:
            found[partition] = None
        else:
            found[partition] = recreated(partition, at.claim.next_offset, at.claim.topic_id, topic_id)
    return found
