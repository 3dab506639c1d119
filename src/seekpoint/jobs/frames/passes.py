"""Rebuilds the tables of frames in passes over the log, up to the group's positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select

from seekpoint.errors import ReloadRefused
from seekpoint.jobs.batch.dedupe import by_sink, fold_rows, folded_path
from seekpoint.jobs.batch.publish import write_rows
from seekpoint.jobs.frames.bound_pipeline import BoundPipeline
from seekpoint.jobs.frames.frame_rows import FrameRows
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.reload.compare import Report, prepare
from seekpoint.jobs.reload.cutover_limits import Budget
from seekpoint.jobs.reload.reload import SMALL
from seekpoint.jobs.staging.consolidate import check_topics, make_all_indexes
from seekpoint.jobs.staging.constraint_rejects import make_unique_indexes
from seekpoint.jobs.staging.distance import CatchUpProgress, distance, positions_up_to
from seekpoint.jobs.staging.stage import FRAMES_STAGING, Staged, Task, leave_out
from seekpoint.jobs.tables.constraints import breaks, references
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.sql_templates import names, run
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables, is_there, remember_columns
from seekpoint.jobs.tables.targets import PipelineSource, Target, targets
from seekpoint.kafka.ranges import Range
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.tables import dead_letter, reload_staged
from seekpoint.records import Partition, State
from seekpoint.runs.run import Driver, Progress, Step, transaction

MAX_COMPARISONS = 3  # attempts to compare without a lock, which fail if the group's positions move meanwhile
MAX_OFFSETS = 1_000_000  # offsets per partition and pass: few, because Spark caches records that several frames read


class PositionsMoved(Exception):  # noqa: N818 -- no error: the driver runs another pass
    """The group's positions have moved since the last pass."""


class FramePasses:
    """The passes of one run.

    In each pass Spark's tasks stage the frames' rows of the next range, as for a micro-batch; then one transaction
    merges them into the rebuilt tables, as the sinks would, and advances the run's positions. The constructor does no
    I/O.
    """

    rewind = None  # the positions stay

    def __init__(self, driver: Driver, bound: BoundPipeline, progress: Progress) -> None:
        self._driver, self._bound, self._source, self._progress = driver, bound, bound.source, progress
        self._hold = ExitStack()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The tables to rebuild."""
        return self._targets

    @property
    def sources(self) -> Sequence[PipelineSource]:
        """The pipeline with the frames' sinks."""
        return [self._source]

    def make_tables(self) -> None:
        """Create the empty rebuilt tables, unless an earlier driver has created them.

        They have the live tables' unique indexes, which merging rows needs; for a swap, all indexes.
        """
        with self._driver.step(*FRAMES_STAGING) as tx:
            staging = Staging(tx.run.staging_schema)
            self._targets = targets(tx.connection, [self._source])
            swaps = tx.run.strategy == "swap"
            for target in self._targets:
                table = staging.table(target)
                if is_there(tx.connection, table):
                    continue
                make_like(
                    tx.connection,
                    table,
                    target.path,
                    prefix=target.staged,
                    replaces=swaps,
                    before_triggers=not swaps,
                )
                if swaps:
                    make_all_indexes(tx.connection, staging, target)
                else:
                    make_unique_indexes(tx, staging, target)
                written = [into for feed in target.feeds for _, into in self._bound.frames[feed.number].written]
                remember_columns(tx.connection, table, tuple(dict.fromkeys(written)))

    def catch_up(self, on_check: Callable[[], object] | None = None) -> int:
        """Run one pass; returns by how many offsets the group was ahead when the pass began.

        ``on_check`` is called after each heartbeat while Spark's jobs run, and may raise. Raises ReloadRefused if the
        run can no longer be used, FrameFailed if a frame raises or makes rows that cannot be written, and the errors of
        staging.
        """
        with self._driver.step(*FRAMES_STAGING) as tx:
            ahead, ranges = self._ranges(tx)
        if not ranges:
            return 0
        self._progress("staging", 0, ahead)

        def heartbeat() -> None:
            self._driver.heartbeat()
            if on_check is not None:
                on_check()

        stager = FrameStager(self._bound, on_check=heartbeat)
        staged = list(stager.stage(self._driver.run, [Task(self._source.group, range_) for range_ in ranges]))
        check_topics(self._bound.kafka, self._driver)
        with self._driver.step(*FRAMES_STAGING) as tx:
            self._merge(tx, stager, staged)
            tx.advance({(self._source.group, range_.partition): range_.end for range_ in ranges})
        self._progress("staging", sum(range_.end - range_.start for range_ in ranges), ahead)
        return ahead

    def follow(self) -> None:
        """Run passes until one has at most :data:`SMALL` offsets. Raises ReloadRefused if passes do not shrink."""
        pace = CatchUpProgress()
        while (ahead := self.catch_up()) > SMALL:
            pace.require_shrinking(ahead)

    def last_pass(self, budget: Budget) -> None:
        """Run passes up to positions that the caller has locked. Raises OverBudget if the budget is spent."""
        while self.catch_up(lambda: budget.left):
            pass

    def compare(self, state: str, then: Callable[[StagingTables], object] | None = None) -> Report:
        """Compare with the live tables at the group's positions. Locks the positions for a pass if they keep moving.

        ``then`` is called with the tables of each comparison, in its snapshot.
        """
        for _ in range(MAX_COMPARISONS):
            try:
                return prepare(self._driver, self, (state,), then=then)
            except PositionsMoved:
                self.catch_up()
        with self.held():
            while self.catch_up():
                pass
            return prepare(self._driver, self, (state,), then=then)

    def offsets(self, tx: Step) -> Sequence[Row[Any]]:
        """The rows of the group's positions."""
        return tx.offsets()

    def apply(self, tx: Step, offsets: Sequence[Row[Any]], *, idle: float = 0.0) -> int:  # noqa: ARG002 -- reads no log
        """Check that the tables are at these offsets; returns 0, because only Spark's tasks apply records.

        Raises PositionsMoved if the tables are not, and ReloadRefused if the run can no longer be used.
        """
        if distance(positions_up_to(tx, offsets, [self._source]), offsets):
            raise PositionsMoved
        self._require_none_replayed(tx)
        self._require_one_decision(tx)
        self._hold.close()  # this transaction's snapshot has positions and rows, so the group's owner may continue
        return 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the group's positions until :meth:`apply` has found that the tables are at these positions."""
        with self._hold:
            wait = self._driver.limits.transaction_age
            tx = self._hold.enter_context(transaction(self._bound.engine, self._driver.schema, lock_wait=wait))
            tx.execute(RELOAD_RUN["lock_offsets"], groups=[self._source.group]).all()
            yield

    def _ranges(self, tx: Step) -> tuple[int, list[Range]]:
        """The number of remaining offsets, and the next ranges; stores their dead letters, which are omitted."""
        offsets = self.offsets(tx)
        positions = positions_up_to(tx, offsets, [self._source])
        ahead = distance(positions, offsets)
        ranges: list[Range] = []
        late: dict[Partition, tuple[UUID, int, int]] = {}
        for row in offsets:
            position = positions[row.consumer_group, Partition(row.topic, row.partition)]
            end = min(row.next_offset, position.next_offset + MAX_OFFSETS)
            if end > position.next_offset:
                ranges.append(Range(position.partition, position.topic_id, position.next_offset, end))
            start = max(position.next_offset, position.end_offset)  # begin_staging stored those before end_offset
            if end > start:
                late[position.partition] = (position.topic_id, start, end)
        if late:
            leave_out(tx, Staging(tx.run.staging_schema), self._source.group, late)
        return ahead, ranges

    def require_references(self, tx: Step) -> None:
        """Raise ReloadRefused if rebuilt rows violate a foreign key of the live table."""
        staging = Staging(tx.run.staging_schema)
        reasons = [
            f"{target.name}: {count} rebuilt rows refer to missing rows: {key.violation}"
            for target in self._targets
            for key in references(tx.connection, staging, target, self._targets)
            if (count := breaks(tx.connection, staging.table(target), key))
        ]
        if reasons:
            raise ReloadRefused(reasons)

    def _merge(self, tx: Step, stager: FrameStager, staged: Sequence[Staged]) -> None:
        """Merge the staged rows into the rebuilt tables, in the order of the sinks."""
        staging = Staging(tx.run.staging_schema)
        rows = stager.rows(tx.connection, staging, [self._source], staged)
        rebuilt: Mapping[int, Target] = {feed.number: target for target in self._targets for feed in target.feeds}
        for target in by_sink(tx, self._source):
            fold_rows(tx, staging, target, rows)
            write_rows(tx, staging, target, rows, staging.table(rebuilt[target.feeds[0].number]))
            if tx.run.state == "compared":
                _touch(tx, staging, target, rows)
            if is_there(tx.connection, folded := folded_path(staging, target)):
                run(tx.connection, "DROP TABLE {table}", table=folded)
        for table in stager.tables:
            run(tx.connection, "DROP TABLE {table}", table=(staging.schema, table))

    def _require_none_replayed(self, tx: Step) -> None:
        """Raise ReloadRefused if a record that the rebuild omitted as a dead letter was replayed afterwards."""
        out, live = Staging(tx.run.staging_schema).left_out, dead_letter.c
        is_same = [
            live[column] == out.c[column] for column in ("consumer_group", "topic", "partition", "record_offset")
        ]
        ids = [position.topic_id for position in tx.positions()]
        replayed = select(out.c.topic, out.c.partition, out.c.record_offset).where(
            *is_same, live.state == State.REPLAYED.value, live.topic_id.in_(ids)
        )
        for row in tx.execute(replayed.limit(1)):
            record = f"{row.topic}/{row.partition} offset {row.record_offset}"
            reason = (
                f"{record}: a dead letter was replayed since the run was opened, and frames have staged its range "
                "without it: open another run"
            )
            raise ReloadRefused([reason])

    def _require_one_decision(self, tx: Step) -> None:
        """Raise ReloadRefused if a record failed in one attempt at its range, but not in another."""
        table, staged = Staging(tx.run.staging_schema).dead_letters, reload_staged.c
        failed = table.c
        within = [failed[column] == staged[column] for column in ("consumer_group", "topic", "partition")]
        within += [failed.record_offset >= staged.from_offset, failed.record_offset < staged.to_offset]
        counted = select(func.count()).select_from(table).where(*within).scalar_subquery()
        differing = select(staged.topic, staged.partition, staged.from_offset, staged.to_offset, staged.dead_letters)
        for row in tx.execute(differing.where(staged.run == tx.run.id, staged.dead_letters != counted).limit(1)):
            reason = (
                f"{row.topic}/{row.partition} [{row.from_offset}, {row.to_offset}): {row.dead_letters} records failed "
                "in one attempt at this range, and others in another: the codec does not decode the same records each "
                "time. Fix the codec, and open another run"
            )
            raise ReloadRefused([reason])


def _touch(tx: Step, staging: Staging, target: Target, rows: FrameRows) -> None:
    """Store the keys that were written since the comparison, because the merge must compare them again."""
    if (keys := rows.keys(target)) is not None:
        run(
            tx.connection,
            "INSERT INTO {touched} ({key}) SELECT DISTINCT {key} FROM ({keys}) AS staged",
            touched=(staging.schema, f"touched_{target.staged}"),
            key=names(target.key),
            keys=keys,
        )
