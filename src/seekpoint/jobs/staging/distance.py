"""From a run's positions to those of its groups: what has come since, and why a rebuild cannot follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.run import StagedPosition, Step, position_of
from seekpoint.kafka.ranges import topic_ids
from seekpoint.records import Partition

STUCK = 10  # passes in a row that did not shrink

Key = tuple[str, Partition]


class CatchUpProgress:
    """Whether the distance to the groups' positions gets smaller from pass to pass."""

    def __init__(self) -> None:
        self._last, self._stuck = -1, 0

    def require_shrinking(self, records: int) -> None:
        """A pass of so many records. Raises ReloadRefused where ten in a row did not shrink."""
        self._stuck = self._stuck + 1 if 0 <= self._last <= records else 0
        self._last = records
        if self._stuck >= STUCK:
            why = f"{records} records in the last pass, and {STUCK} in a row did not shrink"
            raise ReloadRefused(
                [f"the workers write faster than the rebuild follows: {why}; reload when less is written"]
            )


def key_of(row: Row[Any]) -> Key:
    """Whose offset of which partition a row is."""
    return row.consumer_group, Partition(row.topic, row.partition)


def require_no_resets(
    positions: Mapping[Key, StagedPosition], offsets: Sequence[Row[Any]], topics: Mapping[str, Sequence[str]]
) -> None:
    """Raise ReloadRefused where the live tables are no longer what the log says up to these offsets.

    ``topics`` are those that each group's pipeline reads.
    """
    now = {key_of(row): row for row in offsets}
    reasons = []
    for (group, at), staged in positions.items():
        row = now.get((group, at))
        if row is None:
            reasons.append(f"{at}: group {group!r} has no offset of it any more")
        elif row.topic_id != staged.topic_id:
            reasons.append(f"{at}: its offsets belong to another topic id since the run was opened")
        elif row.resets != staged.resets or row.next_offset < max(staged.next_offset, staged.end_offset):
            reasons.append(
                f"{at}: the position of group {group!r} was reset since the run was opened: what the live tables "
                "hold is no longer what the log says up to it"
            )
        if at.topic not in topics[group]:
            reasons.append(f"{at}: group {group!r} reads it now, and this pipeline does not: name it in topics=")
    if reasons:
        raise ReloadRefused([*reasons, "abort this run and open another one"])


def distance(positions: Mapping[Key, StagedPosition], offsets: Sequence[Row[Any]]) -> int:
    """By how many records these offsets are ahead of the rebuilt tables."""
    known = {key: at.next_offset for key, at in positions.items()}
    ahead: list[int] = [row.next_offset - known.get(key_of(row), row.first_offset) for row in offsets]
    return sum(max(each, 0) for each in ahead)


def add_positions(tx: Step, rows: Sequence[Row[Any]]) -> None:
    """Partitions that the groups have got since: their rebuild begins where they began.

    Raises ReloadRefused where an operator has reset one already: what it has passed since is on record with no run.
    """
    if reset := [row for row in rows if row.resets]:
        reasons = [
            f"{key_of(row)[1]}: group {row.consumer_group!r} has got it since the run was opened, and its position was "
            "reset by an operator"
            for row in reset
        ]
        raise ReloadRefused([*reasons, "abort this run and open another one"])
    if rows:
        tx.add_positions(tx.run.id, [position_of(row, end=row.first_offset) for row in rows])


def require_topics(kafka: Mapping[str, Any], wanted: AbstractSet[tuple[str, UUID]]) -> None:
    """The topics still have the ids of the run's records. Raises ReloadRefused, KafkaUnavailable."""
    known = topic_ids(kafka, sorted({topic for topic, _ in wanted}))
    if strange := sorted({topic for topic, topic_id in wanted if known[topic] != topic_id}):
        raise ReloadRefused([f"topic {topic!r} was deleted or created again: end this run" for topic in strange])


def beyond(offsets: Sequence[Row[Any]], ends: Mapping[Partition, int]) -> list[str]:
    """Why these offsets cannot be rebuilt: the readable log ends before them."""
    return [
        f"{at}: group {group!r} is at {row.next_offset}, and what can be read ends at {ends[at]}: a transaction is "
        "open in front of it, or these are other brokers"
        for row, (group, at) in ((row, key_of(row)) for row in offsets)
        if row.next_offset > ends[at]
    ]
