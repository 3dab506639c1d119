"""Compares a SparkPipeline's tables with the rows that its frames make from the log, at the same offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seekpoint.errors import ConfigError, FrameFailed
from seekpoint.jobs.frames.reload import bound_pipeline
from seekpoint.jobs.reload.compare import Report
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.reload.open import open_run
from seekpoint.jobs.reload.reload import ENDS_RUN, refusal
from seekpoint.jobs.spark.settings import Env
from seekpoint.jobs.staging.stage import begin_staging
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.runs.manage_runs import Runs, ending
from seekpoint.runs.run import Progress, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from seekpoint.jobs.frames.bound_pipeline import BoundPipeline


@dataclass(frozen=True, slots=True)
class FramesVerified:
    """The result of a verification. ``run`` is its row in the ledger; ``report`` has counts, and samples of rows.

    ``differences`` has a DataFrame for each table that differs, by the table's name in the report. It has one row for
    each differing row: its kind (missing, extra, different), and three maps of columns to Postgres' texts: the key, the
    live row (null if it is missing) and the rebuilt one (null if it is extra). Spark's executors keep the DataFrame's
    rows as long as the session; save them if you need them longer.
    """

    run: Run
    report: Report
    differences: Mapping[str, DataFrame]


def verify(
    spark: SparkSession,
    pipeline: SparkPipeline | str,
    *,
    kafka: Mapping[str, Any],
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    limits: Limits | None = None,
    range_records: int = MOST_OFFSETS,
    actor: str | None = None,
    reason: str = "verify",
    progress: Progress | None = None,
) -> FramesVerified:
    """Run a SparkPipeline's frames over the log up to the group's positions, and compare with the live tables.

    Rows are staged in separate tables, which are dropped at the end; live tables do not change, and a stream of the
    group continues. If the stream has no pause between micro-batches, the COMMIT of one waits while the frames process
    the records since the last pass. Records that are now dead letters have no rows in the rebuilt tables. Inputs are
    read as they are now; a table's :class:`Difference` lists them in ``inputs``. The arguments are those of
    :func:`run`; ``progress`` is called with the current activity, the number of records done, and their total (0 if
    unknown).

    Only the run's row stays in the ledger, as verified, or aborted after an interruption. Raises ReloadRefused with
    every reason why the tables cannot be compared now; ConfigError and FrameFailed as :func:`run` does; RangeLost if
    the log no longer has the records; TopicRecreated if a topic was created again; and the errors of brokers, database
    and Spark.
    """
    with bound_pipeline(spark, pipeline, kafka, database=database, schema=schema, range_records=range_records) as bound:
        runs = Runs(bound.engine, schema, limits or Limits())
        return _verify(bound, runs, operator(actor), reason, progress or (lambda *_: None))


def _verify(bound: BoundPipeline, runs: Runs, actor: str, reason: str, progress: Progress) -> FramesVerified:
    from seekpoint.jobs.frames.differences import DifferingRows  # noqa: PLC0415 -- pyspark
    from seekpoint.jobs.frames.passes import FramePasses  # noqa: PLC0415 -- pyspark

    driver = open_run(
        runs,
        bound.kafka,
        [bound.source],
        strategy="verify",
        actor=actor,
        reason=reason,
        bounds=Bounds(),
        of_frames=True,
    )
    with ending(runs, driver, f"{reason}: interrupted before the tables were compared"):
        with driver.ending((*ENDS_RUN, ConfigError, FrameFailed), refusal):
            begin_staging(driver, [bound.source])
            passes = FramePasses(driver, bound, progress)
            passes.make_tables()
            passes.follow()
            rows = DifferingRows(bound)
            report = passes.compare("staging", rows.store)
            differences = rows.frames(report)
        with driver.step("compared") as tx:
            driver.transition(tx, "verified")
    joined = {
        target.name: {name for feed in target.feeds for name in bound.frames[feed.number].frame.inputs}
        for target in passes.targets
    }
    tables = tuple(replace(table, inputs=tuple(sorted(joined[table.table]))) for table in report.tables)
    return FramesVerified(runs.get(driver.run.id), replace(report, tables=tables), differences)
