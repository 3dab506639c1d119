"""Checks, before the first record, whether columns can hold the declared types of their fields exactly.

The rules for values (:mod:`seekpoint.sinks.encoders`), applied to types, and one more: a float may have lost digits of
its JSON number, which the value does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import inspect

from seekpoint.codecs import Codec
from seekpoint.codecs.value_types import WITH_FIELDS, type_info
from seekpoint.errors import ConfigError
from seekpoint.sinks.column_type import JSON, NUMERIC, TIME, TIMESTAMP, ColumnType, ColumnTypes
from seekpoint.sinks.conversions import Conversions
from seekpoint.sinks.enum_labels import labels_of
from seekpoint.sinks.refused_types import remedy

_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.TupleType)
_PYTHON: Mapping[type[inspect.Type], type] = {  # types whose every value is refused
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.ByteArrayType: bytearray,
    inspect.MemoryViewType: memoryview,
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.TupleType: tuple,
    inspect.NamedTupleType: tuple,
    inspect.DateTimeType: datetime,
    inspect.FloatType: float,
    inspect.DecimalType: Decimal,
    inspect.StrType: str,
}


def check_fields(
    me: str,
    codecs: Collection[Codec],
    columns: Sequence[str] | None,
    types: ColumnTypes,
    allowed: Conversions,
) -> None:
    """Raise ConfigError for a field whose column cannot hold it unchanged. ``codecs`` decode the rows' values."""
    for codec in codecs:
        kind = getattr(codec, "type", None)
        fields = fields_of(kind, columns or ())
        if kind is float and len(columns or ()) == 1:  # a tombstone's key may be a single value
            fields = dict.fromkeys(columns or (), inspect.FloatType())
        for name, field in fields.items():
            if name in types and (columns is None or name in columns):
                why = misfit(field, types[name], allowed, is_json=is_json(codec))
                if why is not None:
                    raise ConfigError(f"{me}: field {name!r}, column {name!r} ({types[name].named}): {why}")


def is_json(codec: Codec) -> bool:
    """Whether the codec decodes JSON, whose numbers may have more digits than a float field keeps."""
    return getattr(codec, "is_json", False)


def fields_of(kind: Any, columns: Sequence[str]) -> Mapping[str, inspect.Type]:
    """The fields of a type; for a dict with values of one type, the ``columns``; else none."""
    try:
        info = type_info(kind)
    except (TypeError, ValueError, NameError):  # a type that msgspec does not know
        return {}
    if isinstance(info, WITH_FIELDS):
        return {field.name: field.type for field in info.fields}
    return dict.fromkeys(columns, info.value_type) if isinstance(info, inspect.DictType) else {}


def misfit(field: inspect.Type, column: ColumnType, allowed: Conversions, *, is_json: bool) -> str | None:
    """Why the column cannot hold the field unchanged; None if it can, or if that depends on the values."""
    loses = is_json and not allowed.round and (column.item in JSON or column.item == NUMERIC)
    if loses and any(isinstance(part, inspect.FloatType) for part in _within(field)):
        return (
            "a float keeps about 15 digits of a JSON number, and the column keeps all: declare Decimal, or give the "
            "sink round=True"
        )
    if column.item in JSON:
        return None
    reasons = [_of_one(alternative, column, allowed) for alternative in alternatives(field)]
    return reasons[0] if reasons and all(reasons) else None


def _of_one(field: inspect.Type, column: ColumnType, allowed: Conversions) -> str | None:
    if column.dimensions:
        if not isinstance(field, _LISTS):
            return None
        items = field.item_types if isinstance(field, inspect.TupleType) else (field.item_type,)
        inner = [
            _of_one(alternative, _item_of(column, alternative), allowed)
            for item in items
            for alternative in alternatives(item)
        ]
        return inner[0] if inner and all(inner) else None
    for kinds, applies, why in _RULES:
        if isinstance(field, kinds) and applies(field, column, allowed):
            return why
    kind = _PYTHON.get(type(field))
    if kind is not None and (instead := remedy(kind, column, allowed)) is not None:
        return f"it takes no {kind.__name__}; {instead}"
    if isinstance(field, inspect.EnumType) and column.labels is not None:
        try:
            labels_of(field.cls, column.labels)
        except ValueError as error:
            return str(error)
    return None


def _item_of(column: ColumnType, item: inspect.Type) -> ColumnType:
    is_nested = isinstance(item, inspect.ListType if column.takes_tuples else _LISTS)
    return column if is_nested else column._replace(dimensions=0)


_ZONE = (
    "a datetime may have a time zone, which the column drops: make the column timestamptz, or give the sink "
    "timezone='UTC', or declare datetimes without one (msgspec.Meta(tz=False))"
)
Rule = tuple[tuple[type, ...], Callable[[Any, ColumnType, Conversions], bool], str]
_RULES: Sequence[Rule] = (
    (
        (inspect.DateTimeType,),
        lambda field, column, allowed: column.item == TIMESTAMP and field.tz is not False and allowed.timezone is None,
        _ZONE,
    ),
    (
        (inspect.TimeType,),
        lambda field, column, _: column.item == TIME and field.tz is True,
        "a time has a time zone, which the column drops: make the column timetz",
    ),
)


def alternatives(field: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a field may have, without None."""
    return (kind for kind in _all_alternatives(field) if not isinstance(kind, inspect.NoneType))


def admits_none(field: inspect.Type) -> bool:
    """Whether a value of the field may be None."""
    return any(
        isinstance(kind, inspect.NoneType | inspect.AnyType)
        or (isinstance(kind, inspect.LiteralType) and None in kind.values)
        for kind in _all_alternatives(field)
    )


def _all_alternatives(field: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(field, inspect.Metadata):
        yield from _all_alternatives(field.type)
    elif isinstance(field, inspect.UnionType):
        for kind in field.types:
            yield from _all_alternatives(kind)
    else:
        yield field


def _within(field: inspect.Type, seen: frozenset[int] = frozenset()) -> Iterator[inspect.Type]:
    """The field's type, and the types that it contains."""
    for alternative in alternatives(field):
        yield alternative
        if id(alternative) in seen:
            continue
        inner = [getattr(alternative, name, None) for name in ("item_type", "key_type", "value_type")]
        inner += [*getattr(alternative, "item_types", ()), *(part.type for part in getattr(alternative, "fields", ()))]
        for part in filter(None, inner):
            yield from _within(part, seen | {id(alternative)})
