"""Avro, JSON Schema and Protobuf in the wire format of a schema registry, through Confluent's own deserializers.

Needs the extra: ``registry``. A codec is a declaration: it sends no request and loads no client until it decodes its
first record, and makes one client in each process.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar, Unpack, overload

import msgspec

from seekpoint.codecs.codec import decode_null
from seekpoint.codecs.json import Json
from seekpoint.codecs.pydantic_models import model_converter
from seekpoint.codecs.registry_client import Registry, check, connect, missing, shown
from seekpoint.codecs.value_types import has_models
from seekpoint.codecs.wire_format import (
    GUID,
    ID,
    INDIFFERENT,
    Frames,
    Short,
    avro_frame,
    is_plain,
    protobuf_frame,
    schema_id,
)
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.records import RawRecord

__all__ = ["Avro", "JsonSchema", "Protobuf", "Registry"]

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)
Decode = Callable[[bytes, RawRecord, str], Any]  # from the wire format, its record, and "key" or "value", to a value

NOTHING: Mapping[str, Any] = MappingProxyType({})
OURS = ("schema.id.deserializer",)
_CHECKING = INDIFFERENT | {"validate"}  # options that do not change the record's JSON
SHORTEST = {0: ID, 1: GUID}  # by its first byte, the length of a header with a schema's id or GUID


class _OfJson(TypedDict):
    """Options that do not change what a JsonSchema codec decodes to."""

    registry: Registry
    schema: NotRequired[str | None]
    options: NotRequired[Mapping[str, Any]]


class _OfAvro(_OfJson):
    """Options that do not change what an Avro codec decodes to."""

    record_name: NotRequired[str | None]


class _OfType(TypedDict):
    """Options that do not change what a Protobuf codec decodes to."""

    registry: Registry | None
    options: NotRequired[Mapping[str, Any]]


class _OfMessage(_OfType):
    type: NotRequired[None]


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
        if self.type is dict and type(value) is dict:  # converting would only copy it
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
        """Make Confluent's deserializer in this process, with the fast path around it."""

    def _plain(self, value: Any) -> Any:
        """The decoded value in the form that is then converted to ``type``."""
        return value

    def _ours(self) -> tuple[str, ...]:
        """Options that the codec sets itself."""
        return ()

    def _settings(self) -> dict[str, Any]:
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 -- a declaration needs no client
            prefix_schema_id_deserializer,
            topic_subject_name_strategy,
        )

        # The client's default strategy asks the registry for each topic's associations; few registries support them.
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


class Avro(RegistryCodec[V_co]):
    """Decode Avro in a schema registry's wire format into ``type``, or into dicts.

    ``registry`` is a URL, the configuration of Confluent's ``SchemaRegistryClient``, or a function, called at the first
    record, that returns a URL, a configuration or a client. ``type`` is a msgspec Struct, dataclass, TypedDict or
    builtin type. ``schema`` is the reader's schema (JSON): records written with another schema are resolved to it, as
    Avro defines; without it, values have the shape they were written with. ``options`` go to ``AvroDeserializer``.
    With ``record_name="type"``, the outermost record, and each record from a union of several record types, has its
    full name under ``"type"``, so that msgspec can choose among tagged Structs.

    decimal is ``Decimal``, timestamps are aware and in UTC, local timestamps naive, both cut to microseconds; date,
    time and uuid are Python's. Defaults of the reader's schema are converted in the same way.
    With ``tombstones=True`` a null value decodes to None. As ``key=`` of a pipeline it decodes keys.

    A record is poison if it is not in the wire format, does not fit the type, or has a schema that the registry does
    not know or that is for another codec (JSON Schema, Protobuf). If the registry does not answer, decoding raises
    CodecUnavailable: the worker waits, and no record fails.
    """

    @overload
    def __init__(
        self: Avro[T], type: type[T], *, tombstones: Literal[False] = False, **more: Unpack[_OfAvro]
    ) -> None: ...
    @overload
    def __init__(self: Avro[T | None], type: type[T], *, tombstones: bool, **more: Unpack[_OfAvro]) -> None: ...
    @overload
    def __init__(self: Avro[Any], type: None = None, *, tombstones: bool = False, **more: Unpack[_OfAvro]) -> None: ...
    def __init__(
        self,
        type: Any = None,  # noqa: A002
        *,
        registry: Registry,
        schema: str | None = None,
        record_name: str | None = None,
        tombstones: bool = False,
        options: Mapping[str, Any] = NOTHING,
    ) -> None:
        check(registry)
        super().__init__(registry, type, tombstones, options)
        self.schema, self.record_name = schema, record_name

    def _open(self) -> Decode:
        from confluent_kafka.schema_registry.avro import AvroDeserializer  # noqa: PLC0415 -- see the module

        from seekpoint.codecs.avro_reader import AvroReader  # noqa: PLC0415 -- it needs the extra

        assert self.registry is not None
        client = connect(self.registry, "AVRO")
        confluents: Any = client
        long = _with_context(AvroDeserializer(confluents, self.schema, conf=self._settings()))
        reader = AvroReader(client, self.schema, self.record_name, self._is_short)

        def checked(data: bytes, record: RawRecord, field: str) -> Any:
            value = long(data, record, field)
            reader.check_latest()
            return value

        return Frames(checked, avro_frame, reader.shorten)


class JsonSchema(RegistryCodec[V_co]):
    """Decode JSON in a schema registry's wire format into ``type``, or into dicts, after a check against its schema.

    ``registry``, ``options`` (for ``JSONDeserializer``), ``tombstones`` and errors are as in :class:`Avro`. A record is
    checked against ``schema``, by default the schema that it was written with. A record that does not fit is poison,
    and the error names the field. ``options={"validate": False}`` leaves the check out. Numbers keep their digits, as
    in :class:`seekpoint.Json`.

    Schemas with rules, and options that migrate, always give dicts; with ``type`` they raise ConfigError.
    """

    is_json = True  # as of Json

    @overload
    def __init__(
        self: JsonSchema[T], type: type[T], *, tombstones: Literal[False] = False, **more: Unpack[_OfJson]
    ) -> None: ...
    @overload
    def __init__(self: JsonSchema[T | None], type: type[T], *, tombstones: bool, **more: Unpack[_OfJson]) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[Any], type: None = None, *, tombstones: bool = False, **more: Unpack[_OfJson]
    ) -> None: ...
    def __init__(
        self,
        type: Any = None,  # noqa: A002
        *,
        registry: Registry,
        schema: str | None = None,
        tombstones: bool = False,
        options: Mapping[str, Any] = NOTHING,
    ) -> None:
        check(registry)
        super().__init__(registry, type, tombstones, options)
        self.schema = schema
        if type is not None and (unusable := sorted(set(options) - _CHECKING)):
            raise ConfigError(
                f"{self!r}: values are dicts with the option {unusable[0]!r}: leave the type out, or remove the option"
            )

    def _open(self) -> Decode:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer  # noqa: PLC0415 -- see the module

        assert self.registry is not None
        self._check_schema()
        client: Any = connect(self.registry, "JSON")
        checks = JSONDeserializer(self.schema, None, client, self._settings(), json_decode=Json().plain)
        checked, decode = _with_context(checks), Json(Any if self.type is None else self.type).plain

        def read(data: bytes, record: RawRecord, field: str) -> Any:
            value = checked(data, record, field)
            if self.type is None:
                return value
            begin = avro_frame(data)
            schema = client.written_with(number := schema_id(data[:begin]))
            if schema is None or schema.rule_set is not None:
                raise ConfigError(
                    f"{self!r}: schema {number} has rules, or differs between subjects, so its values are dicts: leave "
                    "the type out"
                )
            return decode(data[begin:])

        def shorten(frame: bytes, _data: bytes, _value: Any) -> Short | None:
            is_checked, only_reads = self.options.get("validate", True), _CHECKING.issuperset(self.options)
            if is_checked or not only_reads or not is_plain(client.written_with(schema_id(frame))):
                return None
            return lambda data, begin: decode(data[begin:])

        return Frames(partial(_say_where, read), avro_frame, shorten)

    def _check_schema(self) -> None:
        """Raise ConfigError for an invalid ``schema``, which would make each record a poison record."""
        from jsonschema import SchemaError  # noqa: PLC0415 -- it needs the extra
        from jsonschema.validators import validator_for  # noqa: PLC0415 -- it needs the extra

        if self.schema is not None:
            schema = json.loads(self.schema)
            try:
                validator_for(schema).check_schema(schema)
            except SchemaError as error:
                raise ConfigError(f"{self!r}: schema= is not a JSON Schema: {error.message}") from error

    def _typed(self, value: Any) -> V_co:
        return value  # type: ignore[no-any-return]


def _say_where(read: Decode, data: bytes, record: RawRecord, field: str) -> Any:
    """Call ``read``; if a value does not fit its schema, the error names the field, which Confluent's does not."""
    try:
        return read(data, record, field)
    except Exception as error:
        from jsonschema import ValidationError  # noqa: PLC0415 -- it needs the extra

        if isinstance(wrong := error.__context__, ValidationError):
            raise ValueError(f"{wrong.message} - at `{wrong.json_path}`") from wrong
        raise


class Protobuf(RegistryCodec[V_co]):
    """Decode Protobuf in a schema registry's wire format into ``message``, a generated class, or into ``type``.

    ``registry``, ``options`` (for ``ProtobufDeserializer``), ``tombstones`` and errors are as in :class:`Avro`. A
    record is poison if its message's full name (package, enclosing messages, name) is another one: its bytes might be
    read as this message. With ``registry=None`` no request is sent, and the name is not checked.

    ``type`` is ``dict``, or a type to which msgspec converts a dict of the message's fields. In this dict a field with
    presence is None if it was not set; enums are names; ``Timestamp`` is aware and in UTC, cut to microseconds;
    ``Duration``, ``google.type.Date`` and ``TimeOfDay``, the wrappers, and both ``Decimal`` types are Python's.
    """

    @overload
    def __init__(
        self: Protobuf[T], message: type[T], *, tombstones: Literal[False] = False, **more: Unpack[_OfMessage]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T | None], message: type[T], *, tombstones: bool, **more: Unpack[_OfMessage]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T], message: Any, *, type: type[T], tombstones: Literal[False] = False, **more: Unpack[_OfType]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T | None], message: Any, *, type: type[T], tombstones: bool, **more: Unpack[_OfType]
    ) -> None: ...
    def __init__(
        self,
        message: Any,
        *,
        registry: Registry | None,
        type: Any = None,  # noqa: A002
        tombstones: bool = False,
        options: Mapping[str, Any] = NOTHING,
    ) -> None:
        if registry is not None:
            check(registry)
        super().__init__(registry, type, tombstones, options)
        if not hasattr(message, "DESCRIPTOR") or not hasattr(message, "ParseFromString"):
            raise ConfigError(f"Protobuf({message!r}): give the class that protoc generated from the message")
        self.message = message

    def __repr__(self) -> str:
        return self._show(self.message.DESCRIPTOR.name)

    def _ours(self) -> tuple[str, ...]:
        return ("subject.name.strategy.type",)  # the codec sets a function, which takes precedence over it

    def _open(self) -> Decode:
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer  # noqa: PLC0415 -- see the module

        client: Any = None if self.registry is None else connect(self.registry, "PROTOBUF")
        settings = self._settings()
        if client is not None:
            settings["subject.name.strategy"] = self._checked(settings["subject.name.strategy"])
        long = _with_context(ProtobufDeserializer(self.message, settings, client))

        def shorten(frame: bytes, _data: bytes, value: Any) -> Short | None:
            if not self._is_short or (client is not None and not is_plain(client.written_with(schema_id(frame)))):
                return None
            parse = type(value).FromString
            return lambda data, begin: parse(data[begin:])

        return Frames(long, protobuf_frame, shorten)

    def _checked(self, subject: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Add a check of the message's name to the subject strategy: a message's bytes may be read as another one."""
        descriptor = self.message.DESCRIPTOR

        def named(context: Any, written: str | None) -> Any:
            if written is None:
                return None
            # The full name, because OrderRefunded.Line is not OrderPlaced.Line, and shop.v2.Order not shop.v1.Order.
            if written != descriptor.full_name:
                raise ValueError(f"the record is a {written}, but the codec reads {descriptor.full_name}")
            return subject(context, written)

        return named

    def _plain(self, value: Any) -> Any:
        from seekpoint.codecs.protobuf import plain  # noqa: PLC0415 -- it needs the extra

        return plain(value)


def _framed(record: RawRecord, data: bytes, field: str) -> bytes:
    """Put the schema's id before the data if it is in a header, as in the wire format without headers."""
    name = f"__{field}_schema_id"
    for header, value in reversed(record.headers):  # the last header counts, as in Confluent's Java client
        if header == name and value is not None:
            if len(value) < SHORTEST.get(value[0] if value else -1, len(value) + 1):
                raise ValueError(f"the header {name} holds no schema id: {value[:20]!r}")
            return value + data
    return data


def _converter(kind: Any) -> Callable[[Any], Any]:
    """A function that converts to the type. Raises TypeError or ConfigError if neither msgspec nor Pydantic can."""
    if has_models(kind):
        return model_converter(kind)
    msgspec.json.Decoder(kind)
    return partial(msgspec.convert, type=kind)


def _with_context(deserialize: Callable[[bytes, Any], Any]) -> Decode:
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 -- see the module

    def decode(data: bytes, record: RawRecord, field: str) -> Any:
        which = MessageField.KEY if field == "key" else MessageField.VALUE
        return deserialize(data, SerializationContext(record.topic, which, list(record.headers)))

    return decode
