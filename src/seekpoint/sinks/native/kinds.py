"""Which types of fields the compiled part writes exactly as msgspec decodes and psycopg writes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MemberDescriptorType, NoneType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

_SCALARS: dict[type, tuple[str, type]] = {
    inspect.IntType: ("int", int),
    inspect.FloatType: ("float", float),
    inspect.StrType: ("str", str),
    inspect.BoolType: ("bool", bool),
    inspect.DecimalType: ("decimal", Decimal),
    inspect.DateTimeType: ("datetime", dt.datetime),
    inspect.DateType: ("date", dt.date),
    inspect.TimeType: ("time", dt.time),
    inspect.UUIDType: ("uuid", UUID),
    inspect.BytesType: ("bytes", bytes),
}
_JSON: dict[type, str] = {inspect.AnyType: "any", inspect.DictType: "object", inspect.ListType: "array"}

DEFAULTS = frozenset({NoneType, *(type_ for _, type_ in _SCALARS.values())} - {bytes})
"""Types of defaults whose text depends on no connection."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a field is written: ``name`` is the compiled part's, ``types`` are those that psycopg would be given."""

    name: str
    nullable: bool
    types: frozenset[type]


def fields_of(struct: type[msgspec.Struct]) -> Sequence[inspect.Field] | None:
    """The fields of a type that decodes as declared; None where an option, or code of its own, has a say."""
    config = struct.__struct_config__
    has_code = hasattr(struct, "__post_init__") or struct.__getattribute__ is not msgspec.Struct.__getattribute__
    is_plain = all(isinstance(getattr(struct, name), MemberDescriptorType) for name in struct.__struct_fields__)
    if has_code or not is_plain or config.array_like or config.tag is not None or config.forbid_unknown_fields:
        return None
    info = inspect.type_info(struct)
    return info.fields if isinstance(info, inspect.StructType) else None


def kind_of(declared: inspect.Type, *, is_json: bool) -> Kind | None:
    """The kind of a field for a column of json or jsonb, or for one of another type; None where Python writes it."""
    type_, nullable = _without_none(declared)
    if is_json:
        is_any = isinstance(type_, inspect.AnyType)
        types = frozenset({dict, list, *((str, int, float, bool) if is_any else ())})
        return Kind(_JSON[type(type_)], nullable or is_any, types) if _holds_any(type_) else None
    if isinstance(type_, inspect.ListType) and not _is_bounded(type_):
        type_, null_items = _without_none(type_.item_type)
        item = _scalar(type_)
        return item and Kind(f"{item[0]}{'?' * null_items}[]", nullable, frozenset({list, item[1]}))
    scalar = _scalar(type_)
    return scalar and Kind(scalar[0], nullable, frozenset({scalar[1]}))


def _scalar(type_: inspect.Type) -> tuple[str, type] | None:
    return None if _is_bounded(type_) else _SCALARS.get(type(type_))


def _holds_any(type_: inspect.Type) -> bool:
    """Whether it is JSON of whatever types: Any, dict or list."""
    if isinstance(type_, inspect.DictType):
        is_text = isinstance(type_.key_type, inspect.StrType | inspect.AnyType) and not _is_bounded(type_.key_type)
        return is_text and isinstance(type_.value_type, inspect.AnyType) and not _is_bounded(type_)
    if isinstance(type_, inspect.ListType):
        return isinstance(type_.item_type, inspect.AnyType) and not _is_bounded(type_)
    return isinstance(type_, inspect.AnyType)


def _without_none(type_: inspect.Type) -> tuple[inspect.Type, bool]:
    """The other type of a union with None, and whether it was one."""
    if isinstance(type_, inspect.UnionType) and len(type_.types) == 2:
        others = [one for one in type_.types if not isinstance(one, inspect.NoneType)]
        if len(others) == 1:
            return others[0], True
    return type_, False


def _is_bounded(type_: Any) -> bool:
    """Whether it has a constraint, ``Meta(gt=0)``, or a time must have a zone."""
    inner = {"key_type", "value_type", "item_type"}
    return any(getattr(type_, name) is not None for name in type_.__struct_fields__ if name not in inner)
