"""Converts Protobuf messages to plain values: dicts of their fields, and Python types for well-known messages.

Unlike in the JSON mapping, bytes, times and 64-bit integers do not become text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from seekpoint.codecs.connect_values import connect_decimal
from seekpoint.records import EPOCH

Reader = Callable[[Any], Any]


def plain(message: Any) -> Any:
    """The message as a dict of its fields, by their names in the .proto file; well-known types as Python types.

    A field with presence is None if it was not set. An enum is its name, or its number if that has no name. Raises
    ValueError or OverflowError for times that Python cannot hold.
    """
    return _reader_of(message.DESCRIPTOR)(message)


@cache
def _reader_of(descriptor: Descriptor) -> Reader:
    """The reader of messages with this descriptor, made once."""
    if (known := WELL_KNOWN.get(descriptor.full_name)) is not None:
        return known
    fields = tuple((field.name, field.has_presence, _reader(field)) for field in descriptor.fields)

    def read_fields(message: Any) -> Any:
        values: dict[str, Any] = {}
        for name, tracked, read in fields:
            if tracked and not message.HasField(name):
                values[name] = None
            else:
                values[name] = getattr(message, name) if read is None else read(getattr(message, name))
        return values

    return read_fields


def _reader(field: FieldDescriptor) -> Reader | None:
    """The reader of the field's value; None if the value needs no conversion."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        read_value = _one(kind.fields_by_name["value"])
        if read_value is None:
            return dict
        return lambda entries: {key: read_value(entries[key]) for key in entries}
    read = _one(field)
    if not field.is_repeated:
        return read
    return list if read is None else lambda elements: [read(element) for element in elements]


def _one(field: FieldDescriptor) -> Reader | None:
    if field.message_type is not None:
        # plain(), which looks up the reader for each value: a message may contain itself, so making its reader here
        # would not end.
        return WELL_KNOWN.get(field.message_type.full_name) or plain
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return None


def _seconds(message: Any) -> timedelta:
    return timedelta(seconds=message.seconds, microseconds=int(message.nanos / 1000))  # nanoseconds are cut off


WELL_KNOWN: Mapping[str, Reader] = {
    "google.protobuf.Timestamp": lambda message: EPOCH + _seconds(message),
    "google.protobuf.Duration": _seconds,
    "google.type.Date": lambda message: date(message.year, message.month, message.day),
    "google.type.TimeOfDay": lambda message: time(
        message.hours, message.minutes, message.seconds, message.nanos // 1000
    ),
    "google.type.Decimal": lambda message: Decimal(message.value or "0"),
    "confluent.type.Decimal": lambda message: connect_decimal(message.value, message.scale),
    **dict.fromkeys(
        (f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")), json_format.MessageToDict
    ),
    **dict.fromkeys(
        (
            f"google.protobuf.{name}Value"
            for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
        ),
        lambda message: message.value,
    ),
}
