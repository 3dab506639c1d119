"""Compares a run's positions with its groups': how far the rebuild lags, and why it cannot catch up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.kafka.ranges import topic_ids
from seekpoint.records import Partition
from seekpoint.runs.run import StagedPosition, Step, position_of

STUCK = 10  # consecutive passes that did not shrink

Key = tuple[str, Partition]


class CatchUpProgress:
    """Checks that catch-up passes become smaller."""

    def __init__(self) -> None:
        self._last, self._stuck = -1, 0

    def require_shrinking(self, records: int) -> None:
        """Count a pass of this many records. Raises ReloadRefused if ten in a row did not shrink."""
        self._stuck = self._stuck + 1 if 0 <= self._last <= records else 0
        self._last = records
        if self._stuck >= STUCK:
            why = f"{STUCK} passes in a row did not shrink, and the last one read {records} records"
            raise ReloadRefused(
                [f"the workers write faster than the rebuild catches up: {why}; reload when they write less"]
            )


def key_of(row: Row[Any]) -> Key:
    """The group and partition of a row."""
    return row.consumer_group, Partition(row.topic, row.partition)


def require_no_resets(
    positions: Mapping[Key, StagedPosition], offsets: Sequence[Row[Any]], topics: Mapping[str, Sequence[str]]
) -> None:
    """Raise ReloadRefused if the live tables no longer match the log up to these offsets.

    ``topics`` are those that each group's pipeline reads.
    """
    rows = {key_of(row): row for row in offsets}
    reasons = []
    for (group, partition), staged in positions.items():
        row = rows.get((group, partition))
        if row is None:
            reasons.append(f"{partition}: group {group!r} no longer has an offset of it")
        elif row.topic_id != staged.topic_id:
            reasons.append(f"{partition}: its offsets belong to another topic id since the run was opened")
        elif row.resets != staged.resets or row.next_offset < max(staged.next_offset, staged.end_offset):
            reasons.append(
                f"{partition}: the position of group {group!r} was reset since the run was opened, so the live "
                "tables no longer match the log up to it"
            )
        if partition.topic not in topics[group]:
            reasons.append(f"{partition}: group {group!r} reads it now, and this pipeline does not: name it in topics=")
    if reasons:
        raise ReloadRefused([*reasons, "abort this run and open another one"])


def distance(positions: Mapping[Key, StagedPosition], offsets: Sequence[Row[Any]]) -> int:
    """The number of offsets by which the rebuilt tables lag behind these positions."""
    staged_up_to = {key: position.next_offset for key, position in positions.items()}
    ahead: list[int] = [row.next_offset - staged_up_to.get(key_of(row), row.first_offset) for row in offsets]
    return sum(max(lead, 0) for lead in ahead)


def add_positions(tx: Step, rows: Sequence[Row[Any]]) -> None:
    """Add partitions that are new to the groups: their rebuild starts at the first applied offset.

    Raises ReloadRefused if an operator has already reset a new partition: the run has not stored which offsets the
    reset skipped.
    """
    if reset := [row for row in rows if row.resets]:
        reasons = [
            f"{key_of(row)[1]}: the partition is new to group {row.consumer_group!r} since the run was opened, and an "
            "operator has already reset its position"
            for row in reset
        ]
        raise ReloadRefused([*reasons, "abort this run and open another one"])
    if rows:
        tx.add_positions(tx.run.id, [position_of(row, end=row.first_offset) for row in rows])


def positions_up_to(
    tx: Step, offsets: Sequence[Row[Any]], sources: Sequence[PipelineSource]
) -> dict[Key, StagedPosition]:
    """The run's positions; raises ReloadRefused if the rebuilt tables cannot catch up to these offsets."""
    positions = {(position.group, position.partition): position for position in tx.positions()}
    # Include partitions that were added since the run was opened.
    if new := [row for row in offsets if key_of(row) not in positions]:
        add_positions(tx, new)
        positions = {(position.group, position.partition): position for position in tx.positions()}
    require_no_resets(positions, offsets, {source.group: source.pipeline.topics for source in sources})
    return positions


def require_topics(kafka: Mapping[str, Any], topics: AbstractSet[tuple[str, UUID]]) -> None:
    """Raise ReloadRefused if a topic no longer has the id of the run's records; raises KafkaUnavailable."""
    ids = topic_ids(kafka, sorted({topic for topic, _ in topics}))
    if strange := sorted({topic for topic, topic_id in topics if ids[topic] != topic_id}):
        raise ReloadRefused(
            [
                f"topic {topic!r} was deleted or created again: the run has ended; decide for the group, then open "
                "another"
                for topic in strange
            ]
        )


def beyond(offsets: Sequence[Row[Any]], ends: Mapping[Partition, int]) -> list[str]:
    """Return why the rebuild cannot reach these positions: the readable log ends before them. Empty if it can."""
    return [
        f"{partition}: group {group!r} is at {row.next_offset}, but the readable log ends at {ends[partition]}: a "
        "producer's transaction is still open before that, or these are other brokers"
        for row, (group, partition) in ((row, key_of(row)) for row in offsets)
        if row.next_offset > ends[partition]
    ]
