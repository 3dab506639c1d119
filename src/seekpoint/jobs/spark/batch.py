"""A batch whose ranges are staged by Spark's tasks: what is new, up to the stable ends of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.jobs.batch import BatchDone, BatchJob
from seekpoint.jobs.run import Progress
from seekpoint.jobs.spark.settings import Env, portable, resolved
from seekpoint.jobs.spark.stager import SparkStager
from seekpoint.jobs.staging.consolidate import RANGE
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.engine import postgres_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def batch(
    spark: SparkSession,
    pipeline: str,
    kafka: Mapping[str, Any],
    *,
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    reason: str = "batch",
    pause: bool = False,
    resume: UUID | None = None,
    limits: Limits | None = None,
    actor: str | None = None,
    progress: Progress | None = None,
    range_records: int = RANGE,
    copy_sessions: int | None = None,
    max_records: int | None = None,
) -> BatchDone:
    """Apply everything that is new in a pipeline's topics, by Spark's tasks, in one transaction with the offsets.

    ``pipeline`` is ``module:name``: tasks import it. ``kafka``, ``database``, ``schema``, ``range_records`` and
    ``copy_sessions`` are as for :class:`SparkStager`. The group's workers wait meanwhile: ``pause=True`` stops those
    that are at it, otherwise a group that has workers is refused. ``resume`` continues the run of that id, whose driver
    is gone. ``max_records`` is how many offsets a new batch passes at most: the next one begins there.

    Raises as :meth:`seekpoint.jobs.batch.BatchJob.run` does, ConfigError, and Spark's own exception where a task
    failed too often: the run is open then, and its note says how to resume it.
    """
    if not isinstance(pipeline, str):
        raise ConfigError(f"tasks import the pipeline: name it as 'module:name', instead of giving {pipeline!r}")
    stager = SparkStager(
        spark, kafka, database=database, schema=schema, range_records=range_records, copy_sessions=copy_sessions
    )
    engine = postgres_engine(database.value() if isinstance(database, Env) else database)
    try:
        one = BatchJob(
            pipeline,
            engine,
            resolved(portable(kafka)),
            schema=schema,
            stager=stager,
            limits=limits,
            actor=actor,
            progress=progress,
            range_records=range_records,
            max_records=max_records,
        )
        return one.run(reason=reason, pause=pause) if resume is None else one.take_over(resume, pause=pause)
    finally:
        engine.dispose()
