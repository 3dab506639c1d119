"""Describes the types of values and rows: the names and types of their fields, as ``msgspec.inspect`` does.

msgspec describes Structs, dataclasses, attrs classes and TypedDicts. Pydantic's models and dataclasses are described
here in the same terms, without importing Pydantic: a program that has a model has imported it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect
from typing_extensions import is_typeddict

from seekpoint.errors import ConfigError

#: Descriptions of types whose values have named fields.
WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)

# The attribute that Pydantic documents for models, and also gives to its dataclasses.
_PYDANTIC = "__pydantic_fields__"
# Pydantic's types that restrict a type of the standard library, and their description here.
_PLAIN: Mapping[str, Any] = {
    "AwareDatetime": Annotated[datetime, msgspec.Meta(tz=True)],
    "NaiveDatetime": Annotated[datetime, msgspec.Meta(tz=False)],
    "PastDatetime": datetime,
    "FutureDatetime": datetime,
    "PastDate": date,
    "FutureDate": date,
    "EmailStr": str,
    "ByteSize": int,
}


def field_names(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a Struct, dataclass, attrs class or Pydantic model; None for any other type."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if is_model(kind):
        return tuple(getattr(kind, _PYDANTIC))
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes: Iterable[Any] | None = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple(attribute.name for attribute in attributes)


def is_model(kind: Any) -> bool:
    """Whether ``kind`` is a model or dataclass of Pydantic with named fields."""
    return isinstance(kind, type) and hasattr(kind, _PYDANTIC) and not _is_root(kind)


def _is_root(kind: type) -> bool:
    return bool(getattr(kind, "__pydantic_root_model__", False))


def has_models(kind: Any) -> bool:
    """Whether values of this type are, or hold, models or dataclasses of Pydantic."""
    return _has_models(kind, set())


def _has_models(kind: Any, visited: set[int]) -> bool:
    kind = getattr(kind, "__value__", kind)  # the value of a type alias
    if isinstance(kind, type) and hasattr(kind, _PYDANTIC):
        return True
    if id(kind) in visited:
        return False
    visited.add(id(kind))
    return any(_has_models(part, visited) for part in (*get_args(kind), *_hints(kind).values()))


def _hints(kind: Any) -> Mapping[str, Any]:
    """The annotations of a class that msgspec fills; empty for other types, or if they cannot be resolved."""
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or not (
        is_typeddict(origin) or dataclasses.is_dataclass(origin) or issubclass(origin, msgspec.Struct)
    ):
        return {}
    try:
        return get_type_hints(origin, include_extras=True)
    except (NameError, TypeError):
        return {}


def type_info(kind: Any) -> inspect.Type:
    """Describe the type as ``msgspec.inspect`` does; a model of Pydantic is described as a dataclass.

    Raises TypeError, ValueError or NameError for a type that msgspec does not know.
    """
    return _described(kind, frozenset()) if has_models(kind) else inspect.type_info(kind)


def check_type(kind: Any) -> None:
    """Raise ConfigError for a type to which msgspec can convert no record: each would be a poison record.

    A field of such a type passes if it has a default, which a record without the field gets.
    """
    try:
        msgspec.json.Decoder(kind)
        unknown = _unknown_class(inspect.type_info(kind), set())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"{getattr(kind, '__name__', kind)}: no type for a codec: {error}") from error
    if unknown is not None:
        raise ConfigError(
            f"{getattr(kind, '__name__', kind)}: no record becomes a {unknown.__qualname__}: use a Struct, dataclass, "
            "attrs class, TypedDict, Pydantic model or builtin type, or a function of your own as the codec"
        )


def _unknown_class(info: Any, visited: set[int]) -> type | None:
    """The first class in the description that msgspec does not fill; None if there is none."""
    if isinstance(info, tuple):
        return next((cls for part in info if (cls := _unknown_class(part, visited)) is not None), None)
    if isinstance(info, inspect.CustomType):
        return None if info.cls is object else info.cls
    if not isinstance(info, msgspec.Struct) or id(info) in visited:
        return None
    visited.add(id(info))
    is_optional = isinstance(info, inspect.Field) and not info.required
    return None if is_optional else _unknown_class(msgspec.structs.astuple(info), visited)


def type_with_fields(kind: Any) -> inspect.StructType | inspect.DataclassType | inspect.TypedDictType | None:
    """Describe a Struct, dataclass, TypedDict, model, … as :func:`type_info` does; None for other types.

    Raises NameError for an annotation that cannot be resolved.
    """
    try:
        info = type_info(kind)
    except (TypeError, ValueError):
        return None
    return info if isinstance(info, WITH_FIELDS) else None


def _described(kind: Any, within: frozenset[Any]) -> inspect.Type:
    """Describe a type. ``within`` are the enclosing classes; inside itself a class is described as Any."""
    kind = getattr(kind, "__value__", kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _constrained(_described(kind.__origin__, within), kind.__metadata__)
    if (make := _GENERIC.get(origin)) is not None:
        return make([inspect.AnyType() if part is ... else _described(part, within) for part in get_args(kind)], kind)
    if isinstance(kind, type) and has_models(kind):
        return inspect.AnyType() if kind in within else _class(kind, within | {kind})
    try:
        return inspect.type_info(_plain(kind))
    except (TypeError, ValueError, NameError):
        return inspect.AnyType()


def _of_tuple(parts: list[inspect.Type], kind: Any) -> inspect.Type:
    return inspect.VarTupleType(parts[0]) if get_args(kind)[1:] == (...,) else inspect.TupleType(tuple(parts))


_GENERIC: Mapping[Any, Callable[[list[inspect.Type], Any], inspect.Type]] = {
    Union: lambda parts, _: inspect.UnionType(tuple(parts)),
    UnionType: lambda parts, _: inspect.UnionType(tuple(parts)),
    list: lambda parts, _: inspect.ListType(parts[0]),
    set: lambda parts, _: inspect.SetType(parts[0]),
    frozenset: lambda parts, _: inspect.FrozenSetType(parts[0]),
    tuple: _of_tuple,
    Required: lambda parts, _: parts[0],
    NotRequired: lambda parts, _: parts[0],
    dict: lambda parts, _: inspect.DictType(key_type=parts[0], value_type=parts[1]),
}


def _class(kind: type, within: frozenset[Any]) -> inspect.Type:
    if hasattr(kind, _PYDANTIC):
        types = {
            name: _constrained(_described(field.annotation, within), field.metadata)
            for name, field in getattr(kind, _PYDANTIC).items()
        }
        if _is_root(kind):
            return types["root"]
    else:
        types = {name: _described(hint, within) for name, hint in _hints(kind).items()}
    # __required_keys__ misses NotRequired if annotations are strings.
    optional = {*types} - {*getattr(kind, "__required_keys__", types)}
    optional |= {name for name, hint in _hints(kind).items() if get_origin(hint) is NotRequired}
    fields = tuple(inspect.Field(name, name, info, required=name not in optional) for name, info in types.items())
    return (inspect.TypedDictType if is_typeddict(kind) else inspect.DataclassType)(kind, fields)


def _plain(kind: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    name = getattr(kind, "__name__", "")
    return _PLAIN[name] if name in _PLAIN and kind is getattr(pydantic, name, None) else kind


def _constrained(info: inspect.Type, metadata: Iterable[Any]) -> inspect.Type:
    """Add the bounds in Pydantic's metadata to the description of an integer."""
    if isinstance(info, inspect.UnionType):  # ``int | None`` with bounds of the int
        return inspect.UnionType(tuple(_constrained(kind, metadata) for kind in info.types))
    if not isinstance(info, inspect.IntType):
        return info
    bounds: dict[str, Any] = {}
    for annotation in metadata:
        for constraint in getattr(annotation, "metadata", None) or (annotation,):  # a Field() has a list of them
            for name in ("gt", "ge", "lt", "le"):
                if isinstance(bound := getattr(constraint, name, None), int):
                    bounds[name] = bound
    return msgspec.structs.replace(info, **bounds)
