"""The column ``value`` with the types of a pipeline's codec instead of bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
from msgspec import inspect
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from seekpoint.codecs import Bytes, Codec, Text
from seekpoint.codecs.codec import RecordCodec, value_decoder
from seekpoint.codecs.json import explained
from seekpoint.codecs.value_types import WITH_FIELDS, type_info
from seekpoint.errors import CodecUnavailable, ConfigError, Poison
from seekpoint.jobs.spark.columns import arrow_schema, raw_records
from seekpoint.jobs.spark.field_kinds import field_kind
from seekpoint.jobs.spark.pipeline_import import import_pipeline
from seekpoint.pipeline.arrow.table import arrays_of
from seekpoint.pipeline.arrow.types import Kind
from seekpoint.records import AnyRecord, Partition, RawRecord, Record
from seekpoint.worker.import_by_name import load_pipeline

_VALUE = "value"


class TypedValue:
    """Decodes ``value`` with the codecs of the pipeline ``name`` (``module:name``), for records of these topics.

    ``reads_records``: a codec reads more of a record than its value, such as headers. Raises ConfigError if the
    pipeline does not read one of the topics, or its codecs do not declare the type of values.
    """

    def __init__(self, name: str, topics: Collection[str]) -> None:
        codecs = import_pipeline(name, load_pipeline).codecs
        if missing := sorted(set(topics) - set(codecs)):
            raise ConfigError(f"decode={name} does not read topic {missing[0]!r}: it has {', '.join(sorted(codecs))}")
        infos = {topic: type_info(_type_of(name, codecs[topic])) for topic in topics}
        if len({repr(info) for info in infos.values()}) > 1:
            raise ConfigError(
                f"decode={name} has values of several types in {', '.join(sorted(topics))}: read one topic at a time"
            )
        self._name, self._decode = name, {topic: value_decoder(codecs[topic]) for topic in topics}
        self.reads_records = any(isinstance(codecs[topic], RecordCodec) for topic in topics)
        info = next(iter(infos.values()))
        self._is_flat = not isinstance(info, WITH_FIELDS)
        fields = (
            [(_VALUE, info)]
            if not isinstance(info, WITH_FIELDS)
            else [(field.name, field.type) for field in info.fields]
        )
        self._kinds = {field: _kind(name, field, type_) for field, type_ in fields}
        columns = [StructField(field, _spark_type(name, field, kind.type)) for field, kind in self._kinds.items()]
        self.type: DataType = columns[0].dataType if self._is_flat else StructType(columns)
        self._arrow = arrow_schema(StructType([StructField(_VALUE, self.type)])).field(0).type

    def batch(self, raw: Any) -> Any:
        """The batch with ``value`` decoded. Raises Poison for a record that cannot be decoded.

        ``raw`` must have headers if ``reads_records`` is true. Raises CodecUnavailable.
        """
        records = [self._decoded(record, has_headers) for record, has_headers in self._records(raw)]
        column = raw.schema.get_field_index(_VALUE)
        schema = raw.schema.set(column, pa.field(_VALUE, self._arrow))
        arrays = [*raw.columns[:column], self._column(records), *raw.columns[column + 1 :]]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _records(self, raw: Any) -> list[tuple[RawRecord, bool]]:
        if self.reads_records:
            return raw_records(raw)
        fields = zip(*(raw.column(name).to_pylist() for name in ("topic", "partition", "offset", _VALUE)), strict=True)
        return [(Record(topic, number, offset, None, None, value), True) for topic, number, offset, value in fields]

    def _decoded(self, raw: RawRecord, has_headers: bool) -> AnyRecord:
        try:
            if not has_headers:
                raise ValueError("its headers cannot be read")
            value = self._decode[raw.topic](raw)
        except CodecUnavailable:
            raise
        except Exception as error:
            raise self._poison(raw, explained(error, raw.value)) from error
        if self._is_flat and value is not None:
            value = {_VALUE: value}
        return Record(raw.topic, raw.partition, raw.offset, raw.timestamp_ms, raw.key, value)

    def _poison(self, record: AnyRecord, error: BaseException) -> Poison:
        return Poison(
            f"{Partition(record.topic, record.partition)} offset {record.offset} cannot be decoded by {self._name}: "
            f"{error}. With group, deadLetters=exclude omits records that the group has dead-lettered; without "
            "decode, value is the record's bytes",
            record,
        )

    def _column(self, records: Sequence[AnyRecord]) -> Any:
        try:
            arrays = arrays_of(records, self._kinds)
        except Poison as error:  # a value that its column cannot hold, such as one of more than 64 bits
            raise self._poison(error.records[0], error) from error
        if self._is_flat:
            return arrays[0].cast(self._arrow)
        fields = [array.cast(field.type) for array, field in zip(arrays, self._arrow, strict=True)]
        is_null = pa.array([record.value is None for record in records], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(self._arrow), mask=is_null)


def _type_of(name: str, codec: Codec) -> Any:
    if isinstance(codec, Text):
        return str
    if isinstance(codec, Bytes):
        return bytes
    if (type_ := getattr(codec, "type", None)) in (None, Any):
        raise ConfigError(
            f"decode={name}: {codec!r} does not say which type values have: write Json(Order) with a Struct, dataclass "
            "or TypedDict, or leave decode out and decode the bytes in Spark (from_json)"
        )
    return type_


def _kind(name: str, field: str, info: inspect.Type) -> Kind:
    """The nullable column for values of this type. Raises ConfigError for a type without a single column type."""
    kind = field_kind(info)
    if kind.type is None:
        raise ConfigError(
            f"decode={name}: field {field!r} has no single type, which a column needs: declare one, or leave decode "
            "out and decode the bytes in Spark (from_json)"
        )
    return kind._replace(nullable=True)


def _spark_type(name: str, field: str, arrow: Any) -> DataType:
    try:
        return from_arrow_type(arrow)
    except PySparkTypeError as error:
        raise ConfigError(
            f"decode={name}: field {field!r} is {arrow} in Arrow, which Spark has no type for: leave decode out and "
            "decode the bytes in Spark (from_json)"
        ) from error
