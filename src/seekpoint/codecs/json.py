"""JSON, decoded and validated in one pass by msgspec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class Json(Generic[V_co]):
    """Decode JSON into ``type``: a msgspec Struct, dataclass, TypedDict or builtin type; without one, into dicts.

    Raises ``msgspec.ValidationError`` (a record's fault) where the bytes do not fit the type. With
    ``tombstones=True`` a null value decodes to None.
    """

    @overload
    def __init__(self: Json[T], type: type[T], *, tombstones: Literal[False] = False) -> None: ...
    @overload
    def __init__(self: Json[T | None], type: type[T], *, tombstones: bool) -> None: ...
    @overload
    def __init__(self: Json[Any], *, tombstones: bool = False) -> None: ...
    def __init__(self, type: Any = Any, *, tombstones: bool = False) -> None:  # noqa: A002
        self.type = type
        self.tombstones = tombstones
        self.plain: Callable[[bytes], V_co] = msgspec.json.Decoder(
            type
        ).decode  # the same as a call, without Python's own

    def __call__(self, data: bytes) -> V_co:
        return self.plain(data)

    def __repr__(self) -> str:
        return f"Json({getattr(self.type, '__name__', self.type)})"
