"""The workers' samples of positions and logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import RESETS, STATUS, asking_for
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class Sample:
    """A position and its log at one moment; ``log_end`` is the offset after the last record that could be read."""

    at: datetime
    next_offset: int
    log_start: int
    log_end: int

    @property
    def lag(self) -> int:
        """The number of records not yet applied; 0 if the position was past the end."""
        return max(0, self.log_end - max(self.next_offset, self.log_start))


def samples(
    tx: GroupConnection, partitions: Collection[Partition], since: timedelta
) -> dict[Partition, tuple[Sample, ...]]:
    """The samples of the last ``since``, oldest first; empty for a partition without any."""
    by_partition: dict[Partition, list[Sample]] = {partition: [] for partition in sorted(partitions)}
    for row in tx.execute(STATUS["samples"], **asking_for(list(by_partition)), since=since):
        by_partition[Partition(row.topic, row.partition)].append(
            Sample(row.at, row.next_offset, row.log_start, row.log_end)
        )
    return {partition: tuple(series) for partition, series in by_partition.items()}


def positions_at(
    tx: GroupConnection, topic_ids: Mapping[Partition, UUID], moment: datetime | None
) -> dict[Partition, int]:
    """The positions of these partitions in the last sample before a moment; omits partitions without one.

    A sample with another topic id does not count, because the topic was recreated after it.
    """
    rows = tx.execute(RESETS["samples_before"], moment=moment, **asking_for(list(topic_ids)))
    before = {Partition(row.topic, row.partition): row for row in rows}
    return {
        partition: before[partition].next_offset
        for partition, topic_id in topic_ids.items()
        if partition in before and before[partition].topic_id == topic_id
    }
