"""Spark's sink ``seekpoint``: publishes a stream's rows and the group's offsets in one transaction. Imports pyspark.

For each micro-batch that the source has planned, Spark makes a writer in a process on the driver's machine. The
micro-batch begins when Spark pickles this writer for the tasks, and ends when another process calls
:meth:`StreamWriter.commit` with the tasks' messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType
from sqlalchemy import Connection, Engine

from seekpoint.codecs import Bytes
from seekpoint.errors import ConfigError, Fenced, FrameFailed
from seekpoint.jobs.batch.open import Brokers
from seekpoint.jobs.batch.steps import BatchSteps
from seekpoint.jobs.frames.binding import BoundRows, bound_rows
from seekpoint.jobs.frames.frame_rows import FrameRows, StagedFrame
from seekpoint.jobs.frames.frame_stager import places_of, rows_plan
from seekpoint.jobs.frames.rows import FrameAttempt, RowsPlan, places, write
from seekpoint.jobs.frames.table_checks import checked_tables
from seekpoint.jobs.frames.under_claims import (
    STOPS,
    abandon,
    claimed,
    end_abandoned,
    open_run,
    publish_run,
    record_stops,
    release,
    require_reached,
    shown_ranges,
)
from seekpoint.jobs.spark.micro_batch import STREAM, take_plan
from seekpoint.jobs.spark.settings import resolved
from seekpoint.jobs.spark.sink_options import SinkOptions, sink_options
from seekpoint.jobs.spark.task import task_plan
from seekpoint.jobs.staging.savepoints import nothing_left_out
from seekpoint.jobs.staging.stage import (
    Staged,
    Task,
    begin_staging,
    left_out_of,
    new_attempt,
    staging_run,
    store_attempt,
)
from seekpoint.jobs.staging.task_errors import error_as_text, error_of
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import PipelineSource, aimed_pipeline
from seekpoint.kafka.range_checks import end_epochs
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Claim, GroupLedger
from seekpoint.ledger.schema_revision import check
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine, schema_translation
from seekpoint.records import Partition
from seekpoint.runs.run import Driver, Run, Tx, transaction
from seekpoint.sinks import Append, Upsert
from seekpoint.sinks.base import ORIGINS

_NAME = "writeStream"  # the origin of the rows, in messages


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """The writer of rows with these columns. Raises ConfigError for invalid options and columns."""
    if overwrite:
        raise ConfigError("outputMode complete writes all rows again with each micro-batch: leave it at append")
    sink = sink_options(options)
    if missing := [column for column in ORIGINS if column not in schema.names]:
        raise ConfigError(
            f"{_NAME} needs the record's {', '.join(ORIGINS)} in its rows, and {missing[0]} is not among "
            f"{', '.join(schema.names)}: keep these columns. For aggregates, which have no record, use a SparkPipeline "
            "with Accumulate"
        )
    if STREAM not in schema["offset"].metadata or not isinstance(schema["topic"].dataType, StringType):
        raise ConfigError(
            "the columns topic, partition and offset are not those of spark.readStream.format('seekpoint'): read the "
            "stream with that source, and keep these columns unchanged"
        )
    return StreamWriter(sink, schema)


@dataclass(frozen=True, slots=True)
class Begun:
    """A micro-batch that has begun: the data for its tasks and its commit.

    ``run`` is None, and nothing is claimed, if the ledger's positions have passed all ranges. ``leader_epochs`` are
    those at the logs' ends before the tasks read.
    """

    ranges: tuple[Range, ...]
    kafka: Mapping[str, Any]
    run: UUID | None = None
    owner: UUID | None = None
    claims: tuple[Claim, ...] = ()
    leader_epochs: Mapping[Partition, int | None] = field(default_factory=dict)

    @property
    def by_partition(self) -> dict[Partition, Claim]:
        """The claims by partition."""
        return {claim.partition: claim for claim in self.claims}

    @property
    def ends(self) -> dict[Partition, int]:
        """Each partition's position after the micro-batch: the range's end or the claimed position, if later."""
        planned = {range_.partition: range_.end for range_ in self.ranges}
        claims = self.by_partition.items()
        return {partition: max(planned.get(partition, 0), claim.next_offset) for partition, claim in claims}


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's message to the commit: its committed attempt, the error that ends the run, or neither (no rows)."""

    begun: Begun
    attempt: FrameAttempt | None = None
    ending: str | None = None


class StreamWriter(DataSourceStreamArrowWriter):
    """Begins a micro-batch when Spark pickles the writer; publishes it at the commit. The constructor does no I/O."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def __reduce__(self) -> tuple[Any, ...]:
        return RowsWriter, self._for_tasks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Never called: tasks use a :class:`RowsWriter`."""
        raise NotImplementedError

    @cached_property
    def _for_tasks(self) -> tuple[Any, ...]:  # cached, because Spark pickles the writer twice
        plan = take_plan(self._schema["offset"].metadata[STREAM])
        if plan is None:
            raise ConfigError(
                "the stream has planned nothing for this micro-batch: its rows come from a query that keeps state, or "
                "from another stream. Write rows of one spark.readStream.format('seekpoint'), each made from one "
                "record, and load a DataFrame for each query"
            )
        if not plan.whole:
            raise ConfigError("the stream reads some partitions of a topic, by assign: subscribe to the topic")
        begun = Begun(tuple(plan.ranges), plan.kafka)
        with self._group(begun) as group:
            return group.begin(begun)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 -- Spark's
        """Publish rows and offsets in one transaction. Raises Fenced if another owner has claimed the group."""
        begun, written = _begun(messages)
        if begun is None:
            raise ConfigError("Spark commits a micro-batch without a message from any task: start the query again")
        if begun.run is not None:
            with self._group(begun) as group:
                group.publish(begun, written)
        else:
            _raise_ending(written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 -- Spark's
        """Drop the staged rows; if no task has answered, the group's next micro-batch will."""
        begun, _ = _begun(messages)
        if begun is not None and begun.run is not None:
            with self._group(begun) as group:
                group.abort(begun)

    @contextmanager
    def _group(self, begun: Begun) -> Iterator[WrittenGroup]:
        engine = postgres_engine(self._options.database.value())
        try:
            yield WrittenGroup(engine, self._options, self._schema, begun)
        finally:
            engine.dispose()


class RowsWriter(DataSourceStreamArrowWriter):
    """Writes one task's rows, in an executor; omits rows of records that the ledger's positions have passed.

    ``run`` describes the run and the servers; ``plan`` says how rows are written.
    """

    def __init__(self, begun: Begun, run: Mapping[str, Any], plan: RowsPlan) -> None:
        self._begun, self._run, self._plan = begun, run, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Copy the rows to a new table. Rows of records outside the micro-batch are an error."""
        if self._begun.run is not None:
            return Written(self._begun, *write(self._run, self._plan, iterator, partial(_new, self._begun, self._plan)))
        try:
            for batch in iterator:
                _places(self._plan, batch)
        except FrameFailed as error:
            return Written(self._begun, ending=error_as_text(error))
        return Written(self._begun)


class WrittenGroup:
    """Begins, publishes and aborts micro-batches of a sink's group, in one process on the driver's machine."""

    def __init__(self, engine: Engine, options: SinkOptions, schema: StructType, begun: Begun) -> None:
        self._engine, self._options, self._limits = engine, options, Limits()
        topics = sorted({range_.partition.topic for range_ in begun.ranges})
        sink: Any = Upsert(options.table, key=options.key) if options.key else Append(options.table)
        self._rows: BoundRows = replace(bound_rows(_NAME, sink, schema, topics), has_topics=True)
        pipeline: Pipeline[Any, Any] = Pipeline(options.group, topics=topics, value=Bytes(), sinks=[sink])
        self._source = PipelineSource("", aimed_pipeline(pipeline, [self._rows.sink]))
        self._ledger = GroupLedger(
            engine,
            options.group,
            schema=options.schema,
            version=pipeline.version,
            tables=self._source.pipeline.tables_by_topic(schema_translation(engine)),
            limits=self._limits,
        )
        if begun.owner is not None:
            self._ledger.owner = begun.owner  # the process that began the micro-batch made the claims

    def begin(self, begun: Begun) -> tuple[Any, ...]:
        """Claim the partitions and open the micro-batch's run; returns the arguments of :class:`RowsWriter`.

        Raises RangeLost if a range begins after the ledger's position, and the errors of a claim.
        """
        plan = rows_plan(self._rows, self._checked_table(), begun.ranges)
        positions = {row.partition: (row.topic_id, row.next_offset) for row in self._ledger.read()}
        if all(_is_passed(range_, positions.get(range_.partition)) for range_ in begun.ranges):
            return begun, {}, plan
        brokers = Brokers(resolved(begun.kafka), self._source.pipeline, self._limits.kafka_timeout)
        starts = {range_.partition: range_.start for range_ in begun.ranges}

        def start(topic: str) -> dict[Partition, int]:
            """A new group's positions: the query's start offsets; 0 for partitions added since the query planned."""
            return {partition: starts.get(partition, 0) for partition in brokers.partitions if partition.topic == topic}

        claims: dict[Partition, Claim] = {}
        try:
            claimed(self._ledger, brokers, brokers.partitions, claims.update, threading.Event().wait, start=start)
            end_abandoned(self._engine, self._options.schema, self._options.group, self._limits)
            require_reached(self._options.group, claims, begun.ranges)
            epochs = end_epochs(resolved(begun.kafka), claims)
            begun = replace(begun, owner=self._ledger.owner, claims=tuple(claims.values()), leader_epochs=epochs)
            driver = open_run(
                self._engine, self._options.schema, self._source, claims=claims, ends=begun.ends, limits=self._limits
            )
            begin_staging(driver, [self._source])
        except BaseException:
            release(self._ledger, claims.values())
            raise
        run = task_plan(self._options.database, self._options.schema) | {"run": str(driver.run.id), "job": _NAME}
        return replace(begun, run=driver.run.id), run, plan

    def publish(self, begun: Begun, messages: Sequence[Written]) -> None:
        """Publish the rows of the attempts in these messages, and the offsets.

        Raises the errors of :func:`publish_run`.
        """
        claims, driver = begun.by_partition, self._driver(begun)
        if driver is None:
            raise Fenced("another query, driver or worker has claimed the group meanwhile, and dropped the staged rows")
        stager = _ByMessages(self._engine, self._options.schema, self._rows, begun.ranges, messages)
        steps = BatchSteps(
            self._source,
            resolved(begun.kafka),
            stager,
            rows_of=stager.rows,
            is_recorded=False,
            leader_epochs=begun.leader_epochs,
        )
        try:
            publish_run(driver, steps, claims, shown_ranges(claims, begun.ends), [self._rows.name])
        except STOPS as error:
            record_stops(self._ledger, claims, error)
            raise
        finally:
            release(self._ledger, claims.values())
        steps.end(driver)

    def abort(self, begun: Begun) -> None:
        """End the run, unless it was published, and drop what it has staged."""
        if (driver := self._driver(begun)) is not None:
            with suppress(Fenced):  # another driver has ended the run
                abandon(driver, Fenced("Spark has aborted the micro-batch"))
        release(self._ledger, begun.claims)

    def _checked_table(self) -> tuple[str, str]:
        """Check ledger, columns and privileges; returns the table's path. Raises ConfigError and SchemaMismatch."""
        with transaction(self._engine, self._options.schema) as tx:
            check(tx.connection, self._options.schema)
            return checked_tables(tx.connection, self._source, [self._rows])[0].path

    def _driver(self, begun: Begun) -> Driver | None:
        """The driver of the micro-batch's run; None if the run no longer exists."""
        assert begun.run is not None
        with transaction(self._engine, self._options.schema) as tx:
            run = tx.get_run(begun.run)
        return None if run is None else Driver(self._engine, self._options.schema, run, self._limits)


class _ByMessages:
    """Provides the tasks' rows to the batch's steps at the commit. Every range counts as staged."""

    def __init__(
        self, engine: Engine, schema: str, rows: BoundRows, ranges: Sequence[Range], messages: Sequence[Written]
    ) -> None:
        self._engine, self._schema, self._messages = engine, schema, messages
        attempts = [message.attempt for message in messages if message.attempt is not None]
        columns = tuple(into for _, into in rows.written)
        self._staged = {0: StagedFrame(rows.name, columns, attempts, places_of(ranges))}

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Record the ranges as staged. Raises the error if a task's message has one."""
        _raise_ending(self._messages)
        for task in tasks:
            partition, start, end = task.range.partition, task.range.start, task.range.end
            staged = Staged(new_attempt(task.range), task.group, partition, start, end, end - start, (), dead_letters=0)
            with transaction(self._engine, self._schema) as tx:
                store_attempt(tx, run.id, staged)
            yield staged

    def rows(
        self, connection: Connection, staging: Staging, sources: Sequence[PipelineSource], chosen: Sequence[Staged], /
    ) -> FrameRows:
        """The rows of the attempts that the messages name."""
        return FrameRows(connection, staging, sources, chosen, self._staged)


def _begun(messages: Sequence[WriterCommitMessage | None]) -> tuple[Begun | None, list[Written]]:
    """The micro-batch of these messages, None if no task has answered; and the tasks' messages."""
    written = [message for message in messages if isinstance(message, Written)]
    return (written[0].begun if written else None), written


def _raise_ending(messages: Sequence[Written]) -> None:
    """Raise the error if a message has one."""
    if ending := next((message.ending for message in messages if message.ending), None):
        raise error_of(ending)


def _is_passed(range_: Range, position: tuple[UUID, int] | None) -> bool:
    return position is not None and position[0] == range_.topic_id and position[1] >= range_.end


def _places(plan: RowsPlan, batch: pa.RecordBatch) -> pa.Array:
    """As :func:`places`; FrameFailed also names the planned ranges."""
    try:
        return places(plan, plan.ranges or (), batch)
    except FrameFailed as error:
        planned = ", ".join(f"{topic}/{number} [{start}, {end})" for topic, number, start, end in plan.ranges or ())
        raise FrameFailed(
            f"{error.text}, and write each row in the micro-batch of its record: a query that keeps state, and a "
            f"union of streams, may write it later. The planned ranges are {planned}"
        ) from error


def _new(begun: Begun, plan: RowsPlan, tx: Tx) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A filter for rows of records that the group has neither passed nor dead-lettered."""
    assert begun.run is not None
    run, claims = staging_run(tx, begun.run), begun.by_partition
    of_places = [(claims[Partition(topic, number)], end) for topic, number, _, end in plan.ranges or ()]
    first = pa.array([claim.next_offset for claim, _ in of_places], pa.int64())
    left_out = [
        left_out_of(
            tx.connection,
            Staging(run.staging_schema),
            run.groups[0],
            Range(claim.partition, claim.topic_id, claim.next_offset, max(end, claim.next_offset)),
        )
        for claim, end in of_places
    ]

    def new(batch: pa.RecordBatch) -> pa.RecordBatch:
        place = _places(plan, batch)
        is_new = pc.greater_equal(batch.column("offset"), pc.take(first, place))
        if any(leaves_out is not nothing_left_out for leaves_out in left_out):
            rows = zip(place.to_pylist(), batch.column("offset").to_pylist(), strict=True)
            is_new = pc.and_(is_new, pa.array([not left_out[number](_Offset(offset)) for number, offset in rows]))
        return batch.filter(is_new)

    return new


class _Offset(NamedTuple):
    """A record with only its offset, because a :data:`LeftOut` predicate reads nothing else."""

    offset: int
