"""Reading positions: under the row's lock where a decision hangs on them, without where they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from seekpoint.ledger import statements as sql
from seekpoint.ledger.scope import Scope
from seekpoint.records import Partition


@dataclass(frozen=True, slots=True)
class Position:
    """One row of the ledger. ``next_offset`` is the position to read; times are the database's."""

    partition: Partition
    topic_id: UUID
    first_offset: int
    next_offset: int
    leader_epoch: int | None
    token: UUID
    epoch: int
    owner: UUID | None
    claimed_at: datetime | None
    committed_at: datetime | None
    record_time: datetime | None
    unreleased_claims: int


def position(row: Row[Any]) -> Position:
    """A row of ``partition_offset`` as a value."""
    return Position(
        Partition(row.topic, row.partition),
        row.topic_id,
        row.first_offset,
        row.next_offset,
        row.leader_epoch,
        row.claim,
        row.epoch,
        row.owner,
        row.claimed_at,
        row.committed_at,
        row.record_time,
        row.unreleased_claims,
    )


def look(tx: Scope, partitions: Iterable[Partition], *, locked: bool) -> dict[Partition, Position]:
    """The rows of these partitions. ``locked`` waits for transactions in flight: the answer is the settled one."""
    asked = sorted(partitions)
    rows = tx.execute(
        sql.LOOK if locked else sql.GLANCE,
        asked_topic=[p.topic for p in asked],
        asked_partition=[p.number for p in asked],
    )
    return {at.partition: at for at in map(position, rows)}


def read(tx: Scope) -> list[Position]:
    """All positions of the group, in the order of topic and partition."""
    return [position(row) for row in tx.execute(sql.READ)]
