"""The Python data sources of Spark's jobs, whose tasks export or stage ranges. Imports pyspark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructType

from seekpoint.jobs.export.files import write_range
from seekpoint.jobs.spark.pipeline_import import import_pipeline
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.spark.task import task
from seekpoint.jobs.staging.stage import stage_range
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of
from seekpoint.storage import Storage
from seekpoint.worker.import_by_name import load_pipeline

Plan = Mapping[str, Any]  # parsed from the driver's JSON


class TaskSource(DataSource):
    """A data source that only the driver's code creates, with :meth:`frame`."""

    format: ClassVar[str]  # the name under which Spark registers it
    columns: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        return cls.format

    @classmethod
    def run(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        """Yield the rows of one task, in an executor."""
        raise NotImplementedError

    @classmethod
    def frame(cls, spark: SparkSession, plan: Plan) -> DataFrame:
        """A DataFrame of the tasks' rows."""
        spark.dataSource.register(cls)
        return spark.read.format(cls.name()).option("plan", json.dumps(plan)).load()

    def schema(self) -> StructType:
        return self.columns

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- always this source's schema
        return _Reader(type(self), json.loads(self.options["plan"]))


class _Reader(DataSourceReader):
    """Plans in a Python process on the driver's machine, reads in the executors."""

    def __init__(self, source: type[TaskSource], plan: dict[str, Any]) -> None:
        self._tasks = plan.pop("tasks")
        self._source, self._plan = source, plan

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per task; without tasks one empty task, because Spark would pass None."""
        tasks, self._tasks = self._tasks, []  # so that each task gets only its part of the plan
        return [InputPartition(task) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._source.run(self._plan, partition.value)


class MessageSource(TaskSource):
    """A source whose tasks write data, and whose rows are messages about the data.

    A task returns an error that ends the run as a message: if it raised that error, Spark would repeat the task in
    vain.
    """

    columns = StructType().add("message", StringType()).add("ending", StringType())

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        """Run one task; yields messages about what it has written, as values for JSON."""
        raise NotImplementedError

    @classmethod
    def run(cls, plan: Plan, task: Sequence[Any]) -> Iterator[tuple[str | None, str | None]]:
        try:
            for message in cls.messages(plan, task):
                yield json.dumps(message), None
        except ENDS_STAGING as error:
            yield None, error_as_text(error)


def messages_of(rows: Iterable[Row]) -> list[Any]:
    """The messages of a :class:`MessageSource`. Raises the error if a task reported one."""
    answers = list(rows)
    if ending := next((row.ending for row in answers if row.ending), None):
        raise error_of(ending)
    return [json.loads(row.message) for row in answers]


class ExportSource(MessageSource):
    """The data source ``seekpoint-export``, created by ``SparkWriter``."""

    format = "seekpoint-export"

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        for carried in task:
            range_ = range_of(carried)
            written = write_range(resolved(plan["kafka"]), Storage(plan["root"]), UUID(plan["run"]), range_)
            yield carried, written.file, written.records, written.bytes, written.sha256


class StagingSource(MessageSource):
    """The data source ``seekpoint-staging``, created by ``SparkStager``. A task stages ranges, each for its group."""

    format = "seekpoint-staging"

    @classmethod
    def messages(cls, plan: Plan, task_: Sequence[Any]) -> Iterator[Any]:
        with task(plan) as engine:
            run, kafka = UUID(plan["run"]), resolved(plan["kafka"])
            for group, carried in task_:
                pipeline, range_ = import_pipeline(plan["pipelines"][group], load_pipeline), range_of(carried)
                staged = stage_range(engine, plan["schema"], kafka, run, pipeline=pipeline, range_=range_)
                yield group, *staged.partition, staged.start
