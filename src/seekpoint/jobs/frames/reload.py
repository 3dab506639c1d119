"""Rebuilds the tables of a SparkPipeline from the log, and publishes the rebuilt rows at the stored offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from seekpoint.errors import ConfigError, FrameFailed, required
from seekpoint.jobs.frames.reload_plan import ReloadPlan, planned
from seekpoint.jobs.reload.bounded_cut_over import BoundedCutOver
from seekpoint.jobs.reload.compare import Report
from seekpoint.jobs.reload.cutover import CutOver
from seekpoint.jobs.reload.cutover_limits import MAX_DELETES, Bounds
from seekpoint.jobs.reload.open import open_run, require_strategy
from seekpoint.jobs.reload.reload import ENDS_RUN, refusal
from seekpoint.jobs.reload.take_over import require_its_versions, take_over
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.staging.consolidate import check_topics
from seekpoint.jobs.staging.stage import begin_staging
from seekpoint.jobs.tables.sql_templates import run as run_statement
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, Progress, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seekpoint.jobs.frames.bound_pipeline import BoundPipeline
    from seekpoint.jobs.frames.passes import FramePasses

MAX_WAIT = 30.0  # most seconds that the stream's COMMIT waits while Spark runs the last pass


class FrameReload:
    """Plans, opens, takes over and carries out reload runs of one SparkPipeline.

    ``bound`` is already bound. ``compared`` is called with the changes of a merge before they are published.
    """

    def __init__(
        self,
        bound: BoundPipeline,
        runs: Runs,
        *,
        bounds: Bounds,
        compared: Callable[[Report], object],
        progress: Progress,
    ) -> None:
        self._bound, self._compared, self._progress = bound, compared, progress
        self.runs, self.bounds = runs, bounds

    def plan(self, strategy: str = "merge") -> ReloadPlan:
        """The plan of a run, without changing anything. Raises the errors of :meth:`open`."""
        return planned(self._bound, self.runs, strategy, self.bounds)

    def open(self, strategy: str = "merge", *, actor: str | None = None, reason: str = "reload") -> Driver:
        """Record a new run at the group's current positions. Raises ReloadRefused with every reason against it."""
        require_strategy(strategy)
        return open_run(
            self.runs,
            self._bound.kafka,
            [self._bound.source],
            strategy=strategy,
            actor=operator(actor),
            reason=reason,
            bounds=self.bounds,
            of_frames=True,
        )

    def take_over(self, run: UUID) -> Driver:
        """Take over an open run in its present state.

        Raises ReloadOver if it has ended, ConfigError for another pipeline's run.
        """
        return take_over(self.runs, run, [self._bound.source], self._bound.kafka, of_frames=True)

    def run(self, driver: Driver) -> CutOver:
        """Carry out the remaining steps of a run, including the cut-over, and drop its staged tables."""
        from seekpoint.jobs.frames.passes import FramePasses  # noqa: PLC0415 -- pyspark

        require_its_versions(driver.run, [self._bound.source])
        with driver.ending((*ENDS_RUN, ConfigError, FrameFailed), refusal):
            if driver.run.state == "opened":
                begin_staging(driver, [self._bound.source])
            passes = FramePasses(driver, self._bound, self._progress)
            passes.make_tables()
            if driver.run.state == "staging":
                passes.follow()
                self._finish_tables(driver, passes)
            if driver.run.strategy == "merge" and driver.run.state == "catching_up":
                self._progress("comparing", 0, 0)
                passes.compare("catching_up")
                self._progress("comparing", 1, 1)
            outcome = self._cut_over(driver, passes)
        self.runs.drop(driver.run.id)
        return outcome

    def _finish_tables(self, driver: Driver, passes: FramePasses) -> None:
        """Check the live tables' foreign keys, and analyze the rebuilt tables, which have most of their rows by now."""
        with driver.step("staging") as tx:
            passes.require_references(tx)
            for target in passes.targets:
                run_statement(tx.connection, "ANALYZE {table}", table=Staging(tx.run.staging_schema).table(target))
            driver.transition(tx, "catching_up")

    def _cut_over(self, driver: Driver, passes: FramePasses) -> CutOver:
        def catch_up() -> None:
            passes.follow()
            check_topics(self._bound.kafka, driver)

        name = driver.run.pipelines[0] or "MODULE:NAME"
        cutting = BoundedCutOver(
            bounds=replace(self.bounds, resume=f"seekpoint spark reload {name} --resume {driver.run.id}"),
            compared=self._compared,
            progress=self._progress,
            catch_up=catch_up,
            last_pass=passes.last_pass,
        )
        return cutting.carry_out(driver, passes)


@dataclass(frozen=True, slots=True)
class FramesReloaded:
    """The result of a reload. ``run`` is its row in the ledger; ``compared`` is a merge's report; None for a swap."""

    run: Run
    cut_over: CutOver
    compared: Report | None


def reload(
    spark: SparkSession,
    pipeline: SparkPipeline | str,
    *,
    kafka: Mapping[str, Any],
    strategy: str = "merge",
    resume: UUID | None = None,
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    limits: Limits | None = None,
    range_records: int = MOST_OFFSETS,
    max_wait: float = MAX_WAIT,
    max_deletes: float = MAX_DELETES,
    allow_cascades: bool = False,
    allow_inheritance: bool = False,
    actor: str | None = None,
    reason: str = "reload",
    compared: Callable[[Report], object] | None = None,
    progress: Progress | None = None,
) -> FramesReloaded:
    """Rebuild a SparkPipeline's tables from the log, and publish the rows at exactly the stored offsets.

    The frames run over the log in passes and write to separate tables, as for :func:`verify`. The cut-over is one
    transaction: ``merge`` changes the live rows that differ, ``swap`` replaces the live tables with the rebuilt ones.
    A stream of the group continues; its COMMIT waits for the cut-over, at most ``max_wait`` seconds, while Spark
    applies the records since the last pass. A newer ``version`` takes effect with the cut-over: drivers of the older
    one end. Records that are now dead letters have no rows; records that this code cannot decode become dead letters of
    the group. Inputs are read as they are now: :func:`plan_reload` lists the tables that join them.

    ``resume`` is the id of a run that a crash or a transient error left open; the code must be the same. ``compared``,
    ``max_deletes``, ``allow_cascades`` and ``allow_inheritance`` are those of :class:`~seekpoint.jobs.Reload`, the
    other arguments those of :func:`run`.

    ReloadRefused with every reason why the tables cannot be rebuilt, FrameFailed, ConfigError, RangeLost and
    TopicRecreated end the run; CutOverRefused, KafkaUnavailable and errors of database and Spark leave it open. In each
    case no live table is changed. Raises ReloadOver if the run was aborted, or another driver has taken it over.
    """
    reports: list[Report] = []

    def store_report(report: Report) -> None:
        reports.append(report)
        if compared is not None:
            compared(report)

    bounds = Bounds(max_wait=max_wait, max_deletes=max_deletes, allow_cascades=allow_cascades,
                    allow_inheritance=allow_inheritance)  # fmt: skip
    with bound_pipeline(spark, pipeline, kafka, database=database, schema=schema, range_records=range_records) as bound:
        runs = Runs(bound.engine, schema, limits or Limits())
        reloading = FrameReload(
            bound, runs, bounds=bounds, compared=store_report, progress=progress or (lambda *_: None)
        )
        driver = reloading.take_over(resume) if resume else reloading.open(strategy, actor=actor, reason=reason)
        try:
            outcome = reloading.run(driver)
        except Exception as error:
            if driver.run.is_open:
                error.add_note(f"{driver.run.id} is left open: reload(…, resume=id) continues it, Runs.abort ends it")
            raise
        return FramesReloaded(runs.get(driver.run.id), outcome, reports[-1] if reports else None)


def plan_reload(
    spark: SparkSession,
    pipeline: SparkPipeline | str,
    *,
    kafka: Mapping[str, Any],
    strategy: str = "merge",
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    limits: Limits | None = None,
    max_wait: float = MAX_WAIT,
    allow_inheritance: bool = False,
) -> ReloadPlan:
    """The plan of what :func:`reload` would do now: its tables, the number of records, and the joined inputs.

    Changes and stores nothing. Raises the errors of :func:`reload` at its start, e.g. if a run is open.
    """
    bounds = Bounds(max_wait=max_wait, allow_inheritance=allow_inheritance)
    with bound_pipeline(spark, pipeline, kafka, database=database, schema=schema) as bound:
        return planned(bound, Runs(bound.engine, schema, limits or Limits()), strategy, bounds)


@contextmanager
def bound_pipeline(
    spark: SparkSession,
    pipeline: SparkPipeline | str,
    kafka: Mapping[str, Any],
    *,
    database: Env | str,
    schema: str,
    range_records: int = MOST_OFFSETS,
) -> Iterator[BoundPipeline]:
    """Bind the pipeline to a session and its servers for the block.

    Raises the errors of :meth:`BoundPipeline.bind`.
    """
    with required("Spark needs pyspark", "spark"):
        from seekpoint.jobs.frames.bound_pipeline import BoundPipeline  # noqa: PLC0415 -- pyspark
    bound = BoundPipeline(spark, pipeline, kafka, database=database, schema=schema, range_records=range_records)
    try:
        bound.bind()
        yield bound
    finally:
        bound.engine.dispose()
