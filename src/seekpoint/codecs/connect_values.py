"""Converts values that JsonConverter or AvroConverter wrote, by the field's schema.

A value that cannot be converted exactly becomes :class:`Unreadable`.
Names of types are Connect's (``org.apache.kafka.connect.data.…``) and Debezium's (``io.debezium.…``). If a type has no
name, its plain type decides. Bytes are base64 texts in JSON, and bytes in Avro.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from difflib import get_close_matches
from operator import index
from struct import Struct
from typing import Any

import msgspec

from seekpoint.errors import ConfigError

Schema = Mapping[str, Any]  # a field's schema as JsonConverter writes it; `connect_avro` makes it from Avro's schema
Convert = Callable[[Any], Any]


class Unavailable:
    """A value that the source did not send, because an update did not change it (TOAST). psycopg cannot write it."""

    def __repr__(self) -> str:
        return "UNAVAILABLE"


class Unreadable:
    """A value that cannot be converted exactly, with the reason. Its record fails only if a sink writes the value."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"Unreadable({self.why!r})"


UNAVAILABLE = Unavailable()
_PLACEHOLDER = "__debezium_unavailable_value"
_TEXTS: set[str | bytes] = {  # placeholders of texts, bytea, and hstore as JSON
    _PLACEHOLDER,
    _PLACEHOLDER.encode(),
    b64encode(_PLACEHOLDER.encode()).decode(),
    f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}',
}
_OTHERS: list[Any] = [[_PLACEHOLDER], [*_PLACEHOLDER.encode()], {_PLACEHOLDER: _PLACEHOLDER}]  # of arrays, hstore
_EPOCH, _DAY = date(1970, 1, 1), 86_400_000_000  # _DAY in microseconds
_MOMENT = datetime(1970, 1, 1)  # the epoch of times without a zone
_in_32_bits = Struct("f").pack
_WIDE = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # a decimal context without rounding


def row_converter(schema: Schema) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that converts a row by this schema; it does not convert fields outside the schema.

    A value that cannot be converted becomes an :class:`Unreadable`.
    """
    converts = [(field["field"], convert) for field in schema.get("fields") or () if (convert := converter(field))]

    def row(values: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(values)
        for name in _unavailable(values):
            fields[name] = UNAVAILABLE
        for name, convert in converts:
            if (value := fields.get(name)) is not None and value is not UNAVAILABLE:
                try:
                    fields[name] = convert(value)
                except Exception as error:  # noqa: BLE001 -- a wrong value may raise anything
                    fields[name] = Unreadable(f"field {name!r}: {str(error) or type(error).__name__}")
        return fields

    return row


def schema_named(field: object, kind: object) -> Schema:
    """A field's schema, from its type's name, or from a schema with parameters.

    Raises ConfigError for a name that is no type's, whose values would not be converted.
    """
    if not isinstance(field, str) or not isinstance(kind, str | Mapping):
        raise ConfigError(f"types= maps columns to the names of their types, got {field!r}: {kind!r}")
    name = kind if isinstance(kind, str) else kind.get("name")
    if name is not None and name not in _NAMED:
        nearest = get_close_matches(str(name), _NAMED, n=1, cutoff=0)[0]
        raise ConfigError(
            f"types= gives {field!r} the type {name!r}, which Seekpoint cannot read: did you mean {nearest!r}?"
        )
    return {"field": field, "type": "", "name": kind} if isinstance(kind, str) else {**kind, "field": field}


def converter(schema: Schema) -> Convert | None:
    """A function that converts the field's values, except null; None if they need no conversion."""
    name, kind = schema.get("name") or "", schema.get("type")
    if name in _NAMED:
        return _NAMED[name](schema)
    if name.startswith(("io.debezium.", "org.apache.kafka.connect.data.")):
        return _refused(f"Seekpoint cannot read values of {name}")
    if kind == "array":
        return _array(schema["items"])
    if kind == "map":
        return _map(schema)
    if kind == "struct":
        return row_converter(schema)
    return _PLAIN.get(kind or "")


def _unavailable(values: Mapping[str, Any]) -> Collection[str]:
    """The fields whose value is a placeholder for one that was not sent."""
    try:
        if _TEXTS.isdisjoint(values.values()):  # fast path
            return ()
    except TypeError:  # lists and objects have no hash
        pass
    return [name for name, value in values.items() if _is_unavailable(value)]


def _is_unavailable(value: Any) -> bool:
    return value in _TEXTS if type(value) in {str, bytes} else isinstance(value, list | dict) and value in _OTHERS


def _array(items: Schema) -> Convert | None:
    convert = converter(items)
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _map(schema: Schema) -> Convert:
    """A function that converts a map: an object, or (if keys are not strings) pairs, which are records in Avro."""
    key, value = (converter(schema.get(part) or {}) or _as_is for part in ("keys", "values"))

    def convert(entries: Any) -> Any:
        if isinstance(entries, dict):
            return {name: None if item is None else value(item) for name, item in entries.items()}
        pairs = (entry.values() if isinstance(entry, dict) else entry for entry in entries)
        return [[key(name), None if item is None else value(item)] for name, item in pairs]

    return convert


def _as_is(value: Any) -> Any:
    return value


def _refused(why: str) -> Convert:
    def refuse(_: Any) -> Any:
        raise ValueError(why)

    return refuse


# -- numbers and bytes ------------------------------------------------------------------------------------------------


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else a2b_base64(value, strict_mode=True)


def _float32(value: float) -> float:
    """The number with the fewest digits that has these 32 bits, as JsonConverter writes it: 0.1, not 0.10000000149."""
    bits = _in_32_bits(value)
    texts = (float(f"{value:.{digits}g}") for digits in (6, 7, 8, 9))
    return next((number for number in texts if _in_32_bits(number) == bits), value)


def connect_decimal(unscaled: str | bytes, scale: int) -> Decimal:
    """A Decimal with all digits of Connect's bytes (a big-endian whole number), whatever the decimal context."""
    return Decimal(int.from_bytes(_bytes(unscaled), "big", signed=True)).scaleb(-scale, _WIDE)


def _scaled(schema: Schema) -> Convert:
    parameters = schema.get("parameters") or {}
    if "scale" not in parameters:
        return _refused("Decimal needs the parameter 'scale': add {'parameters': {'scale': '2'}} to its type in types=")
    scale = int(parameters["scale"])
    return lambda value: connect_decimal(value, scale)


def _bits(schema: Schema) -> Convert:
    length = int((schema.get("parameters") or {}).get("length", 2**31 - 1))
    if length == 2**31 - 1:
        return _refused("the event does not say how many bits there are, as for a bit varying column without a length")
    return lambda value: format(int.from_bytes(_bytes(value), "little"), f"0{length}b")


# -- times ------------------------------------------------------------------------------------------------------------


def _microseconds(value: int, unit: int) -> int:
    """Microseconds of a value in units of ``unit`` nanoseconds. Raises ValueError for a fraction."""
    whole, rest = divmod(value * unit, 1000)
    if rest:
        raise ValueError(f"{value} nanoseconds are not whole microseconds")
    return whole


def _day(value: int) -> date:
    return _EPOCH + timedelta(days=index(value))


def _clock(unit: int) -> Convert:
    def clock(value: int) -> time | str:
        micros = _microseconds(value, unit)
        if not 0 <= micros <= _DAY:
            raise ValueError(f"{value} is not a time of day")
        return "24:00:00" if micros == _DAY else (_MOMENT + timedelta(microseconds=micros)).time()

    return clock


def _moment(unit: int) -> Convert:
    return lambda value: _MOMENT + timedelta(microseconds=_microseconds(value, unit))


def _local(value: str) -> str:
    """Remove the Z that Debezium adds to a time without a zone."""
    return value.removesuffix("Z")


# -- texts and structs ------------------------------------------------------------------------------------------------


def _json(value: str) -> msgspec.Raw:
    return msgspec.Raw(value.encode())


def _point(value: Mapping[str, Any]) -> str:
    if value.get("srid"):
        return _geometry(value)
    return f"({value['x']!r},{value['y']!r})"


def _geometry(value: Mapping[str, Any]) -> str:
    """Extended well-known binary, in hexadecimal digits, as PostGIS reads it."""
    wkb, srid = bytearray(_bytes(value["wkb"])), value.get("srid")
    order: Any = "little" if wkb[0] == 1 else "big"
    kind = int.from_bytes(wkb[1:5], order)
    if srid is not None and not kind & 0x20000000:
        wkb[1:5] = (kind | 0x20000000).to_bytes(4, order) + int(srid).to_bytes(4, order)
    return wkb.hex()


def _always(convert: Convert) -> Callable[[Schema], Convert]:
    return lambda _: convert


_PLAIN: Mapping[str, Convert] = {
    "bytes": _bytes,
    "float32": _float32,
    "union": _refused("a union of several types, which Debezium does not write"),
}
_MS, _US, _NS = 1_000_000, 1_000, 1
_NAMED: Mapping[str, Callable[[Schema], Convert | None]] = {
    "org.apache.kafka.connect.data.Decimal": _scaled,
    "org.apache.kafka.connect.data.Date": _always(_day),
    "org.apache.kafka.connect.data.Time": _always(_clock(_MS)),
    "org.apache.kafka.connect.data.Timestamp": _always(_moment(_MS)),
    "io.debezium.data.VariableScaleDecimal": _always(lambda value: connect_decimal(value["value"], value["scale"])),
    "io.debezium.time.Date": _always(_day),
    "io.debezium.time.Time": _always(_clock(_MS)),
    "io.debezium.time.MicroTime": _always(_clock(_US)),
    "io.debezium.time.NanoTime": _always(_clock(_NS)),
    "io.debezium.time.Timestamp": _always(_moment(_MS)),
    "io.debezium.time.MicroTimestamp": _always(_moment(_US)),
    "io.debezium.time.NanoTimestamp": _always(_moment(_NS)),
    "io.debezium.time.IsoDate": _always(_local),
    "io.debezium.time.IsoTime": _always(_local),
    "io.debezium.time.IsoTimestamp": _always(_local),
    "io.debezium.time.MicroDuration": _always(
        _refused("an interval in microseconds has lost its months and days: set interval.handling.mode=string")
    ),
    "io.debezium.data.Bits": _bits,
    "io.debezium.data.Json": _always(_json),
    "io.debezium.data.geometry.Point": _always(_point),
    "io.debezium.data.geometry.Geometry": _always(_geometry),
    "io.debezium.data.geometry.Geography": _always(_geometry),
} | dict.fromkeys(
    (
        "io.debezium.time.ZonedTimestamp",
        "io.debezium.time.ZonedTime",
        "io.debezium.time.Interval",
        "io.debezium.time.Year",
        "io.debezium.data.Uuid",
        "io.debezium.data.Xml",
        "io.debezium.data.Enum",
        "io.debezium.data.EnumSet",
        "io.debezium.data.Ltree",
        "io.debezium.data.TsVector",
    ),
    lambda _: None,
)
