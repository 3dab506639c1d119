"""A run's progress, read only from the database: without brokers, and without locks that block others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Engine, Row, Uuid, bindparam, func, select

from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import BATCHES, reload_run
from seekpoint.records import Partition
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import REPEATABLE_READ, Run, transaction

_NOW = select(func.clock_timestamp())
# A step locks the run's row: if this query skips it as locked, a step is running.
_IDLE = (
    select(reload_run.c.id)
    .where(reload_run.c.id == bindparam("its_run", type_=Uuid))
    .with_for_update(read=True, skip_locked=True)
)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a run. ``next`` is the run's position, ``live`` the group's, ``end`` the snapshot offset.

    ``staged`` is the number of offsets that tasks have staged and no rebuilt table has yet.
    """

    group: str
    partition: Partition
    first: int
    end: int
    next: int
    live: int
    staged: int

    def left(self, strategy: str) -> int:
        """The number of remaining offsets: a batch job ends at ``end``, other jobs at the group's position."""
        until = self.end if strategy in BATCHES else max(self.end, self.live)
        return max(0, until - self.next - self.staged)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run at one moment. ``silent``: the time since its driver's last heartbeat; ``in_step``: a step is running."""

    run: Run
    silent: timedelta
    in_step: bool
    places: tuple[PartitionProgress, ...]

    @property
    def left(self) -> int | None:
        """The number of remaining offsets in all partitions; None for an ended run."""
        return sum(place.left(self.run.strategy) for place in self.places) if self.run.is_open else None


def progress_of(engine: Engine, schema: str, id: UUID) -> RunProgress:  # noqa: A002 -- the column's name
    """The progress of a run. Raises ConfigError if there is no run with that id."""
    run = Runs(engine, schema).get(id)
    with transaction(engine, schema, isolation=REPEATABLE_READ) as tx:
        positions = tx.positions_of(id)
        offsets = {
            (row.consumer_group, Partition(row.topic, row.partition)): row.next_offset
            for row in tx.execute(RELOAD_RUN["offsets"], groups=list(run.groups))
        }
        next_offsets = {(position.group, position.partition): position.next_offset for position in positions}
        staged = _covered(tx.execute(RELOAD_RUN["staged"], run=id).all(), next_offsets)
        silent = tx.execute(_NOW).scalar_one() - run.changed_at
    with transaction(engine, schema) as tx:
        in_step = tx.execute(_IDLE, its_run=id).one_or_none() is None
    places = [
        PartitionProgress(
            position.group,
            position.partition,
            position.first_offset,
            position.end_offset,
            position.next_offset,
            offsets.get((position.group, position.partition), position.next_offset),
            staged.get((position.group, position.partition), 0) if position.next_offset < position.end_offset else 0,
        )
        for position in positions
    ]
    return RunProgress(run, silent, in_step, tuple(places))


def _covered(
    rows: Sequence[Row[tuple[object, ...]]], next_offsets: Mapping[tuple[str, Partition], int]
) -> Mapping[tuple[str, Partition], int]:
    """The number of staged offsets after the positions in ``done``, by partition; overlaps count once.

    ``rows`` are ordered by offset.
    """
    covered: dict[tuple[str, Partition], int] = {}
    cursors = dict(next_offsets)
    for row in rows:
        key = row.consumer_group, Partition(row.topic, row.partition)
        start = max(row.from_offset, cursors.get(key, 0))
        covered[key] = covered.get(key, 0) + max(0, row.to_offset - start)
        cursors[key] = max(row.to_offset, cursors.get(key, 0))
    return covered
