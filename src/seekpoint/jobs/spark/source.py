"""The Python data source behind ``read``: each task reads its ranges, and hands them over as Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seekpoint.jobs.export import chained
from seekpoint.jobs.spark.settings import range_of, resolved
from seekpoint.kafka.ranges import Piece, Range, read_range
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition, RawRecord

ROWS = 10_000  # of a batch; any number from 2,000 on is as fast
BYTES = 32 * 2**20  # of keys and values, after which a batch ends earlier
_LAST_TIME = 9_223_372_036_854_775  # milliseconds: what microseconds in 64 bits hold

SCHEMA = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType(), nullable=False), StructField("value", BinaryType())]),
                containsNull=False,
            ),
        ),
    ]
)

_HEADERS = pa.list_(
    pa.field(
        "element", pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]), nullable=False
    )
)
ARROW = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
    ]
)


class Source(DataSource):
    """Spark's ``seekpoint``; made by :func:`seekpoint.spark.read`, which writes its only option, the plan."""

    @classmethod
    def name(cls) -> str:
        return "seekpoint"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark's; ours is the only one
        plan = json.loads(self.options["plan"])
        return Reader(plan["kafka"], plan["tasks"], plan["archive"])


class Task(InputPartition):
    """Some ranges, one after the other."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges


class Reader(DataSourceReader):
    """Plans in a process beside the driver, reads in the executors."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        tasks: Sequence[Sequence[Sequence[Any]]],
        archive: Mapping[str, Any] | None = None,
    ) -> None:
        self._kafka, self._tasks, self._archive = kafka, tasks, archive

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task; one that is empty where there is none, as Spark would make one of its own."""
        return [Task(list(map(range_of, task))) for task in self._tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):
            raise TypeError(f"a Task was planned, and not {partition!r}")
        kafka = resolved(self._kafka)
        if self._archive is None:
            return chain.from_iterable(batches(read_range(kafka, range_), range_) for range_ in partition.ranges)
        return self._with_archive(kafka, self._archive, partition.ranges)

    def _with_archive(
        self, kafka: Mapping[str, Any], archive: Mapping[str, Any], ranges: Sequence[Range]
    ) -> Iterator[pa.RecordBatch]:
        engine = postgres_engine(resolved(archive)["url"])
        try:
            reader = chained(kafka, archive["spec"], engine)
            for range_ in ranges:
                yield from batches(reader.read(range_), range_)
        finally:
            engine.dispose()


def batches(pieces: Iterable[Piece], range_: Range) -> Iterator[pa.RecordBatch]:
    """The range's records, ``ROWS`` or ``BYTES`` at a time. Raises as :func:`read_range` does, at the end as well."""
    records: list[RawRecord] = []
    unreadable: set[int] = set()
    size = 0
    for piece in pieces:
        records += piece.records
        unreadable.update(record.offset for record, _ in piece.unreadable)
        size += sum(len(record.key or b"") + len(record.value or b"") for record in piece.records)
        if len(records) >= ROWS or size >= BYTES:
            yield _batch(range_.partition, records, unreadable)
            records, unreadable, size = [], set(), 0
    if records:
        yield _batch(range_.partition, records, unreadable)


def _batch(partition: Partition, records: Sequence[RawRecord], unreadable: set[int]) -> pa.RecordBatch:
    columns: list[Iterable[Any]] = [
        [partition.topic] * len(records),
        [partition.number] * len(records),
        [record.offset for record in records],
        [_microseconds(record.timestamp_ms) for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [None if record.offset in unreadable else record.headers for record in records],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, ARROW, strict=True)], schema=ARROW
    )


def _microseconds(milliseconds: int | None) -> int | None:
    """None for no time, and for one that Spark's timestamps cannot hold."""
    if milliseconds is None or not -_LAST_TIME <= milliseconds <= _LAST_TIME:
        return None
    return milliseconds * 1000
