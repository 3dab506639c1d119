"""Codecs, for declarations: they turn the bytes of keys and values into Python values.

A codec is a callable ``bytes -> V``, or an object with ``decode(record) -> V`` for formats that need the
whole record (headers, topic). A callable never gets null: a null key is None; a null value (a tombstone) is None
if the codec declares ``tombstones=True``, and poison otherwise. Any exception of a codec makes the record a poison
record, except CodecUnavailable: a service that the codec needs does not answer, so the worker waits. Do not use
``pickle.loads``: a producer of the topic could run code.

``Avro``, ``JsonSchema``, ``Protobuf`` and ``Registry`` need the extra ``registry``, ``Arrow`` the extra ``arrow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.codecs.cloud_events import CloudEvent, Event
from seekpoint.codecs.codec import BytesDecoder, Codec, RecordCodec
from seekpoint.codecs.connect_values import UNAVAILABLE, Unreadable
from seekpoint.codecs.debezium import Change, Debezium
from seekpoint.codecs.json import Json
from seekpoint.codecs.text import Bytes, Text

if TYPE_CHECKING:
    from seekpoint.codecs.arrow import Arrow
    from seekpoint.codecs.avro import Avro
    from seekpoint.codecs.json_schema import JsonSchema
    from seekpoint.codecs.protobuf import Protobuf
    from seekpoint.codecs.registry_client import Registry

__all__ = [
    "UNAVAILABLE",
    "Arrow",
    "Avro",
    "Bytes",
    "BytesDecoder",
    "Change",
    "CloudEvent",
    "Codec",
    "Debezium",
    "Event",
    "Json",
    "JsonSchema",
    "Protobuf",
    "RecordCodec",
    "Registry",
    "Text",
    "Unreadable",
]


def __getattr__(name: str) -> Any:
    """Import a codec that needs an extra, when it is first used."""
    if name == "Arrow":
        from seekpoint.codecs.arrow import Arrow  # noqa: PLC0415 -- an extra

        return Arrow
    if name in {"Avro", "JsonSchema", "Protobuf", "Registry"}:
        from seekpoint.codecs import avro, json_schema, protobuf, registry_client  # noqa: PLC0415 -- an extra

        modules = {"Avro": avro, "JsonSchema": json_schema, "Protobuf": protobuf, "Registry": registry_client}
        return getattr(modules[name], name)
    raise AttributeError(f"module 'seekpoint.codecs' has no attribute {name!r}")
