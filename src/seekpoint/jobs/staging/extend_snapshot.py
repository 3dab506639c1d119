"""Later snapshot offsets: what groups have applied while ranges were staged is staged by tasks too, if it is much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, literal, select

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.run import SERIALIZABLE_ENOUGH, Driver, StagedPosition, Step, Tx, position_of
from seekpoint.jobs.staging.stage import leave_out
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import PipelineSource
from seekpoint.kafka.ranges import stable_ends, topic_ids
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import dead_letter
from seekpoint.records import Partition, State

LARGE = 200_000  # records that are left for the catch-up passes at most; tasks read more than that faster
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


def extend(driver: Driver, sources: Sequence[PipelineSource], kafka: Mapping[str, Any], large: int = LARGE) -> int:
    """Move the snapshot offsets to the groups' offsets where those are over ``large`` records ahead; by how much.

    What opens a run is asked of the added ranges, too: the topics' ids, that no operator has reset a position, that the
    records can be read; and dead letters in them are left out. Partitions that a group has got since come in. Where a
    record that was left out has been replayed meanwhile, they stay: what came after them is for the catch-up passes,
    which apply it first. Raises ReloadRefused, KafkaUnavailable, and ReloadOver.
    """
    groups = [source.group for source in sources]
    with driver.step("staging", isolation=SERIALIZABLE_ENOUGH) as tx:
        positions = {(at.group, at.partition): at for at in tx.positions()}
        offsets = tx.execute(RELOAD_RUN["offsets"], groups=groups).all()
    moved: int = sum(row.next_offset - _end(positions, row) for row in offsets)
    if moved <= large:
        return 0
    require_no_resets(positions, offsets, {source.group: source.pipeline.topics for source in sources})
    _require_readable(kafka, offsets)  # after the offsets were read: the stable end only grows
    with driver.step("staging", isolation=SERIALIZABLE_ENOUGH) as tx:  # what is replayed, and what is left out: at once
        staging = Staging(tx.run.staging_schema)
        if _has_replayed(tx, staging, offsets):
            return 0
        for group in groups:
            spans = {key_of(row)[1]: (row.topic_id, _end(positions, row), row.next_offset) for row in offsets
                     if row.consumer_group == group}  # fmt: skip
            leave_out(tx, staging, group, spans)
        add_positions(tx, [row for row in offsets if key_of(row) not in positions])
        tx.move_positions(RELOAD_RUN["extend_positions"], tx.run.id, {key_of(row): row.next_offset for row in offsets})
    return moved


def _has_replayed(tx: Tx, staging: Staging, offsets: Sequence[Row[Any]]) -> bool:
    out, live = staging.left_out.c, dead_letter.c
    is_same = [live[name] == out[name] for name in ("consumer_group", "topic", "partition", "record_offset")]
    found = select(literal(1)).join_from(dead_letter, staging.left_out, and_(*is_same)).limit(1)
    ids = {row.topic_id for row in offsets}  # not those of an earlier life of the topic
    found = found.where(live.topic_id.in_(ids), live.state == State.REPLAYED.value)
    return tx.execute(found).first() is not None


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


def _end(positions: Mapping[Key, StagedPosition], row: Row[Any]) -> int:
    known, first = positions.get(key_of(row)), int(row.first_offset)
    return first if known is None else known.end_offset


def require_topics(kafka: Mapping[str, Any], wanted: AbstractSet[tuple[str, UUID]]) -> None:
    """The topics still have the ids of the run's records. Raises ReloadRefused, KafkaUnavailable."""
    known = topic_ids(kafka, sorted({topic for topic, _ in wanted}))
    if strange := sorted({topic for topic, topic_id in wanted if known[topic] != topic_id}):
        raise ReloadRefused([f"topic {topic!r} was deleted or created again: end this run" for topic in strange])


def _require_readable(kafka: Mapping[str, Any], offsets: Sequence[Row[Any]]) -> None:
    require_topics(kafka, {(row.topic, row.topic_id) for row in offsets})
    ends = stable_ends(kafka, sorted({key_of(row)[1] for row in offsets}))
    if reasons := beyond(offsets, ends):
        raise ReloadRefused(reasons)


def beyond(offsets: Sequence[Row[Any]], ends: Mapping[Partition, int]) -> list[str]:
    """Why these offsets cannot be rebuilt: the readable log ends before them."""
    return [
        f"{at}: group {group!r} is at {row.next_offset}, and what can be read ends at {ends[at]}: a transaction is "
        "open in front of it, or these are other brokers"
        for row, (group, at) in ((row, key_of(row)) for row in offsets)
        if row.next_offset > ends[at]
    ]
