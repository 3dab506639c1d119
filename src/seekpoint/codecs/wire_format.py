"""The registry's wire format, and a fast path for records with a known frame (the schema's id).

The first record with a topic, field and frame goes through Confluent's deserializer, which asks the registry. If the
result depends only on bytes and schema (no rules, no migrations), the format's parser decodes later records directly,
in a quarter of the time. A record that fails there is decoded again by Confluent's deserializer, to raise that one's
error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.records import RawRecord, add_note, numbered

# Framed data, its record, "key" or "value"; uses Confluent's deserializer.
Long = Callable[[bytes, RawRecord, str], Any]
Short = Callable[[bytes, int], Any]  # framed data, and the index at which the payload begins
Frame = Callable[[bytes], int]  # the length of the data's frame in bytes; 0: not in the wire format

ID, GUID = 5, 17  # bytes before the payload; the first is 0 before an id, 1 before a GUID
INDIFFERENT = frozenset({"subject.name.strategy", "subject.name.strategy.type", "subject.name.strategy.conf"})


class Frames:
    """Decodes framed data; ``shorten`` makes the fast path for a frame, and checks it against a decoded value."""

    def __init__(self, long: Long, frame: Frame, shorten: Callable[[bytes, bytes, Any], Short | None]) -> None:
        self._long, self._frame, self._shorten = long, frame, shorten
        self._short: dict[tuple[str, str, bytes], Short | None] = {}

    def __call__(self, data: bytes, record: RawRecord, field: str) -> Any:
        """The value. Raises the errors of Confluent's deserializer, and ValueError for data that is too short."""
        begin = self._frame(data)
        if not begin:
            _require_frame(data, field)
        key = (record.topic, field, data[:begin])
        short = self._short.get(key)
        if short is not None:
            try:
                return short(data, begin)
            except Exception:
                self._long(data, record, field)  # raises Confluent's error, which users can look up
                raise  # it would return a value without the fast path's conversions
        try:
            value = self._long(data, record, field)
        except Exception as error:
            if data[0] not in {0, 1} and "magic" in str(error):
                add_note(error, _NOT_FRAMED.format(field=field, byte=data[0]))
            raise
        if begin and key not in self._short:
            try:
                self._short[key] = short = self._shorten(data[:begin], data, value)
            except (CodecUnavailable, ConfigError):
                raise
            except Exception:  # noqa: BLE001 -- the value was decoded; only the fast path is not available
                self._short[key] = None
        return value if short is None else short(data, begin)


_NOT_FRAMED = (
    "the {field} begins with the byte {byte:#04x}, not with the magic byte 0 or 1 of a schema registry's wire format: "
    "produce it with one of the registry's serializers, or declare the codec of its own format, e.g. Json()"
)


def _require_frame(data: bytes, field: str) -> None:
    """Raise ValueError for data that is too short; Confluent's deserializer would raise errors of struct or uuid."""
    if not data or (data[0] == 0 and len(data) <= ID) or (data[0] == 1 and len(data) < GUID):
        raise ValueError(
            f"the {field} has {numbered(len(data), 'byte')}, too few for a schema registry's wire format, which is a "
            "magic byte, the schema's id and the data: produce it with one of the registry's serializers"
        )


def avro_frame(data: bytes) -> int:
    """The length of the frame before an Avro or JSON payload, or 0."""
    if len(data) <= ID:  # Confluent's deserializer refuses data of this length
        return 0
    return ID if data[0] == 0 else GUID if data[0] == 1 and len(data) >= GUID else 0


def protobuf_frame(data: bytes) -> int:
    """The length of a message's frame: the schema's id, and the path to the message in the schema."""
    begin = avro_frame(data)
    if not begin or begin == len(data):
        return 0
    if data[begin] == 0:  # the short form of the path to the first message
        return begin + 1
    count, index = _varint(data, begin)
    for _ in range(count):
        if index == 0:
            return 0
        index = _varint(data, index)[1]
    return index


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """A number and the index after it; 0 and 0 if the number does not end."""
    encoded = shift = 0
    for end in range(start, min(start + 5, len(data))):
        encoded |= (data[end] & 0x7F) << shift
        if data[end] < 0x80:
            return (encoded >> 1) ^ -(encoded & 1), end + 1
        shift += 7
    return 0, 0


def schema_id(frame: bytes) -> int | str:
    """The schema's id or GUID in a frame."""
    return int.from_bytes(frame[1:ID], "big") if frame[0] == 0 else str(UUID(bytes=frame[1:GUID]))


def is_plain(schema: Any) -> bool:
    """Whether decoding needs only this schema's text: no rules, and no other schema."""
    return schema is not None and not schema.references and schema.rule_set is None
