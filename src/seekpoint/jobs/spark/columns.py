"""The columns of Spark's source: those of Spark's Kafka source in the same order, as Spark types and Arrow batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seekpoint.jobs.export.files import BYTES, LAST_TIME
from seekpoint.kafka.client import MessageColumns
from seekpoint.kafka.ranges import Range, read_columns
from seekpoint.records import Partition, RawRecord, Record

ROWS = 10_000  # rows per batch; anything from 2,000 on is equally fast

_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
KAFKA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
"""The columns of Spark's Kafka source without ``includeHeaders``."""


def spark_columns(*, headers: bool, marks: bool, value: DataType | None, metadata: Mapping[str, Any]) -> StructType:
    """The columns of a read; ``value`` is the type of decoded values, ``metadata`` that of column ``offset``."""
    fields = [StructField(field.name, field.dataType) for field in KAFKA]
    if value is not None:
        fields[1] = StructField("value", value)
    fields[4] = StructField("offset", LongType(), metadata=dict(metadata))
    if headers:
        fields.append(StructField("headers", _HEADERS))
    if marks:
        fields.append(StructField("dead_letter", BooleanType()))
    return StructType(fields)


def arrow_schema(columns: StructType) -> Any:
    """The schema that Spark expects of each batch."""
    return to_arrow_schema(columns, timezone="UTC")


def kafka_batches(kafka: Mapping[str, Any], range_: Range, *, headers: bool) -> Iterator[Any]:
    """The range's records in batches of about :data:`ROWS` rows, with Kafka's columns.

    With ``headers`` there are also the columns ``headers`` and :data:`HIDDEN`. Headers that the client cannot read are
    null, and so are missing timestamps and those that Spark cannot hold. Raises the errors of reading the range.
    """
    pending = _Pending(range_.partition, headers=headers)
    for piece in read_columns(kafka, range_, headers=headers):
        pending.add(piece)
        if pending.is_full:
            yield pending.batch()
            pending = _Pending(range_.partition, headers=headers)
    if pending.offsets:
        yield pending.batch()


class _Pending:
    """Collects records of one partition for the next batch."""

    def __init__(self, partition: Partition, *, headers: bool) -> None:
        self._partition, self._with_headers, self._size = partition, headers, 0
        self.offsets: list[int] = []
        self._kinds: list[int] = []
        self._times: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Any] = []
        self._epochs: list[int | None] = []

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= ROWS or self._size >= BYTES

    def add(self, piece: MessageColumns) -> None:
        self.offsets += piece.offsets
        self._kinds += piece.kinds
        self._times += piece.times
        self._keys += piece.keys
        self._values += piece.values
        self._size += sum(map(len, filter(None, piece.keys))) + sum(map(len, filter(None, piece.values)))
        if self._with_headers:
            self._headers += [
                None if index in piece.unreadable else pairs or () for index, pairs in enumerate(piece.headers)
            ]
            self._size += sum(len(value or b"") for pairs in piece.headers for _, value in pairs or ())
            self._epochs += piece.epochs

    def batch(self) -> Any:
        schema, count = _SCHEMAS[self._with_headers], len(self.offsets)
        kinds, times = pa.array(self._kinds, pa.int32()), pa.array(self._times, pa.int64())
        arrays = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.repeat(pa.scalar(self._partition.topic, pa.string()), count),
            pa.repeat(pa.scalar(self._partition.number, pa.int32()), count),
            pa.array(self.offsets, pa.int64()),
            _timestamps(kinds, times).cast(schema.field("timestamp").type),
            pc.subtract(kinds, pa.scalar(1, pa.int32())),  # Java's numbering, where -1 means no timestamp
        ]
        if self._with_headers:
            arrays.append(pa.array(self._headers, schema.field("headers").type))
            arrays += [pc.if_else(pc.greater(kinds, 0), times, None), pa.array(self._epochs, pa.int32())]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _timestamps(kinds: Any, milliseconds: Any) -> Any:
    """Microseconds; null if a record has no timestamp (some producers write -1), or one beyond 64 bits."""
    is_there = pc.and_(pc.greater(kinds, 0), pc.not_equal(milliseconds, -1))
    fits = pc.and_(pc.less_equal(milliseconds, LAST_TIME), pc.greater_equal(milliseconds, -LAST_TIME))
    return pc.if_else(pc.and_(is_there, fits), pc.multiply(milliseconds, 1000), None)


HIDDEN = pa.schema([("timestamp_ms", pa.int64()), ("leader_epoch", pa.int32())])
"""Fields of a record that Spark's columns lack: the timestamp as stored in the log, and the leader epoch."""
_SCHEMAS = {
    False: arrow_schema(spark_columns(headers=False, marks=False, value=None, metadata={})),
    True: pa.schema([*arrow_schema(spark_columns(headers=True, marks=False, value=None, metadata={})), *HIDDEN]),
}


def raw_records(batch: Any) -> list[tuple[RawRecord, bool]]:
    """The batch's records as a worker gets them, and whether each one's headers can be read. Needs ``headers``."""
    names = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
    fields = [batch.column(name).to_pylist() for name in names]
    headers, epochs = batch.column("headers").to_pylist(), batch.column("leader_epoch").to_pylist()
    pairs = [tuple((header["key"], header["value"]) for header in listed or ()) for listed in headers]
    return list(zip(map(Record, *fields, pairs, epochs), [listed is not None for listed in headers], strict=True))


def with_dead_letters(batch: Any, offsets: Collection[int], mode: str) -> Any:
    """The batch by ``mode``: without dead letters, with only them, with the column ``dead_letter``, or unchanged."""
    if mode == "include" or (mode == "exclude" and not offsets):
        return batch
    is_dead = pc.is_in(batch.column("offset"), value_set=pa.array(offsets, pa.int64()))
    if mode == "mark":
        schema = batch.schema.append(pa.field("dead_letter", pa.bool_()))
        return pa.RecordBatch.from_arrays([*batch.columns, is_dead], schema=schema)
    return batch.filter(is_dead if mode == "only" else pc.invert(is_dead))
