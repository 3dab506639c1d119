"""The protocols of codecs, and functions that decode a pipeline's values and keys with codecs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

import msgspec
from typing_extensions import TypeVar, is_typeddict

from seekpoint.codecs.json import Json
from seekpoint.codecs.text import Bytes, Text
from seekpoint.codecs.value_types import field_names
from seekpoint.errors import ConfigError, Poison
from seekpoint.records import RawRecord

V = TypeVar("V", default=Any)
V_co = TypeVar("V_co", covariant=True)


class BytesDecoder(Protocol[V_co]):
    """Any callable ``bytes -> V``.

    It is a protocol and not a ``Callable`` because mypy infers the values' type from it before it checks handlers.
    """

    def __call__(self, data: bytes, /) -> V_co:
        """Decode a value. Any exception makes the record a poison record."""


@runtime_checkable
class RecordCodec(Protocol[V_co]):
    """A codec that gets whole records, including those with a null value.

    Keys are decoded by ``decode_key(record)`` if the codec has that method, otherwise by ``decode``.
    """

    def decode(self, record: RawRecord, /) -> V_co:
        """Decode a value (or key). Any exception but CodecUnavailable makes the record a poison record."""


Codec = BytesDecoder[V] | RecordCodec[V]


def _check(codec: Any) -> None:
    """Raise ConfigError for likely mistakes because of which every record would fail."""
    if isinstance(codec, type) and (hasattr(codec, "decode") or issubclass(codec, Json | Text | Bytes | str)):
        examples: dict[type, str] = {str: "Text()", bytes: "Bytes()"}
        example = examples.get(codec, f"{codec.__name__}(...)")
        raise ConfigError(f"{codec.__name__} is a class, and a codec must be an instance: {example}")
    if isinstance(codec, type) and (field_names(codec) is not None or is_typeddict(codec)):
        raise ConfigError(f"{codec.__name__} is a type of values, not a codec: did you mean Json({codec.__name__})?")
    if isinstance(codec, msgspec.json.Decoder | msgspec.msgpack.Decoder):
        raise ConfigError("a msgspec Decoder decodes bytes, not records: give its method, decoder.decode")
    if inspect.iscoroutinefunction(codec):
        raise ConfigError(f"the codec {codec!r} is an async function: its coroutines would never be awaited")
    if not callable(codec) and not isinstance(codec, RecordCodec):
        raise ConfigError(f"a codec must be callable or have decode(record), got {codec!r}")


def decode_null(record: RawRecord, tombstones: bool) -> Any:
    """The value None of a record with a null value. Raises Poison if the codec does not declare tombstones."""
    if not tombstones:
        raise Poison("a null value, and the codec does not declare tombstones=True", record)
    return None


def value_decoder(codec: Codec) -> Callable[[RawRecord], Any]:
    """A function from a raw record to its decoded value, which raises the codec's errors."""
    _check(codec)
    if isinstance(codec, RecordCodec):
        return codec.decode
    tombstones = bool(getattr(codec, "tombstones", False))

    def decode(record: RawRecord) -> Any:
        return decode_null(record, tombstones) if record.value is None else codec(record.value)

    return decode


def plain_decoder(codec: Codec) -> Callable[[bytes], Any] | None:
    """The fastest function from a value's bytes to the value; None if the codec needs whole records."""
    if isinstance(codec, RecordCodec):
        return None
    return codec.plain if type(codec) is Json else codec


def key_decoder(codec: Codec) -> Callable[[RawRecord], Any]:
    """A function from a raw record to its decoded key; a null key is None."""
    _check(codec)
    if isinstance(codec, RecordCodec):
        of_key: Callable[[RawRecord], Any] = getattr(codec, "decode_key", codec.decode)
        return of_key
    if isinstance(codec, Bytes):
        return attrgetter("key")
    return lambda record: None if record.key is None else codec(record.key)
