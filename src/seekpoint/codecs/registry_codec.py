"""The base of Avro, JsonSchema and Protobuf: a schema registry's wire format, read by Confluent's deserializers.

Needs the extra: ``registry``. A codec is a declaration: it sends no request and loads no client until it decodes its
first record, and makes one client in each process.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import msgspec

from seekpoint.codecs.codec import decode_null
from seekpoint.codecs.pydantic_models import model_converter
from seekpoint.codecs.registry_client import Registry, missing, shown
from seekpoint.codecs.value_types import check_type, has_models
from seekpoint.codecs.wire_format import GUID, ID, INDIFFERENT
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.records import RawRecord

V_co = TypeVar("V_co", covariant=True)
# A function from the wire format, its record, and "key" or "value" to a value.
Decode = Callable[[bytes, RawRecord, str], Any]

NOTHING: Mapping[str, Any] = MappingProxyType({})
OURS = ("schema.id.deserializer",)
SHORTEST = {0: ID, 1: GUID}  # the length of a header with a schema's id or GUID, by its first byte


class SchemaOptions(TypedDict):
    """Options that do not change what a codec with a reader's schema decodes to."""

    registry: Registry
    schema: NotRequired[str | None]
    options: NotRequired[Mapping[str, Any]]


class RegistryCodec(ABC, Generic[V_co]):
    """Base class of the formats: wire format, null values, conversion to ``type``, one deserializer per process."""

    def __init__(
        self,
        registry: Registry | None,
        type: Any,  # noqa: A002
        tombstones: bool,
        options: Mapping[str, Any],
    ) -> None:
        if reserved := sorted(set(options) & {*OURS, *self._ours()}):
            raise ConfigError(f"options={{{reserved[0]!r}: ...}}: the codec sets this option itself: remove it")
        if type is not None:
            self._convert = _converter(type)
        self.registry, self.type, self.tombstones, self.options = registry, type, tombstones, dict(options)
        self._decoder: tuple[int, Decode] | None = None  # with its process's id: connections do not survive a fork

    def __repr__(self) -> str:
        return self._show(None if self.type is None else getattr(self.type, "__name__", str(self.type)))

    def decode(self, record: RawRecord, /) -> V_co:
        """Decode a record's value. Raises CodecUnavailable if the registry does not answer."""
        if record.value is None:
            return decode_null(record, self.tombstones)  # type: ignore[no-any-return]  # with tombstones, V_co has None
        return self._decode(record, record.value, "value")

    def decode_key(self, record: RawRecord, /) -> V_co | None:
        """Decode a record's key; None if it has none. Raises CodecUnavailable if the registry does not answer."""
        return None if record.key is None else self._decode(record, record.key, "key")

    def _decode(self, record: RawRecord, data: bytes, field: str) -> V_co:
        decoder = self._decoder
        if decoder is None or decoder[0] != os.getpid():
            decoder = self._decoder = os.getpid(), self._opened()
        value = decoder[1](_framed(record, data, field) if record.headers else data, record, field)
        return self._typed(value)

    def _typed(self, value: Any) -> V_co:
        if self.type is None:
            return value  # type: ignore[no-any-return]
        value = self._plain(value)
        if self.type is dict and type(value) is dict:  # a conversion would only copy the dict
            return value  # type: ignore[return-value]
        return self._convert(value)  # type: ignore[no-any-return]

    def _opened(self) -> Decode:
        try:
            return self._open()
        except (CodecUnavailable, ConfigError):
            raise
        except ImportError as error:
            raise missing(error) from error
        except Exception as error:
            raise ConfigError(f"{self!r}: {type(error).__name__}: {error}") from error

    @abstractmethod
    def _open(self) -> Decode:
        """Make Confluent's deserializer in this process, inside the fast path."""

    def _plain(self, value: Any) -> Any:
        """The decoded value, before its conversion to ``type``."""
        return value

    def _ours(self) -> tuple[str, ...]:
        """Options that the codec sets itself."""
        return ()

    def _settings(self) -> dict[str, Any]:
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 -- a declaration needs no client
            prefix_schema_id_deserializer,
            topic_subject_name_strategy,
        )

        # The client's default strategy asks the registry for each topic's associations, which few registries support.
        named = "subject.name.strategy" in self.options or "subject.name.strategy.type" in self.options
        subject = {} if named else {"subject.name.strategy": topic_subject_name_strategy}
        return {**subject, **self.options, "schema.id.deserializer": prefix_schema_id_deserializer}

    @property
    def _is_short(self) -> bool:
        """Whether the fast path is allowed: no option makes Confluent's deserializer do more than decode."""
        return INDIFFERENT.issuperset(self.options)

    def _show(self, name: str | None) -> str:
        begin = "" if name is None else f"{name}, "
        return f"{type(self).__name__}({begin}registry={shown(self.registry)})"


def _framed(record: RawRecord, data: bytes, field: str) -> bytes:
    """If the schema's id is in a header, put it before the data, as in the wire format without headers."""
    name = f"__{field}_schema_id"
    for header, value in reversed(record.headers):  # the last header counts, as in Confluent's Java client
        if header == name and value is not None:
            if len(value) < SHORTEST.get(value[0] if value else -1, len(value) + 1):
                raise ValueError(f"the header {name} holds no schema id: {value[:20]!r}")
            return value + data
    return data


def _converter(kind: Any) -> Callable[[Any], Any]:
    """A function that converts to the type. Raises ConfigError if neither msgspec nor Pydantic can."""
    if has_models(kind):
        return model_converter(kind)
    check_type(kind)
    return partial(msgspec.convert, type=kind)


def with_context(deserialize: Callable[[bytes, Any], Any]) -> Decode:
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 -- see the module

    def decode(data: bytes, record: RawRecord, field: str) -> Any:
        which = MessageField.KEY if field == "key" else MessageField.VALUE
        return deserialize(data, SerializationContext(record.topic, which, list(record.headers)))

    return decode
