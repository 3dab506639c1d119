"""Protobuf messages as plain values: dicts of their fields, and Python's own types for well-known messages.

Not the JSON mapping, which makes text of bytes, times and 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from seekpoint.records import EPOCH

Reader = Callable[[Any], Any]


def plain(message: Any) -> Any:
    """The message as a dict of its fields, by their names in the .proto file; well-known types as Python's own.

    A field that tracks whether it was set is None if it was not. Enums are names, or numbers that have none. Raises
    ValueError or OverflowError for times that Python cannot hold.
    """
    return _reader_of(message.DESCRIPTOR)(message)


@cache
def _reader_of(descriptor: Descriptor) -> Reader:
    """How messages of this kind are read; worked out once."""
    if (known := WELL_KNOWN.get(descriptor.full_name)) is not None:
        return known
    fields = tuple((field.name, field.has_presence, _reader(field)) for field in descriptor.fields)

    def read_fields(message: Any) -> Any:
        made: dict[str, Any] = {}
        for name, tracked, read in fields:
            if tracked and not message.HasField(name):
                made[name] = None
            else:
                made[name] = getattr(message, name) if read is None else read(getattr(message, name))
        return made

    return read_fields


def _reader(field: FieldDescriptor) -> Reader | None:
    """How the field's value is read; None where it is what it should be."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        read_value = _one(kind.fields_by_name["value"])
        if read_value is None:
            return dict
        return lambda entries: {key: read_value(entries[key]) for key in entries}
    read = _one(field)
    if not field.is_repeated:
        return read
    return list if read is None else lambda several: [read(one) for one in several]


def _one(field: FieldDescriptor) -> Reader | None:
    if field.message_type is not None:
        # Not the reader itself: messages may hold themselves. Its type may be known already, where it is known at all.
        return WELL_KNOWN.get(field.message_type.full_name) or plain
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return None


def _seconds(message: Any) -> timedelta:
    return timedelta(seconds=message.seconds, microseconds=int(message.nanos / 1000))  # nanoseconds are cut off


def _unscaled(message: Any) -> Decimal:
    """Confluent's decimal: an integer's bytes, and a scale. Exact, whatever the context's precision is."""
    number = int.from_bytes(message.value, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -message.scale))


WELL_KNOWN: Mapping[str, Reader] = {
    "google.protobuf.Timestamp": lambda message: EPOCH + _seconds(message),
    "google.protobuf.Duration": _seconds,
    "google.type.Date": lambda message: date(message.year, message.month, message.day),
    "google.type.TimeOfDay": lambda message: time(
        message.hours, message.minutes, message.seconds, message.nanos // 1000
    ),
    "google.type.Decimal": lambda message: Decimal(message.value or "0"),
    "confluent.type.Decimal": _unscaled,
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
