"""The tasks of a staging job, as a data source whose rows are messages: one for each range that was committed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from socket import gethostname
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType
from sqlalchemy import Engine

from seekpoint.errors import ConfigError, SeekpointError
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.staging.stage import Staged, stage_range
from seekpoint.jobs.staging.task_errors import ENDS, error_as_text, tell_ending
from seekpoint.kafka.ranges import Range
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import postgres_engine
from seekpoint.worker.target import load_pipeline

MESSAGE = StructType(
    [
        StructField("attempt", StringType(), nullable=False),
        StructField("group", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("start", LongType(), nullable=False),
        StructField("end", LongType(), nullable=False),
        StructField("records", LongType(), nullable=False),
        StructField("rows", ArrayType(LongType(), containsNull=False), nullable=False),
        StructField("dead_letters", LongType(), nullable=False),
        StructField("ending", StringType()),  # of the run: an error would be tried again by Spark, as it was
    ]
)


class StagingSource(DataSource):
    """Spark's ``seekpoint-staging``; made by ``SparkStager``, which writes its only option, the plan."""

    @classmethod
    def name(cls) -> str:
        return "seekpoint-staging"

    def schema(self) -> StructType:
        return MESSAGE

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark's; ours is the only one
        return StagingReader(json.loads(self.options["plan"]))


class Pack(InputPartition):
    """Some ranges, each with its group, one after the other."""

    def __init__(self, tasks: Sequence[tuple[str, Range]]) -> None:
        super().__init__(None)
        self.tasks = tasks


class StagingReader(DataSourceReader):
    """Plans in a process beside the driver; stages, and so writes, where other sources read."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._packs: Sequence[Any] = plan["tasks"]
        self._plan = {key: value for key, value in plan.items() if key != "tasks"}

    def partitions(self) -> Sequence[InputPartition]:
        packs, self._packs = self._packs, []  # each task gets its own alone
        return [Pack([(group, range_of(carried)) for group, carried in pack]) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Pack):
            raise TypeError(f"a Pack was planned, and not {partition!r}")
        plan = self._plan
        if plan["here"] not in sys.path:  # the driver's folder, where commands find pipelines
            sys.path.append(plan["here"])
        try:
            engine = postgres_engine(resolved(plan["database"])["url"])
        except ENDS as error:
            yield _ending(error)
            return
        try:
            yield from self._stage(engine, partition)
        except ENDS as error:
            tell_ending(engine, plan["schema"], UUID(plan["run"]), error)
            yield _ending(error)
        finally:
            engine.dispose()

    def _stage(self, engine: Engine, pack: Pack) -> Iterator[tuple[Any, ...]]:
        plan = self._plan
        kafka, run = resolved(plan["kafka"]), UUID(plan["run"])
        for group, range_ in pack.tasks:
            pipeline = _import(plan["pipelines"][group])
            yield _message(stage_range(engine, plan["schema"], kafka, run, pipeline=pipeline, range_=range_))


def _import(name: str) -> Pipeline:
    """The pipeline, by this executor's modules. Raises ConfigError, which says where one is missing."""
    try:
        return load_pipeline(name)
    except (ConfigError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"on the executor {gethostname()}: {error}. Executors need what {name} imports: give it to the session "
            "(spark.submit.pyFiles), install it in their Python, or import nothing there that only the driver has"
        ) from error


def _ending(error: SeekpointError) -> tuple[Any, ...]:
    return ("", "", "", 0, 0, 0, 0, [], 0, error_as_text(error))


def _message(staged: Staged) -> tuple[Any, ...]:
    return (
        staged.attempt,
        staged.group,
        staged.partition.topic,
        staged.partition.number,
        staged.start,
        staged.end,
        staged.records,
        list(staged.rows),
        staged.dead_letters,
        None,
    )
