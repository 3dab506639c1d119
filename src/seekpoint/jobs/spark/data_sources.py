"""The Python data sources of Spark's jobs, whose tasks read, export or stage ranges. Imports pyspark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from socket import gethostname
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from seekpoint.errors import ConfigError
from seekpoint.jobs.export import files
from seekpoint.jobs.export.files import record_batches, write_range
from seekpoint.jobs.export.storage import Storage
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.staging.stage import stage_range
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, error_as_text, error_of, report_task_error
from seekpoint.kafka.ranges import read_range
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import postgres_engine
from seekpoint.worker.import_by_name import load_pipeline

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


ROWS = 10_000  # of a batch; any number from 2,000 on is as fast

_HEADER = StructType().add("key", StringType(), nullable=False).add("value", BinaryType())
SCHEMA = (
    StructType()
    .add("topic", StringType(), nullable=False)
    .add("partition", IntegerType(), nullable=False)
    .add("offset", LongType(), nullable=False)
    .add("timestamp", TimestampType())
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("headers", ArrayType(_HEADER, containsNull=False))
)

_HEADERS = pa.list_(
    pa.field(
        "element", pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]), nullable=False
    )
)
ARROW = pa.schema(
    [files.SCHEMA.field(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value")]
    + [pa.field("headers", _HEADERS)]
)


class Source(TaskSource):
    """Spark's ``seekpoint``; made by :func:`seekpoint.spark.read`. A task is some ranges, one after the other."""

    format = "seekpoint"
    columns = SCHEMA

    @classmethod
    def run(cls, plan: Plan, task: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        kafka = resolved(plan["kafka"])
        for carried, offsets in task:
            for batch in record_batches(read_range(kafka, range_of(carried)), ARROW, ROWS):
                yield _with_dead_letters(batch, offsets, plan["dead_letters"])


class MarkedSource(Source):
    """Spark's ``seekpoint-marked``: the same, with a column that is true for dead letters."""

    format = "seekpoint-marked"
    columns = StructType([*SCHEMA.fields, *StructType().add("dead_letter", BooleanType(), nullable=False).fields])


def _with_dead_letters(batch: pa.RecordBatch, offsets: Sequence[int], what: str) -> pa.RecordBatch:
    """The batch without its dead letters, with them alone, or with the column ``dead_letter``."""
    if what == "include":
        return batch
    is_dead = pc.is_in(batch.column("offset"), value_set=pa.array(offsets, pa.int64()))
    if what == "mark":
        schema = ARROW.append(pa.field("dead_letter", pa.bool_(), nullable=False))
        return pa.RecordBatch.from_arrays([*batch.columns, is_dead], schema=schema)
    return batch.filter(is_dead if what == "only" else pc.invert(is_dead))


class ExportSource(MessageSource):
    """Spark's ``seekpoint-export``; made by ``SparkWriter``."""

    format = "seekpoint-export"

    @classmethod
    def messages(cls, plan: Plan, task: Sequence[Any]) -> Iterator[Any]:
        for carried in task:
            range_ = range_of(carried)
            written = write_range(resolved(plan["kafka"]), Storage(plan["root"]), UUID(plan["run"]), range_)
            yield carried, written.file, written.records, written.bytes, written.sha256


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
            report_task_error(engine, schema, run, plan["job"], error)
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
