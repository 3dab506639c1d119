"""A group's state in the ledger at one moment: positions, samples, dead letters and lost ranges.

It is read in one database snapshot: with positions from before a reset and dead letters from after it, records that
were never applied would seem applied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from seekpoint.admin.samples import positions_at
from seekpoint.jobs.export.export import in_topics
from seekpoint.jobs.staging.lost_ranges import Span
from seekpoint.jobs.staging.stage import dead_letters_within, edits_within, lost_within
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.positions import Position, position
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.schema_revision import check
from seekpoint.ledger.sql import GROUPS
from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition
from seekpoint.runs.run import REPEATABLE_READ, transaction


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group's positions, and the records before them that were not applied.

    ``earlier`` has the positions at earlier moments, each from the last sample before it. ``dead_letters`` are
    ascending offsets; ``edited`` are offsets of records that were applied with an edited value; ``lost`` are lost
    ranges.
    """

    group: str
    positions: Mapping[Partition, Position]
    earlier: Mapping[datetime, Mapping[Partition, int]]
    dead_letters: Mapping[Partition, Sequence[int]]
    edited: Mapping[Partition, Sequence[int]]
    lost: Sequence[tuple[Partition, Span]]


def read_snapshot(
    ledger: GroupLedger, topics: str | Collection[str] | None = None, moments: Collection[datetime] = ()
) -> GroupSnapshot:
    """Read the state of the ledger's group in these topics (by default all) at one moment.

    Raises ConfigError for a group or a topic that the ledger does not have, and SchemaMismatch.
    """
    with transaction(ledger.engine, ledger.schema, isolation=REPEATABLE_READ) as tx:
        check(tx.connection, tx.schema)
        scope = GroupConnection(tx.connection, tx.schema, ledger.group)
        stored = [position(row) for row in scope.execute(GROUPS["positions"])]
        positions = {row.partition: row for row in in_topics(ledger, stored, topics)}
        ids = {partition: row.topic_id for partition, row in positions.items()}
        earlier = {moment: positions_at(scope, ids, moment) for moment in moments}
        logs = {partition: (topic_id, 0, LARGEST_BIGINT) for partition, topic_id in ids.items()}
        dead_letters: dict[Partition, list[int]] = {}
        for row in sorted(dead_letters_within(tx, ledger.group, logs)):
            dead_letters.setdefault(Partition(row.topic, row.partition), []).append(row.record_offset)
        edited: dict[Partition, list[int]] = {}
        for topic, number, offset in sorted(edits_within(tx, ledger.group, logs)):
            edited.setdefault(Partition(topic, number), []).append(offset)
        applied = {partition: (row.topic_id, row.first_offset, row.next_offset) for partition, row in positions.items()}
        lost = list(lost_within(tx, ledger.group, applied))
    return GroupSnapshot(ledger.group, positions, earlier, dead_letters, edited, lost)
