"""Where positions and logs were: the workers' samples."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import STATUS, asking_for
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class Sample:
    """A position and its log at one moment; ``log_end`` is after the last record that could be read."""

    at: datetime
    next_offset: int
    log_start: int
    log_end: int

    @property
    def lag(self) -> int:
        """Records that were not applied yet; 0 where the position was past the end."""
        return max(0, self.log_end - max(self.next_offset, self.log_start))


def samples(
    tx: GroupConnection, partitions: Collection[Partition], since: timedelta
) -> dict[Partition, tuple[Sample, ...]]:
    """The samples of the last ``since``, oldest first; a partition without any has none."""
    found: dict[Partition, list[Sample]] = {at: [] for at in sorted(partitions)}
    for row in tx.execute(STATUS["samples"], **asking_for(list(found)), since=since):
        found[Partition(row.topic, row.partition)].append(Sample(row.at, row.next_offset, row.log_start, row.log_end))
    return {at: tuple(each) for at, each in found.items()}
