"""Checks whether a table's column holds a Spark type exactly; a refusal names the cast to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
    VariantType,
)

from seekpoint.sinks.arrow.copy_text import is_list
from seekpoint.sinks.column_type import BOOL, BYTEA, DATE, JSON, NUMERIC, TIME, TIMESTAMP, ColumnType, ColumnTypes
from seekpoint.sinks.conversions import Conversions

_CHAR, _NAME, _INT8, _INT2, _INT4, _TEXT, _FLOAT4, _FLOAT8 = 18, 19, 20, 21, 23, 25, 700, 701
_BPCHAR, _VARCHAR, _TIMESTAMPTZ, _INTERVAL = 1042, 1043, 1184, 1186
_INTEGERS = frozenset({_INT2, _INT4, _INT8})
_STRINGS = (StringType, VarcharType, CharType)
_TIMES = (DateType, TimestampType, TimestampNTZType)
_NESTED = (ArrayType, MapType, StructType, VariantType)
# Categories of pg_type without a Spark type: composite, enum, geometric, range, network, bits, string, others.
_READ_AS_TEXT = frozenset("CEGRIVSU")


def _in(*types: int) -> Callable[[Any, ColumnType, Conversions], bool]:
    return lambda _, column, __: column.item in types


def _keeps_micros(column: ColumnType, allowed: Conversions) -> bool:
    return column.typmod in {-1, 6} or allowed.round


def _takes_text(_: DataType, column: ColumnType, allowed: Conversions) -> bool:
    if column.item == TIME:
        return _keeps_micros(column, allowed)
    if column.item == _INTERVAL:
        return column.typmod == -1
    return column.category in _READ_AS_TEXT and column.item not in {BYTEA, _NAME, _CHAR}


_RULES: Sequence[tuple[type | tuple[type, ...], Callable[[Any, ColumnType, Conversions], bool]]] = (
    (BooleanType, _in(BOOL)),
    ((ByteType, ShortType), _in(*_INTEGERS, NUMERIC, _FLOAT4, _FLOAT8)),
    (IntegerType, _in(*_INTEGERS, NUMERIC, _FLOAT8)),
    (LongType, _in(*_INTEGERS, NUMERIC)),
    (DecimalType, lambda kind, column, _: column.item == NUMERIC or (column.item in _INTEGERS and kind.scale == 0)),
    (FloatType, _in(_FLOAT4)),
    (DoubleType, lambda _, column, allowed: column.item == _FLOAT8 or (column.item == NUMERIC and allowed.round)),
    (_STRINGS, _takes_text),
    (BinaryType, _in(BYTEA)),
    (DateType, _in(DATE)),
    (TimestampType, lambda _, column, allowed: column.item == _TIMESTAMPTZ and _keeps_micros(column, allowed)),
    (TimestampType, lambda _, column, allowed: column.item == TIMESTAMP and _to_zone(column, allowed)),
    (TimestampNTZType, lambda _, column, allowed: column.item == TIMESTAMP and _keeps_micros(column, allowed)),
    (TimeType, lambda _, column, allowed: column.item == TIME and _keeps_micros(column, allowed)),
    (DayTimeIntervalType, lambda _, column, __: column.item == _INTERVAL and column.typmod == -1),
)


def _to_zone(column: ColumnType, allowed: Conversions) -> bool:
    return allowed.timezone is not None and _keeps_micros(column, allowed)


def misfit(name: str, kind: DataType, column: ColumnType, allowed: Conversions) -> str | None:
    """The remedy for a frame's column ``name`` that the table's column does not hold exactly; None if it does."""
    if _holds(kind, column, allowed):
        return None
    ways = []
    if cast := _cast(f'F.col("{name}")', kind, column):
        rounds = column.item in {TIMESTAMP, _TIMESTAMPTZ} and not _keeps_micros(column, allowed)
        ways.append(f"write {cast} in the frame{', and give the sink round=True' if rounds else ''}")
    if column_type := next((column_type for kinds, column_type in _COLUMN_TYPES if isinstance(kind, kinds)), None):
        ways.append(f"make the column {column_type}")
    if isinstance(kind, TimestampType) and column.item == TIMESTAMP and allowed.timezone is None:
        ways.append("give the sink timezone='UTC'")
    elif _holds(kind, column, Conversions(True, allowed.timezone)):
        ways.append("give the sink round=True")
    return ", or ".join(ways) or "omit it"


def _holds(kind: DataType, column: ColumnType, allowed: Conversions) -> bool:
    if isinstance(kind, NullType):
        return True
    if column.dimensions:  # Postgres stores [[], []] as {}, so lists of lists need a JSON column
        if not isinstance(kind, ArrayType) or isinstance(kind.elementType, ArrayType) or column.item in JSON:
            return False
        return _holds(kind.elementType, column._replace(dimensions=0), allowed)
    if column.item in JSON:
        return _is_json(kind)
    return any(isinstance(kind, kinds) and holds(kind, column, allowed) for kinds, holds in _RULES)


def _is_json(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_json(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_json(kind.valueType)
    if isinstance(kind, StructType):
        return len({*kind.names}) == len(kind.names) and all(_is_json(field.dataType) for field in kind.fields)
    return isinstance(kind, (BooleanType, NumericType, NullType, TimeType, *_STRINGS, *_TIMES))


# -- what to write instead --------------------------------------------------------------------------------------

_COLUMN_TYPES: Sequence[tuple[type | tuple[type, ...], str]] = (
    (BooleanType, "boolean"),
    ((ByteType, ShortType), "smallint"),
    (IntegerType, "integer"),
    (LongType, "bigint"),
    (DecimalType, "numeric"),
    (FloatType, "real"),
    (DoubleType, "double precision"),
    (_STRINGS, "text"),
    (BinaryType, "bytea"),
    (DateType, "date"),
    (TimestampType, "timestamptz"),
    (TimestampNTZType, "timestamp"),
    (TimeType, "time"),
    (DayTimeIntervalType, "interval"),
    ((ArrayType, MapType, StructType), "jsonb"),
)
_CASTS: Mapping[int, str] = {
    BOOL: "boolean",
    _INT2: "smallint",
    _INT4: "int",
    _INT8: "bigint",
    _FLOAT4: "float",
    _FLOAT8: "double",
    BYTEA: "binary",
    DATE: "date",
    TIMESTAMP: "timestamp_ntz",
    _TIMESTAMPTZ: "timestamp",
}
_NUMBERS = frozenset({*_INTEGERS, _FLOAT4, _FLOAT8, NUMERIC})


def _cast(expression: str, kind: DataType, column: ColumnType) -> str | None:
    """The expression that casts ``expression`` to the column's type; None if Spark has none, or it changes nothing."""
    if column.dimensions:
        return None
    is_text = column.category == "S" and _takes_text(kind, column, Conversions())
    if isinstance(kind, _NESTED):
        return f"F.to_json({expression})" if is_text or column.item in JSON else None
    if is_text and not isinstance(kind, _STRINGS):
        return f'{expression}.cast("string")'
    if column.item in JSON:
        return None
    target = f"decimal(38, {_scale(column)})" if column.item == NUMERIC else _CASTS.get(column.item)
    is_known = isinstance(kind, _STRINGS) or (isinstance(kind, NumericType) and column.item in _NUMBERS)
    is_known = is_known or (isinstance(kind, _TIMES) and column.item in {DATE, TIMESTAMP, _TIMESTAMPTZ})
    is_changed = target is not None and target not in {kind.typeName(), kind.simpleString()}
    return f'{expression}.cast("{target}")' if is_known and is_changed else None


def _scale(column: ColumnType) -> int:
    return 18 if column.scale is None else min(max(column.scale, 0), 38)


# -- values -----------------------------------------------------------------------------------------------------


def exact(array: Any, column: ColumnType) -> Any:
    """The values for COPY: strings for a JSON column are taken as JSON text.

    Raises ValueError for a text longer than the column, because Postgres may silently cut trailing blanks.
    """
    if is_list(array.type) and _limit(column) is not None:
        _require_length(array.flatten(), column)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return array
    if column.item in JSON:
        return pa.ExtensionArray.from_storage(pa.json_(array.type), array)
    _require_length(array, column)
    return array


def _limit(column: ColumnType) -> int | None:
    return column.typmod - 4 if column.item in {_VARCHAR, _BPCHAR} and column.typmod >= 0 else None


def _require_length(texts: Any, column: ColumnType) -> None:
    limit = _limit(column)
    longest = None if limit is None else pc.max(pc.utf8_length(texts)).as_py()
    if limit is not None and longest is not None and longest > limit:
        raise ValueError(f"a text has {longest} characters, too many for the column's type {column.named}")


def misfits(
    written: Sequence[tuple[str, str]], kinds: Mapping[str, DataType], types: ColumnTypes, allowed: Conversions
) -> list[str]:
    """A message for each column of a frame that the table's column does not hold exactly."""
    return [
        f"its column {column!r} is {kinds[column].simpleString()}, which the table's column {into!r} "
        f"({types[into].named}) does not hold exactly: {remedy}"
        for column, into in written
        if into in types and (remedy := misfit(column, kinds[column], types[into], allowed)) is not None
    ]
