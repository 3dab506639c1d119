"""The Python data source of ``read``: each task reads its ranges as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from seekpoint.jobs.export import ArchivedReader, files
from seekpoint.jobs.export.record_batches import record_batches
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.jobs.spark.task_source import Plan, TaskSource
from seekpoint.postgres.engine import postgres_engine

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
        kafka, archive = resolved(plan["kafka"]), plan["archive"]
        engine = None if archive is None else postgres_engine(resolved(archive)["url"])
        try:
            reader = ArchivedReader(kafka) if engine is None else ArchivedReader.of(kafka, archive["spec"], engine)
            for range_ in map(range_of, task):
                yield from record_batches(reader.read(range_), ARROW, ROWS)
        finally:
            if engine is not None:
                engine.dispose()
