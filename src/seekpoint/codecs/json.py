"""JSON, decoded and validated in one pass by msgspec."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isinf
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from seekpoint.errors import ConfigError

_TEXT = 17  # characters: fewer are at most 15 digits and the point, and those a float has

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class JsonFloat(float):
    """A float that keeps the digits of the JSON number it was decoded from: ``text``.

    Sinks write the digits; everything else sees a float. It is made where no type says what a number is, and only for
    numbers whose digits a float does not have: ``20.50``, ``0.1234567890123456789``.
    """

    text: str

    def __new__(cls, text: str) -> Self:
        """The float of a JSON number. Raises ValueError for one that no float holds."""
        number = super().__new__(cls, text)
        if isinf(number):
            raise ValueError("Number out of range")
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[JsonFloat], tuple[str]]:
        return type(self), (self.text,)


def _number(text: str) -> float:
    """A plain float where that has the same digits."""
    if len(text) < _TEXT and (text[-1] != "0" or text[-2] == ".") and "e" not in text and "E" not in text:
        return float(text)
    return JsonFloat(text)


class Json(Generic[V_co]):
    """Decode JSON into ``type``: a msgspec Struct, dataclass, TypedDict or builtin type; without one, into dicts.

    Raises ``msgspec.ValidationError`` (a record's fault) where the bytes do not fit the type. With
    ``tombstones=True`` a null value decodes to None. A fraction that no type describes is a float that keeps its digits
    for the sinks (:class:`JsonFloat`); a field of type ``Decimal`` has them all.
    """

    @overload
    def __init__(self: Json[T], type: type[T], *, tombstones: Literal[False] = False) -> None: ...
    @overload
    def __init__(self: Json[T | None], type: type[T], *, tombstones: bool) -> None: ...
    @overload
    def __init__(self: Json[Any], *, tombstones: bool = False) -> None: ...
    def __init__(self, type: Any = Any, *, tombstones: bool = False) -> None:  # noqa: A002
        if hasattr(type, "model_validate_json"):
            name = getattr(type, "__name__", type)
            raise ConfigError(
                f"Json({name}): msgspec makes no Pydantic models; decode it with value={name}.model_validate_json"
            )
        self.type = type
        self.tombstones = tombstones
        self.plain: Callable[[bytes], V_co] = msgspec.json.Decoder(
            type, float_hook=_number
        ).decode  # the same as a call, without Python's own

    def __call__(self, data: bytes) -> V_co:
        return self.plain(data)

    def __repr__(self) -> str:
        return f"Json({getattr(self.type, '__name__', self.type)})"


_TRUNCATED = "Input data was truncated"  # msgspec says so of a surrogate at the end of a text, too
_LONE = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)


def explained(error: BaseException, data: bytes | None) -> BaseException:
    """The error of decoding these bytes; where they have a lone surrogate, one that says so."""
    if not isinstance(error, msgspec.DecodeError) or str(error) != _TRUNCATED:
        return error
    if data is None or (found := _LONE.search(data)) is None:
        return error
    try:
        msgspec.json.decode(data[: found.start()] + b"?" + data[found.end() :])
    except msgspec.DecodeError as other:
        if str(other) == _TRUNCATED:  # also without it, or there are more
            return error
    text = found[0].decode("ascii")
    return msgspec.DecodeError(f"a lone surrogate {text} at byte {found.start()}: no text in UTF-8 has it")
