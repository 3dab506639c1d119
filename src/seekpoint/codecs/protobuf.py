"""The codec Protobuf: Protobuf in the wire format of a schema registry. Needs the extra: ``registry``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, Unpack, overload

from seekpoint.codecs.registry_client import Registry, check, connect
from seekpoint.codecs.registry_codec import NOTHING, Decode, RegistryCodec, with_context
from seekpoint.codecs.wire_format import Frames, Short, is_plain, protobuf_frame, schema_id
from seekpoint.errors import ConfigError

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class _WithType(TypedDict):
    """Options that do not change what a Protobuf codec decodes to."""

    registry: Registry | None
    options: NotRequired[Mapping[str, Any]]


class _WithMessage(_WithType):
    type: NotRequired[None]


class Protobuf(RegistryCodec[V_co]):
    """Decode Protobuf in a schema registry's wire format into ``message``, a generated class, or into ``type``.

    ``registry``, ``options`` (for ``ProtobufDeserializer``), ``tombstones`` and errors are as in
    :class:`seekpoint.codecs.Avro`. A record is poison if its message has another full name (package, enclosing
    messages, name), because its bytes might be read as this message. With ``registry=None`` no request is sent, and the
    name is not checked.

    ``type`` is ``dict``, or a type to which msgspec converts a dict of the message's fields. In this dict a field with
    presence is None if it was not set; enums are names; ``Timestamp`` is aware and in UTC, cut to microseconds;
    ``Duration``, ``google.type.Date`` and ``TimeOfDay``, the wrappers, and both ``Decimal`` types become the Python
    types for them.
    """

    @overload
    def __init__(
        self: Protobuf[T], message: type[T], *, tombstones: Literal[False] = False, **more: Unpack[_WithMessage]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T | None], message: type[T], *, tombstones: bool, **more: Unpack[_WithMessage]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T], message: Any, *, type: type[T], tombstones: Literal[False] = False, **more: Unpack[_WithType]
    ) -> None: ...
    @overload
    def __init__(
        self: Protobuf[T | None], message: Any, *, type: type[T], tombstones: bool, **more: Unpack[_WithType]
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
        return ("subject.name.strategy.type",)  # the codec sets a function, which takes precedence

    def _open(self) -> Decode:
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer  # noqa: PLC0415 -- see the module

        client: Any = None if self.registry is None else connect(self.registry, "PROTOBUF")
        settings = self._settings()
        if client is not None:
            settings["subject.name.strategy"] = self._checked(settings["subject.name.strategy"])
        long = with_context(ProtobufDeserializer(self.message, settings, client))

        def shorten(frame: bytes, _data: bytes, value: Any) -> Short | None:
            if not self._is_short or (client is not None and not is_plain(client.written_with(schema_id(frame)))):
                return None
            parse = type(value).FromString
            return lambda data, begin: parse(data[begin:])

        return Frames(long, protobuf_frame, shorten)

    def _checked(self, subject: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Add a check of the message's name to the subject strategy: its bytes might be read as another message."""
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
        from seekpoint.codecs.protobuf_values import plain  # noqa: PLC0415 -- it needs the extra

        return plain(value)
