"""Stages a micro-batch: Spark reads the records and runs the frames, and tasks copy the rows into attempt tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from seekpoint.errors import ConfigError, FrameFailed, KafkaUnavailable, SeekpointError
from seekpoint.jobs.frames.binding import BoundRows
from seekpoint.jobs.frames.bound_pipeline import BoundPipeline
from seekpoint.jobs.frames.frame_rows import FrameRows, StagedFrame
from seekpoint.jobs.frames.inputs import exported, tasks_of
from seekpoint.jobs.frames.records import RecordsSource
from seekpoint.jobs.frames.rows import RowsPlan, attempts, consumed, written
from seekpoint.jobs.spark.job import EXECUTOR_TIMEOUT, Executors, SparkJob
from seekpoint.jobs.spark.session import slots_of
from seekpoint.jobs.spark.settings import carried_range
from seekpoint.jobs.spark.task import is_input_changed, is_trouble
from seekpoint.jobs.staging.stage import Staged, Task, all_staged
from seekpoint.jobs.staging.task_errors import task_errors
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import PipelineSource, targets
from seekpoint.kafka.ranges import Range, split_ranges
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition, one_line
from seekpoint.runs.run import Run, transaction
from seekpoint.sinks.accumulate.accumulate import Accumulate

logger = logging.getLogger(__name__)

MAX_SNAPSHOTS = 3  # attempts at a micro-batch during which its inputs are rewritten
CHECK_SECONDS = 1.0  # seconds between two checks of a job, each with a heartbeat of the driver
LOG_SECONDS = 10.0  # seconds between two log lines about a running job
_NO_EXECUTOR = "Nothing of the micro-batch is written, and the positions have not moved: add executors, or free some"


class FrameStager:
    """Stages the frames' rows of one micro-batch, and provides them to the batch's steps.

    ``on_check`` is called repeatedly while a job runs, and may raise.
    """

    def __init__(self, bound: BoundPipeline, *, on_check: Callable[[], None]) -> None:
        self._spark, self._engine, self._source, self._frames = bound.spark, bound.engine, bound.source, bound.frames
        self._inputs, self._plan, self._on_check = bound.inputs, bound.plan, on_check
        self._range_records = bound.range_records
        self._staged: dict[int, StagedFrame] = {}

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Stage these ranges' rows; yields one attempt per part of a range. Raises FrameFailed with the ranges."""
        if not tasks:
            return
        plan = {**self._plan, "run": str(run.id), "job": f"seekpoint-{uuid4().hex}"}
        ranges = [task.range for task in tasks]
        packs = self._packs(ranges)
        try:
            self._write(plan, packs)
        except (FrameFailed, ConfigError) as error:
            within = ", ".join(map(str, ranges))
            problem = f"{error.text}. Nothing of {within} is written, and the positions have not moved"
            raise (FrameFailed if isinstance(error, FrameFailed) else ConfigError)(problem) from error
        read = self._read(run.id)
        if unread := [piece for piece in chain.from_iterable(packs) if piece not in read]:
            # Spark may not read records of which it knows that they make no rows, but must find their dead letters
            # (I4).
            self._run(plan, consumed(self._records(plan, self._packs(unread))), "records that no frame reads")
        yield from self._read(run.id).values()

    def rows(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged], /
    ) -> FrameRows:
        """The staged rows of the attempts that tasks have returned."""
        return FrameRows(connection, staging, sources, chosen, self._staged)

    @property
    def tables(self) -> list[str]:
        """The names of the attempts' tables in the run's schema."""
        return [attempt.name for frame in self._staged.values() for attempt in frame.attempts]

    def _write(self, plan: Mapping[str, Any], packs: Sequence[Sequence[Range]]) -> None:
        if not self._inputs:
            self._write_frames(plan, packs, {})
            return
        attempt = 1
        while True:
            try:
                self._write_in_snapshot(plan, packs)
                return
            except Exception as error:
                if attempt == MAX_SNAPSHOTS or not is_input_changed(error):
                    raise
                logger.info("an input was rewritten since the micro-batch's snapshot: staging again in a new snapshot")
                attempt += 1

    def _write_in_snapshot(self, plan: Mapping[str, Any], packs: Sequence[Sequence[Range]]) -> None:
        with exported(self._engine, plan["schema"], self._inputs) as (snapshot, connection):
            reading = {**plan, **snapshot}
            tasks = {input_.name: tasks_of(connection, input_, self._spark) for input_ in self._inputs}
            inputs = {input_.name: input_.frame(self._spark, reading, tasks[input_.name]) for input_ in self._inputs}
            self._write_frames(plan, packs, inputs)

    def _write_frames(
        self, plan: Mapping[str, Any], packs: Sequence[Sequence[Range]], inputs: Mapping[str, DataFrame]
    ) -> None:
        paths, ranges = self._paths(), list(chain.from_iterable(packs))
        records = self._records(plan, packs)
        is_shared = len(self._frames) > 1
        if is_shared:
            records.persist()
        try:
            for number, frame in enumerate(self._frames):
                rows = frame.rows(records, inputs)
                frame.require_merging(rows)  # a function may return a different plan each time
                answers = written(rows, plan, rows_plan(frame, paths[number], ranges))
                try:
                    frame_attempts = attempts(self._run(plan, answers, frame.name))
                except SeekpointError:
                    raise
                except Exception as error:
                    if isinstance(error, ConnectionError) or is_trouble(error) or is_transient(error):
                        raise
                    raise FrameFailed(f"{frame.name} failed: {one_line(error)}") from error
                columns = tuple(into for _, into in frame.written)
                self._staged[number] = StagedFrame(frame.name, columns, frame_attempts, places_of(ranges))
        finally:
            if is_shared:
                records.unpersist()

    def _records(self, plan: Mapping[str, Any], packs: Sequence[Sequence[Range]]) -> DataFrame:
        tasks = [list(map(carried_range, pack)) for pack in packs]
        return RecordsSource.frame(self._spark, {**plan, "tasks": tasks})

    def _packs(self, ranges: Sequence[Range]) -> list[list[Range]]:
        return split_ranges(ranges, range_records=self._range_records, slots=slots_of(self._spark))

    def _run(self, plan: Mapping[str, Any], answers: DataFrame, name: str) -> list[Any]:
        """The answers of a job's tasks. Raises the error that a task has reported instead of Spark's exception."""
        shown = f"{plan['group']}: {name}, run {plan['run']}"
        job = SparkJob(self._spark, answers, plan["job"], shown)
        executors, logged = Executors(self._spark, EXECUTOR_TIMEOUT, _NO_EXECUTOR), monotonic()
        try:
            while not job.wait(CHECK_SECONDS):
                self._on_check()
                if monotonic() - logged >= LOG_SECONDS:
                    logged = monotonic()
                    done, begun = job.tasks()
                    progress = f"{done} of {begun} tasks are done" if begun else "no task has started"
                    logger.info("group %s: %s", shown, progress)
                self._raise_reported(plan)
                executors.check()
        except SeekpointError:
            raise
        except Exception:
            self._raise_reported(plan)
            raise
        finally:
            job.end()
        return job.answers()

    def _raise_reported(self, plan: Mapping[str, Any]) -> None:
        with transaction(self._engine, plan["schema"]) as tx:
            run = tx.get_run(UUID(plan["run"]))
            if run is not None and (errors := task_errors(tx, run.staging_schema, plan["job"])):
                raise errors[0]

    def _read(self, run: UUID) -> dict[Range, Staged]:
        """The completely read ranges, with one attempt each.

        Raises KafkaUnavailable if two attempts read different records, because rows may come from either.
        """
        with transaction(self._engine, self._plan["schema"]) as tx:
            ids = {position.partition: position.topic_id for position in tx.positions_of(run)}
            read: dict[Range, Staged] = {}
            for attempt in all_staged(tx, run):
                first = read.setdefault(
                    Range(attempt.partition, ids[attempt.partition], attempt.start, attempt.end), attempt
                )
                if (first.records, first.dead_letters) != (attempt.records, attempt.dead_letters):
                    raise KafkaUnavailable(
                        f"{attempt.partition} [{attempt.start}, {attempt.end}) was read twice, with {first.records} "
                        f"and {attempt.records} records, {first.dead_letters} and {attempt.dead_letters} dead letters, "
                        "perhaps because the log was compacted meanwhile. Rows may come from both reads, so nothing of "
                        "the micro-batch is written"
                    )
            return read

    def _paths(self) -> dict[int, tuple[str, str]]:
        with transaction(self._engine, self._plan["schema"]) as tx:
            return {
                feed.number: target.path for target in targets(tx.connection, [self._source]) for feed in target.feeds
            }


def rows_plan(frame: BoundRows, path: tuple[str, str], ranges: Sequence[Range]) -> RowsPlan:
    """The plan for tasks that write the frame's rows, for records of these ranges, to the table at ``path``."""
    spans: dict[Partition, tuple[int, int]] = {}
    for range_ in ranges:
        start, end = spans.get(range_.partition, (range_.start, range_.end))
        spans[range_.partition] = min(start, range_.start), max(end, range_.end)
    sink = frame.sink
    sums = sink if isinstance(sink, Accumulate) else None
    return RowsPlan(
        frame=frame.name,
        table=path,
        columns=frame.written,
        types=frame.types,
        needed=getattr(sink, "needed", ()) if sums is None else sums.key,
        ranges=[(*partition, *spans[partition]) for partition in places_of(ranges)] if frame.has_places else None,
        has_topics=frame.has_topics,
        is_placed=bool(sink.key) and sums is None,
        conversions=sink.conversions,
        sums=None if sums is None else sums.add,
        is_aggregated=frame.aggregates,
    )


def places_of(ranges: Sequence[Range]) -> list[Partition]:
    """The partitions of these ranges, sorted: the index of a partition is its *place*."""
    return sorted({range_.partition for range_ in ranges})
