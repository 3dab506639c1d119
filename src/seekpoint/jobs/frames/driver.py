"""The driver of a SparkPipeline's group: claims its partitions as a worker does, and runs micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from pyspark.sql import SparkSession

from seekpoint.errors import Fenced, KafkaUnavailable, RangeStuck
from seekpoint.jobs.batch.open import Brokers
from seekpoint.jobs.batch.steps import BatchDone, BatchSteps
from seekpoint.jobs.frames.bound_pipeline import BoundPipeline
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.frames.status import DriverStatus
from seekpoint.jobs.frames.under_claims import (
    STOPS,
    claimed,
    end_abandoned,
    open_run,
    publish_run,
    record_stops,
    release,
    require_reached,
    shown_ranges,
)
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.spark.task import is_trouble
from seekpoint.kafka.first_records import first_bytes, sampled_sizes
from seekpoint.kafka.ranges import MOST_OFFSETS, Range
from seekpoint.ledger import Claim, GroupLedger, Position
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import schema_translation
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition
from seekpoint.runs.run import transaction


class FrameDriver:
    """Runs micro-batches of one pipeline, one after another, on one thread. The constructor does no I/O.

    ``kafka`` is the workers' configuration, with :class:`Env` for passwords; ``database`` names the environment
    variable with the ledger's URL. A micro-batch has at most ``max_records`` offsets and about ``max_bytes``, a task at
    most ``range_records`` offsets.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: SparkPipeline | str,
        kafka: Mapping[str, Any],
        *,
        database: Env | str,
        schema: str = DEFAULT_SCHEMA,
        limits: Limits | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        range_records: int = MOST_OFFSETS,
    ) -> None:
        self._bound = BoundPipeline(
            spark, pipeline, kafka, database=database, schema=schema, range_records=range_records
        )
        self.engine, self._schema, self._max_records = self._bound.engine, schema, max_records
        self._limits, self._max_bytes = limits or Limits(), max_bytes
        self.stopping = threading.Event()
        self._claims: dict[Partition, Claim] = {}
        self._is_current = False  # whether the ledger had these claims at this driver's last check
        self._status: DriverStatus | None = None
        self.has_more = False

    @property
    def group(self) -> str:
        """The pipeline's group."""
        return self._bound.declared.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The pipeline's topics."""
        return tuple(self._bound.declared.pipeline.topics)

    def start(self) -> None:
        """Check frames and tables, before anything is claimed or read.

        Raises ConfigError if frames, inputs and tables do not fit together, FrameFailed if a frame raises,
        SchemaMismatch for a ledger of another revision, and the errors of database and brokers.
        """
        self._bound.bind()
        declared = self._bound.source.pipeline
        self.ledger = GroupLedger(
            self.engine,
            self.group,
            schema=self._schema,
            version=declared.version,
            tables=declared.tables_by_topic(schema_translation(self.engine)),
            limits=self._limits,
        )
        self._brokers()
        self._status = DriverStatus(self._bound.spark, self.ledger, declared, self._bound.kafka)
        self.show()

    def wait(self, seconds: float, state: str, trouble: str | None) -> None:
        """Wait for these seconds or until the stop, and show the driver's state meanwhile."""
        until = monotonic() + seconds
        self.show(state, trouble)
        while (remaining := until - monotonic()) > 0 and not self.stopping.wait(min(remaining, 1.0)):
            self.show(state, trouble)

    def end(self) -> None:
        """Release the partitions, show that the driver has ended, and close its connections."""
        claims, self._claims, self._is_current = self._claims, {}, False
        try:
            if claims:
                release(self.ledger, claims.values())
            if self._status is not None:
                self._status.end()
        finally:
            self.engine.dispose()

    def offsets(self) -> dict[str, int]:
        """The present positions in the pipeline's topics."""
        return {str(row.partition): row.next_offset for row in self._positions()}

    def _positions(self) -> list[Position]:
        """The group's positions in the pipeline's topics. (In other topics the owner may never change.)"""
        return [row for row in self.ledger.read() if row.partition.topic in self.topics]

    def may_pass(self, error: Exception) -> bool:
        """Whether the trouble may be over by the next micro-batch: database, brokers or executors did not answer."""
        # Only this exact type: py4j raises subclasses of ConnectionError if Spark's JVM has ended, which is permanent.
        is_away = isinstance(error, KafkaUnavailable | RangeStuck) or type(error) is ConnectionError
        return is_away or is_trouble(error) or is_transient(error)

    def ends(self) -> dict[Partition, int]:
        """The end offsets."""
        return self._brokers().ends()

    def catch_up(self, planned: Sequence[Range]) -> None:
        """Apply those records of these ranges that the ledger's positions have not passed.

        Raises RangeLost if a range begins after the ledger's position, TopicRecreated for another topic id.
        """
        while self.step({range_.partition: range_.end for range_ in planned}, planned) is not None:
            pass

    def step(self, ends: Mapping[Partition, int] | None = None, planned: Sequence[Range] = ()) -> BatchDone | None:
        """Run one micro-batch, at most up to ``ends``; returns None if there are no new records.

        Raises Fenced, with nothing written, if another driver or worker has claimed the partitions, or an operator has
        reset or paused them. Raises FrameFailed if a frame raises or makes rows that cannot be written, GroupPaused if
        the group is paused when it claims, and the other errors of a claim and of reading the log.
        """
        brokers = self._brokers()
        try:
            self._claim(brokers)
            require_reached(self.group, self._claims, planned)
            bounds = None if ends is None else {partition: ends.get(partition, 0) for partition in self._claims}
            last = brokers.plan(self._claims, bounds)
            width = sum(max(last[partition] - claim.next_offset, 0) for partition, claim in self._claims.items())
            self.has_more = self._max_records is not None and width >= self._max_records
            if width and self._max_bytes is not None:
                last = self._within_bytes(last, self._max_bytes)
            return self._apply(last) if width else None
        except BaseException:
            self._is_current = False
            raise

    def _within_bytes(self, planned: Mapping[Partition, int], max_bytes: int) -> dict[Partition, int]:
        """The ends of the partitions' ranges, reduced to about ``max_bytes`` in total."""
        ranges = [
            Range(partition, claim.topic_id, claim.next_offset, planned[partition])
            for partition, claim in sorted(self._claims.items())
            if planned[partition] > claim.next_offset
        ]
        first = first_bytes(ranges, sampled_sizes(self._bound.kafka, ranges), max_bytes)
        self.has_more = self.has_more or first != ranges
        starts = {partition: claim.next_offset for partition, claim in self._claims.items()}
        return starts | {range_.partition: range_.end for range_ in first}

    def show(self, state: str = "running", trouble: str | None = None) -> None:
        """Store the driver's state for operators, if due."""
        if self._status is not None:
            self._status.show(self._claims, state, trouble)

    def is_owned_elsewhere(self) -> bool:
        """Whether another driver or worker has claimed partitions since this one did."""
        return any(row.owner not in {None, self.ledger.owner} for row in self._positions())

    # -- claims -----------------------------------------------------------------------------------------

    def _brokers(self) -> Brokers:
        return Brokers(self._bound.kafka, self._bound.source.pipeline, self._limits.kafka_timeout, self._max_records)

    def _claim(self, brokers: Brokers) -> None:
        """Claim partitions that are not claimed yet. Raises Fenced if the ledger has a newer claim of a partition."""
        claims = self._claims if self._is_current else {}
        tokens = {row.partition: row.token for row in self.ledger.read()} if claims else {}
        for partition, claim in claims.items():
            if tokens.get(partition) != claim.token:
                raise Fenced(f"{partition} was claimed, reset or paused since this driver claimed it")
        unclaimed = [partition for partition in brokers.partitions if partition not in claims]
        # Keeps earlier claims until the new ones are granted, and granted claims even if others are refused: end()
        # releases all of them, so that the next claim does not count a crash.
        claimed(self.ledger, brokers, unclaimed, self._claims.update, self.stopping.wait)
        if not self._is_current:
            self._claims = {partition: self._claims[partition] for partition in brokers.partitions}
            end_abandoned(self.engine, self._schema, self.group, self._limits)
            self._is_current = True

    # -- one micro-batch --------------------------------------------------------------------------------

    def _apply(self, ends: Mapping[Partition, int]) -> BatchDone:
        driver = open_run(
            self.engine, self._schema, self._bound.source, claims=self._claims, ends=ends, limits=self._limits
        )

        def heartbeat() -> None:
            driver.heartbeat()
            self.show()

        stager = FrameStager(self._bound, on_check=heartbeat)
        steps = BatchSteps(self._bound.source, self._bound.kafka, stager, rows_of=stager.rows, is_recorded=False)
        within = shown_ranges(self._claims, ends)
        try:
            publish_run(driver, steps, self._claims, within, [frame.name for frame in self._bound.frames])
        except STOPS as error:
            record_stops(self.ledger, self._claims, error)
            raise
        with transaction(self.engine, self._schema) as tx:
            passed = {position.partition: position.end_offset for position in tx.positions_of(driver.run.id)}
        self._claims = {partition: _moved(claim, passed[partition]) for partition, claim in self._claims.items()}
        return steps.end(driver)


def _moved(claim: Claim, to: int) -> Claim:
    """The claim after the micro-batch."""
    return replace(
        claim, next_offset=to, leader_epoch=None, unreleased=0, attempt=None, suspect_end=None, crashed_part_end=None
    )
