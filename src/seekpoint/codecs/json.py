"""JSON, decoded and validated in one pass by msgspec, or by Pydantic into its models."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isinf
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from seekpoint.codecs.pydantic_models import model_decoder
from seekpoint.codecs.value_types import check_type, has_models

_TEXT = 17  # characters: a number of this length has at most 15 digits and a point, and a float keeps 15 digits

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class JsonFloat(float):
    """A float that keeps, in ``text``, the digits of the JSON number from which it was decoded.

    Sinks write the digits, and ``str`` returns them; other code sees a float. It is used for numbers without a declared
    type, and only if a float would lose digits: ``20.50``, ``0.1234567890123456789``.
    """

    text: str

    def __new__(cls, text: str) -> Self:
        """Make the float from a JSON number. Raises ValueError for a number beyond a float's range."""
        number = super().__new__(cls, text)
        if isinf(number):
            raise ValueError("Number out of range")
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text  # the text from which Pydantic makes a Decimal

    def __reduce__(self) -> tuple[type[JsonFloat], tuple[str]]:
        return type(self), (self.text,)


def json_number(text: str) -> float:
    """The number as a float if that has the same digits, otherwise as a JsonFloat."""
    if len(text) < _TEXT and (text[-1] != "0" or text[-2] == ".") and "e" not in text and "E" not in text:
        return float(text)
    return JsonFloat(text)


_parse = msgspec.json.Decoder(float_hook=json_number).decode


class Json(Generic[V_co]):
    """Decode JSON into ``type``: a Struct, dataclass, attrs class, TypedDict, model or builtin; by default into dicts.

    Pydantic validates its models and dataclasses, and types that contain them; msgspec validates all other types.
    Raises ``msgspec.ValidationError`` (a poison record) if the bytes do not fit the type. With ``tombstones=True`` a
    null value decodes to None. A fraction without a declared type is a float that keeps its digits for the sinks
    (``JsonFloat``); a field of type ``Decimal``, also of a model, has all digits. Raises ConfigError for a type that no
    record can become.
    """

    is_json = True  # a float field keeps about 15 digits of the record's number: sinks check the columns

    @overload
    def __init__(self: Json[T], type: type[T], *, tombstones: Literal[False] = False) -> None: ...
    @overload
    def __init__(self: Json[T | None], type: type[T], *, tombstones: bool) -> None: ...
    @overload
    def __init__(self: Json[Any], *, tombstones: bool = False) -> None: ...
    def __init__(self, type: Any = Any, *, tombstones: bool = False) -> None:  # noqa: A002
        self.type = type
        self.tombstones = tombstones
        self.plain: Callable[[bytes], V_co]  # the same as __call__(), without the cost of a Python call
        if has_models(type):
            self.plain = model_decoder(type, _parse)
        else:
            check_type(type)
            self.plain = msgspec.json.Decoder(type, float_hook=json_number).decode

    def __call__(self, data: bytes) -> V_co:
        return self.plain(data)

    def __repr__(self) -> str:
        return f"Json({getattr(self.type, '__name__', self.type)})"


_TRUNCATED = "Input data was truncated"  # msgspec also raises this for a surrogate at the end of a text
_LONE = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)


def explained(error: BaseException, data: bytes | None) -> BaseException:
    """The error of decoding ``data``, or a clearer one if a lone surrogate or a schema's id is the cause."""
    if not isinstance(error, msgspec.DecodeError):
        return error
    if data is not None and data[:1] in {b"\0", b"\1"} and str(error).endswith("(byte 0)"):
        return msgspec.DecodeError(
            f"{error}: it is in a schema registry's wire format: give value=Avro(...), JsonSchema(...) or Protobuf(...)"
        )
    if str(error) != _TRUNCATED:
        return error
    if data is None or (surrogate := _LONE.search(data)) is None:
        return error
    try:
        msgspec.json.decode(data[: surrogate.start()] + b"?" + data[surrogate.end() :])
    except msgspec.DecodeError as other:
        # Without this surrogate the error is the same: it has another cause, or there are more surrogates.
        if str(other) == _TRUNCATED:
            return error
    text = surrogate[0].decode("ascii")
    return msgspec.DecodeError(f"a lone surrogate {text} at byte {surrogate.start()}: UTF-8 has no code for it")
