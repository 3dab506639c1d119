"""CloudEvents: the event's attributes from the record's headers or its JSON envelope, its data by another codec."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

import msgspec

from seekpoint.codecs.codec import Codec, value_decoder
from seekpoint.errors import Poison
from seekpoint.records import RawRecord

D = TypeVar("D")
T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)

_VERSION = "1.0"
_STRUCTURED = "application/cloudevents"  # the beginning of a content type: "+json" follows, or another format
_ATTRIBUTES = ("id", "source", "type", "subject", "time", "dataschema", "datacontenttype")
_REQUIRED = ("id", "source", "type")
_envelope = msgspec.json.Decoder(dict[str, msgspec.Raw])
_time = msgspec.json.Decoder(datetime)
FINER = re.compile(r"([.,]\d{6})\d*[1-9]\d*")  # a time's fraction of a second that is finer than a microsecond


class Event(msgspec.Struct, Generic[D], frozen=True, kw_only=True):
    """A CloudEvent: its attributes, and its data as decoded by the inner codec. ``time`` is aware.

    ``extensions`` has all other attributes as text; a structured event's numbers and booleans as JSON.
    """

    id: str
    source: str
    type: str
    data: D
    subject: str | None = None
    time: datetime | None = None
    dataschema: str | None = None
    datacontenttype: str | None = None
    extensions: Mapping[str, str] = {}


class CloudEvent(Generic[E_co]):
    """Decode a CloudEvent 1.0 into an :class:`Event`, whose data ``inner`` decodes.

    Each record may be in either of Kafka's content modes: binary (attributes in headers ``ce_…``, the value is the
    data) or structured (the value is the whole event in JSON). An event without data has the data None if ``inner``
    declares ``tombstones=True``; otherwise the record is poison. A record with neither value nor attributes is a
    tombstone: None with ``tombstones=True``, otherwise poison. Specification: CloudEvents 1.0.2, Kafka Protocol Binding
    and JSON Event Format.

    A record is poison if it is not a CloudEvent, lacks a required attribute, has another version, or is structured in a
    format other than JSON; or has a time finer than a microsecond, which a datetime cannot hold. With ``round=True``
    such a time is cut.
    """

    @overload
    def __init__(self: CloudEvent[Event[D]], inner: Codec[D], *, round: bool = False) -> None: ...
    @overload
    def __init__(
        self: CloudEvent[Event[D] | None], inner: Codec[D], *, tombstones: bool, round: bool = False
    ) -> None: ...
    def __init__(self, inner: Codec[Any], *, tombstones: bool = False, round: bool = False) -> None:  # noqa: A002
        self.inner, self.tombstones, self.round = inner, tombstones, round
        kind = getattr(inner, "type", None)
        self.type: Any = Event if kind is None else Event[kind]  # type: ignore[valid-type]
        self.is_json: bool = getattr(inner, "is_json", False)
        self._data = value_decoder(inner)

    def __repr__(self) -> str:
        return f"CloudEvent({self.inner!r})"

    def decode(self, record: RawRecord, /) -> E_co:
        """Decode a record's value and headers. Raises Poison, ValueError, and the errors of ``inner``."""
        headers = {name: value for name, value in record.headers if value is not None}
        content = _header("content-type", headers.get("content-type", b""))
        if content.lower().startswith(_STRUCTURED):
            attributes, data = _structured(record, content)
        elif any(name.startswith("ce_") for name in headers):
            named = {name[3:]: _header(name, value) for name, value in headers.items() if name.startswith("ce_")}
            attributes, data = {**named, **({"datacontenttype": content} if content else {})}, record.value
        elif record.value is None and self.tombstones:
            return None  # type: ignore[return-value]  # E_co has None then
        else:
            raise Poison("not a CloudEvent: no header ce_id, and no content-type application/cloudevents+json", record)
        event: E_co = self._event(record, attributes, data)
        return event

    def _event(self, record: RawRecord, attributes: dict[str, str], data: bytes | None) -> Any:
        if (version := attributes.pop("specversion", None)) != _VERSION:
            raise ValueError(f"specversion is {version!r}: only CloudEvents {_VERSION} is supported")
        if missing := [name for name in _REQUIRED if not attributes.get(name)]:
            raise ValueError(f"the CloudEvent has no {missing[0]}")
        if data is None and not getattr(self.inner, "tombstones", True):
            raise Poison("the CloudEvent has no data, and its data's codec does not declare tombstones=True", record)
        fields: dict[str, Any] = {name: attributes.pop(name) for name in _ATTRIBUTES if name in attributes}
        if "time" in fields:
            fields["time"] = _aware(fields["time"], cut=self.round)
        return Event(data=self._data(msgspec.structs.replace(record, value=data)), extensions=attributes, **fields)


def _structured(record: RawRecord, content: str) -> tuple[dict[str, str], bytes | None]:
    """The attributes and the data of an event in JSON."""
    if record.value is None:
        raise Poison(f"the value is null, but the content type is {content}", record)
    if _media_type(content) != f"{_STRUCTURED}+json":
        raise ValueError(f"the content type is {content}: structured events must be {_STRUCTURED}+json")
    members = {name: value for name, value in _envelope.decode(record.value).items() if bytes(value) != b"null"}
    data = _data_of(members)
    return {name: _text(name, value) for name, value in members.items()}, data


def _data_of(members: dict[str, msgspec.Raw]) -> bytes | None:
    """Remove the data from ``members`` and return its bytes: JSON as written, text as UTF-8, base64 decoded."""
    plain, encoded = members.pop("data", None), members.pop("data_base64", None)
    if encoded is not None:
        if plain is not None:
            raise ValueError("the CloudEvent has both data and data_base64")
        return _named("data_base64", lambda: b64decode(msgspec.json.decode(encoded, type=str), validate=True))
    if plain is None:
        return None
    written = members.get("datacontenttype", b'"application/json"')
    content = _text("datacontenttype", written)
    if _media_type(content or "application/json").endswith(("/json", "+json")) or not bytes(plain).startswith(b'"'):
        return bytes(plain)
    return msgspec.json.decode(plain, type=str).encode()


def _header(name: str, value: bytes) -> str:
    return _named(f"header {name}", value.decode)


def _named(name: str, decode: Callable[[], T]) -> T:
    """Decode a part of the event. Raises ValueError with its name if it cannot be decoded."""
    try:
        return decode()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _media_type(content: str) -> str:
    """The content type without its parameters."""
    return content.split(";", 1)[0].strip().lower()


def _text(name: str, value: msgspec.Raw | bytes) -> str:
    """An attribute as text. Raises ValueError, with its name, for one of the specification's that is no text."""
    if name in _ATTRIBUTES or name == "specversion":
        return _named(name, lambda: msgspec.json.decode(value, type=str))
    decoded = msgspec.json.decode(value)
    return decoded if isinstance(decoded, str) else bytes(value).decode()


def _aware(text: str, *, cut: bool) -> datetime:
    """Parse a time in RFC 3339, cut to microseconds with ``cut``.

    Raises ValueError if it is malformed, has no offset from UTC, or is finer than a microsecond.
    """
    written = FINER.sub(r"\1", text)
    moment = _named(f"time {text!r}", lambda: _time.decode(msgspec.json.encode(written)))
    if written != text and not cut:
        raise ValueError(f"time {text!r} is finer than a microsecond: give CloudEvent(round=True) to cut it")
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no offset from UTC")
    return moment
