"""What the Python data sources of this package share: one option, the plan, each of whose ``tasks`` is a partition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructType

from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of

Plan = Mapping[str, Any]  # JSON, as the driver wrote it


class TaskSource(DataSource):
    """A data source that only the driver's code makes, by :meth:`frame`."""

    format: ClassVar[str]  # as Spark knows it
    columns: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        return cls.format

    @classmethod
    def run(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        """What one task reads, in an executor."""
        raise NotImplementedError

    @classmethod
    def frame(cls, spark: SparkSession, plan: Plan) -> DataFrame:
        """The tasks' rows."""
        spark.dataSource.register(cls)
        return spark.read.format(cls.name()).option("plan", json.dumps(plan)).load()

    def schema(self) -> StructType:
        return self.columns

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark's; ours is the only one
        return _Reader(type(self), json.loads(self.options["plan"]))


class _Reader(DataSourceReader):
    """Plans in a process beside the driver, reads in the executors."""

    def __init__(self, source: type[TaskSource], plan: dict[str, Any]) -> None:
        self._tasks = plan.pop("tasks")
        self._source, self._plan = source, plan

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task; one that is empty where there is none, as Spark would make one of its own."""
        tasks, self._tasks = self._tasks, []  # a task gets its own part of the plan only
        return [InputPartition(task) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._source.run(self._plan, partition.value)


class MessageSource(TaskSource):
    """A source whose tasks write, and whose rows are messages about what was written.

    What ends the run is a message, too: a task that raises it would be tried again by Spark, with the same outcome.
    """

    columns = StructType().add("message", StringType()).add("ending", StringType())

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        """What one task has written, as JSON can carry it."""
        raise NotImplementedError

    @classmethod
    def run(cls, plan: Plan, task: Sequence[Any]) -> Iterator[tuple[str | None, str | None]]:
        try:
            for message in cls.messages(plan, task):
                yield json.dumps(message), None
        except ENDS_STAGING as error:
            yield None, error_as_text(error)


def messages_of(rows: Iterable[Row]) -> list[Any]:
    """The messages of a :class:`MessageSource`. Raises the error that a task reported instead."""
    found = list(rows)
    if ending := next((row.ending for row in found if row.ending), None):
        raise error_of(ending)
    return [json.loads(row.message) for row in found]
