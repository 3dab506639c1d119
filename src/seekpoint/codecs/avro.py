"""The codec Avro: Avro in the wire format of a schema registry. Needs the extra: ``registry``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypeVar, Unpack, overload

from seekpoint.codecs.registry_client import Registry, check, connect
from seekpoint.codecs.registry_codec import NOTHING, Decode, RegistryCodec, SchemaOptions, with_context
from seekpoint.codecs.wire_format import Frames, avro_frame
from seekpoint.records import RawRecord

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class _Options(SchemaOptions):
    """Options that do not change what an Avro codec decodes to."""

    record_name: NotRequired[str | None]


class Avro(RegistryCodec[V_co]):
    """Decode Avro in a schema registry's wire format into ``type``, or into dicts.

    ``registry`` is a URL, the configuration of Confluent's ``SchemaRegistryClient``, or a function, called at the first
    record, that returns a URL, a configuration or a client. ``type`` is a msgspec Struct, dataclass, TypedDict or
    builtin type. ``schema`` is the reader's schema (JSON): records written with another schema are resolved to it, as
    Avro defines; without it, values have the writer's shape. ``options`` go to ``AvroDeserializer``. With
    ``record_name="type"``, the outermost record, and each record in a union of several record types, has its full name
    under ``"type"``, so that msgspec can choose among tagged Structs.

    A decimal is a ``Decimal``; timestamps are aware and in UTC, local timestamps naive, both cut to microseconds; date,
    time and uuid become Python's types of these names. Defaults of the reader's schema are converted in the same way.
    With ``tombstones=True`` a null value decodes to None. As ``key=`` of a pipeline it decodes keys.

    A record is poison if it is not in the wire format, does not fit the type, or has a schema that the registry does
    not know, or one for another codec (JSON Schema, Protobuf). If the registry does not answer, decoding raises
    CodecUnavailable: the worker waits, and no record fails.
    """

    @overload
    def __init__(
        self: Avro[T], type: type[T], *, tombstones: Literal[False] = False, **more: Unpack[_Options]
    ) -> None: ...
    @overload
    def __init__(self: Avro[T | None], type: type[T], *, tombstones: bool, **more: Unpack[_Options]) -> None: ...
    @overload
    def __init__(self: Avro[Any], type: None = None, *, tombstones: bool = False, **more: Unpack[_Options]) -> None: ...
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
        long = with_context(AvroDeserializer(confluents, self.schema, conf=self._settings()))
        reader = AvroReader(client, self.schema, self.record_name, self._is_short)

        def checked(data: bytes, record: RawRecord, field: str) -> Any:
            value = long(data, record, field)
            reader.check_latest()
            return value

        return Frames(checked, avro_frame, reader.shorten)
