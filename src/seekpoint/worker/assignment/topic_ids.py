"""Whether the brokers' topics still are those that the claims belong to (I4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from uuid import UUID

from seekpoint.errors import PartitionStopped
from seekpoint.kafka.identity import NO_ID, Answer
from seekpoint.ledger.claim import recreated
from seekpoint.records import Partition
from seekpoint.worker.assignment.claiming import Claiming
from seekpoint.worker.assignment.partitions import AssignedPartitions, ClaimingPartition


class TopicIds:
    """Compares the topic ids of active partitions with the brokers', and stops reading where they differ."""

    def __init__(self, partitions: AssignedPartitions, claiming: Claiming) -> None:
        self._partitions, self._claiming = partitions, claiming

    def mismatches(self, answer: Answer, partitions: Iterable[Partition]) -> dict[Partition, PartitionStopped | None]:
        """Those of ``partitions`` whose topic is not the one their claim belongs to, each with its stop.

        None where the topic's id is unknown at this moment: nothing of it may commit, and nothing is decided.
        Raises KafkaUnavailable.
        """
        ids: Mapping[str, UUID | None] = answer.result()
        found: dict[Partition, PartitionStopped | None] = {}
        for partition in partitions:
            active = self._partitions.active.get(partition)
            now = ids[partition.topic]
            if active is None or now == active.claim.topic_id:
                continue
            if now is None or now == NO_ID:
                found[partition] = None
            else:
                found[partition] = recreated(partition, active.claim.next_offset, active.claim.topic_id, now)
        return found

    def stop_or_reclaim(self, mismatches: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""
        for topic in sorted({p.topic for p, stop in mismatches.items() if stop is None}):
            self._claiming.note_unknown(topic, monotonic())
        for partition, stop in mismatches.items():
            if stop is not None:
                self._partitions.stop(partition, stop)
            elif partition in self._partitions.active and partition not in self._partitions.revoked:
                claim = self._partitions.active[partition].claim
                self._partitions.deactivate([partition])
                self._partitions.claim_later(partition, ClaimingPartition(known=claim))
