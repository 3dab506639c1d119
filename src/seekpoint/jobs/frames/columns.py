"""The columns of a codec's values in a DataFrame: Arrow types from the fields' annotations, Spark types from Arrow's.

A record whose value does not fit its column exactly is poison. A field without a single type is refused at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from msgspec import inspect
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from seekpoint.codecs.value_types import type_info
from seekpoint.errors import ConfigError
from seekpoint.jobs.export import files
from seekpoint.jobs.spark.field_kinds import DECIMAL, field_kind
from seekpoint.pipeline.arrow.types import Kind, fields_of

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
"""The columns of records that are not decoded."""

_HEADERS = pa.list_(
    pa.field(
        "element", pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]), nullable=False
    )
)
ARROW = pa.schema(
    [files.SCHEMA.field(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value")]
    + [pa.field("headers", _HEADERS)]
)
""":data:`SCHEMA` as an Arrow schema."""

_SIMPLE: Mapping[Any, DataType] = {
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
    DECIMAL: DecimalType(38, 18),
}


def kinds_of(annotated: Any) -> dict[str, Kind]:
    """The column types of a Struct, dataclass or TypedDict. Raises ConfigError for a field with several types."""
    info = type_info(annotated)
    types = {field.name: field.type for field in getattr(info, "fields", ())}
    nullable = {name: kind.nullable for name, kind in (fields_of(annotated) or {}).items()}
    kinds = {name: _kind(types[name])._replace(nullable=takes_null) for name, takes_null in nullable.items()}
    for name, kind in kinds.items():
        if kind.type is None or spark_type(kind.type) is None:
            raise ConfigError(
                f"the field {name!r} of {getattr(annotated, '__name__', annotated)} has no single type in Spark. Use "
                "int, float, bool, str, bytes, datetime, date, Decimal, UUID, an enum of one type, or lists, dicts "
                "and Structs of these (but not of Decimal and UUID); or leave value= out, and decode in the frames, "
                "e.g. by from_json"
            )
    return kinds


def _kind(info: inspect.Type) -> Kind:
    kind = field_kind(info)
    return kind if kind.type is None else kind._replace(type=_named(kind.type))


def _named(kind: Any) -> Any:
    """The type with Spark's field names and nullability inside lists and maps."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _named(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(pa.field("key", _named(kind.key_type), False), pa.field("value", _named(kind.item_type), True))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _named(field.type), field.nullable) for field in kind])
    return kind


def spark_column(kind: Kind) -> DataType:
    """The Spark type of a field that :func:`kinds_of` has accepted."""
    type_ = spark_type(kind.type)
    assert type_ is not None
    return type_


def spark_type(kind: Any) -> DataType | None:
    """The Spark type that holds the same values; None if there is none."""
    if pa.types.is_list(kind):
        item = spark_type(kind.value_type)
        return None if item is None else ArrayType(item, kind.value_field.nullable)
    if pa.types.is_map(kind):
        key, value = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or value is None else MapType(key, value, kind.item_field.nullable)
    if pa.types.is_struct(kind):
        struct = StructType()
        for field in kind:
            if (type_ := spark_type(field.type)) is None:
                return None
            struct.add(field.name, type_, field.nullable)
        return struct
    return _SIMPLE.get(kind)
