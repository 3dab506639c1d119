"""Finds the Arrow type of an annotated field, and converts its values without loss.

pyarrow silently drops a fraction in a column of integers, microseconds in a column of milliseconds, or a time zone.
The conversions here raise ValueError or TypeError instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from msgspec import inspect

from seekpoint.codecs.value_types import type_with_fields

Convert = Callable[[Any], Any]  # from a value other than None to one for pyarrow; raises ValueError, TypeError


class Kind(NamedTuple):
    """A field's Arrow type (None: pyarrow infers it from the values), and the conversion of values to this type.

    Values of the types in ``exact`` need no conversion.
    """

    type: Any
    nullable: bool = False
    convert: Convert | None = None
    exact: frozenset[type] = frozenset()

    def one(self, value: Any) -> Any:
        """One value, converted for pyarrow."""
        return value if value is None or self.convert is None else self.convert(value)


BY_VALUES = Kind(None, nullable=True)


def fields_of(annotated: Any) -> dict[str, Kind] | None:
    """The fields of a Struct, dataclass, TypedDict, model, …, by their names; None for other types."""
    info = type_with_fields(annotated)
    return None if info is None else _named(info)


def fields_in(schema: Any) -> dict[str, Kind]:
    """The fields of an Arrow schema."""
    return {field.name: _kind_of(field.type, field.nullable) for field in schema}


# -- by annotation ------------------------------------------------------------------------------------------------


def kind_of(info: inspect.Type) -> Kind:
    """The Arrow type for this annotation; :data:`BY_VALUES` if it allows several types."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    make = _ANNOTATED.get(type(info))
    return BY_VALUES if make is None else make(info)


def _simple(kind: Any) -> Callable[[Any], Kind]:
    return lambda _: _kind_of(kind, False)


def _instant(info: Any) -> Kind:
    return _kind_of(pa.timestamp("us", tz=None if info.tz is False else "UTC"), False)


def _union(info: inspect.UnionType) -> Kind:
    several = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    only = kind_of(several[0]) if len(several) == 1 else BY_VALUES
    return only._replace(nullable=info.includes_none or only.nullable)


def _items(info: Any) -> Kind:
    item = kind_of(info.item_type)
    return BY_VALUES if item.type is None else _list(item)


def _entries(info: inspect.DictType) -> Kind:
    key, value = kind_of(info.key_type), kind_of(info.value_type)
    return BY_VALUES if key.type is None or value.type is None else _map(key, value)


def _named(info: Any) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    for field in info.fields:
        kind = kind_of(field.type)
        may_lack = isinstance(info, inspect.TypedDictType) and not field.required
        kinds[field.name] = kind._replace(nullable=True) if may_lack else kind
    return kinds


def _fields(info: Any) -> Kind:
    fields = _named(info)
    return BY_VALUES if any(kind.type is None for kind in fields.values()) else _struct(fields)


def _enum(info: inspect.EnumType) -> Kind:
    values = {type(member.value) for member in info.cls}
    kind = {frozenset({str}): pa.string(), frozenset({int}): pa.int64()}.get(frozenset(values))
    return Kind(kind, kind is None, lambda member: member.value if isinstance(member, Enum) else member)


_ANNOTATED: Mapping[type, Callable[[Any], Kind]] = {
    inspect.IntType: _simple(pa.int64()),
    inspect.FloatType: _simple(pa.float64()),
    inspect.StrType: _simple(pa.string()),
    inspect.BoolType: _simple(pa.bool_()),
    inspect.BytesType: _simple(pa.binary()),
    inspect.DateTimeType: _instant,
    inspect.DateType: _simple(pa.date32()),
    inspect.TimeType: _simple(pa.time64("us")),
    inspect.TimeDeltaType: _simple(pa.duration("us")),
    inspect.UUIDType: _simple(pa.uuid()),
    inspect.EnumType: _enum,
    inspect.UnionType: _union,
    inspect.ListType: _items,
    inspect.VarTupleType: _items,
    inspect.DictType: _entries,
    inspect.StructType: _fields,
    inspect.DataclassType: _fields,
    inspect.TypedDictType: _fields,
}


# -- by Arrow's type ----------------------------------------------------------------------------------------------


def _kind_of(kind: Any, nullable: bool) -> Kind:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return Kind(kind, nullable, _list(_kind_of(kind.value_type, True)).convert)
    if types.is_struct(kind):
        return Kind(
            kind, nullable, _struct({field.name: _kind_of(field.type, field.nullable) for field in kind}).convert
        )
    if types.is_map(kind):
        return Kind(kind, nullable, _map(_kind_of(kind.key_type, False), _kind_of(kind.item_type, True)).convert)
    for applies, convert, exact in _CONVERTS:
        if applies(kind):
            return Kind(kind, nullable, convert(kind), exact)
    return Kind(kind, nullable)


def _list(item: Kind) -> Kind:
    list_type = pa.list_(pa.field("item", item.type, True))
    return Kind(list_type, False, lambda values: [item.one(value) for value in values])


def _map(key: Kind, value: Kind) -> Kind:
    def convert(entries: Any) -> Any:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        return [(key.one(name), value.one(entry)) for name, entry in pairs]

    return Kind(pa.map_(key.type, value.type), False, convert)


def _struct(fields: Mapping[str, Kind]) -> Kind:
    struct_type = pa.struct([pa.field(name, kind.type, kind.nullable) for name, kind in fields.items()])

    def convert(value: Any) -> Any:
        return {name: kind.one(part(value, name, kind.nullable)) for name, kind in fields.items()}

    return Kind(struct_type, False, convert)


def part(value: Any, name: str, nullable: bool) -> Any:
    """A field of a Struct, dataclass or mapping. Raises ValueError if a mapping lacks a required field."""
    if not isinstance(value, Mapping):
        return getattr(value, name)
    if name not in value and not nullable:
        raise ValueError(f"the value has no {name!r}")
    return value.get(name)


def _whole_number(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _of_instant(kind: Any) -> Convert:
    aware = kind.tz is not None
    step = {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)

    def convert(value: Any) -> Any:
        if not isinstance(value, datetime):
            raise TypeError(f"{value!r} is not a datetime")
        if (value.tzinfo is not None) is not aware:
            raise ValueError(
                f"{value} has {'no' if aware else 'a'} time zone, and the column has {'one' if aware else 'none'}"
            )
        if value.microsecond % step:
            raise ValueError(f"{value} is finer than {kind.unit}")
        return value

    return convert


def _day(value: Any) -> Any:
    if isinstance(value, datetime):
        raise TypeError(f"{value!r} is a datetime, and the column has dates")
    return value


def _clock(value: Any) -> Any:
    if value.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, and Arrow's times have none")
    return value


def _uuid(value: Any) -> Any:
    return (value if isinstance(value, UUID) else UUID(value)).bytes


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


_NONE: frozenset[type] = frozenset()
_CONVERTS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Convert], frozenset[type]]] = (
    (pa.types.is_integer, lambda _: _whole_number, frozenset({int})),
    (pa.types.is_timestamp, _of_instant, _NONE),
    (pa.types.is_date, lambda _: _day, frozenset({date})),
    (pa.types.is_time, lambda _: _clock, _NONE),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), lambda _: _text, frozenset({str})),
    (lambda kind: getattr(kind, "extension_name", None) == "arrow.uuid", lambda _: _uuid, _NONE),
)
