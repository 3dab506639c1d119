"""Codecs turn bytes into values: JSON, text, bytes, CloudEvents, Debezium's events, or any callable.

A codec is a callable ``bytes -> V``, or an object with ``decode(record) -> V`` for formats that need the
whole record (headers, topic). A callable never gets null: a null key is None; a null value (a tombstone) is None
if the codec declares ``tombstones=True``, and poison otherwise. Any exception of a codec makes its record a poison
record, except CodecUnavailable: a service that the codec needs does not answer, so the worker waits.
Do not use ``pickle.loads``: a producer of the topic could run code.
"""

from seekpoint.codecs.cloud_events import CloudEvent, Event
from seekpoint.codecs.codec import BytesDecoder, Codec, RecordCodec, key_decoder, plain_decoder, value_decoder
from seekpoint.codecs.connect_values import UNAVAILABLE, Unreadable
from seekpoint.codecs.debezium import Change, Debezium
from seekpoint.codecs.json import Json
from seekpoint.codecs.text import Bytes, Text

__all__ = [
    "UNAVAILABLE",
    "Bytes",
    "BytesDecoder",
    "Change",
    "CloudEvent",
    "Codec",
    "Debezium",
    "Event",
    "Json",
    "RecordCodec",
    "Text",
    "Unreadable",
    "key_decoder",
    "plain_decoder",
    "value_decoder",
]
