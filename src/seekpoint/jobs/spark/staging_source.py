"""The Python data source of a staging job: each task stages its ranges, which writes to the database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from socket import gethostname
from typing import Any
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.spark.task_source import MessageSource, Plan
from seekpoint.jobs.staging.stage import stage_range
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, report_task_error
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import postgres_engine
from seekpoint.worker.import_by_name import load_pipeline


class StagingSource(MessageSource):
    """Spark's ``seekpoint-staging``; made by ``SparkStager``. A task is some ranges, each with its group."""

    format = "seekpoint-staging"

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        if plan["here"] not in sys.path:  # the driver's folder, where commands find pipelines
            sys.path.append(plan["here"])
        engine = postgres_engine(resolved(plan["database"])["url"])
        schema, run = plan["schema"], UUID(plan["run"])
        try:
            for group, carried in task:
                pipeline, range_ = _import(plan["pipelines"][group]), range_of(carried)
                stage_range(engine, schema, resolved(plan["kafka"]), run, pipeline=pipeline, range_=range_)
                yield group, *range_.partition, range_.start
        except ENDS_STAGING as error:
            report_task_error(engine, schema, run, error)
            raise
        finally:
            engine.dispose()


def _import(name: str) -> Pipeline:
    """The pipeline, by this executor's modules. Raises ConfigError, which says where one is missing."""
    try:
        return load_pipeline(name)
    except (ConfigError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"on the executor {gethostname()}: {error}. Executors need what {name} imports: give it to the session "
            "(spark.submit.pyFiles), install it in their Python, or import nothing there that only the driver has"
        ) from error
