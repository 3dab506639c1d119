"""Debezium's events: what a value is, by the event's schema or by declaration, and what is no change of a row."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from seekpoint.codecs import UNAVAILABLE, Debezium, Unreadable
from seekpoint.errors import ConfigError, Poison
from seekpoint.testing import raw
from support.debezium import event, field, key_of

DECIMAL, TIME, DATA = "org.apache.kafka.connect.data.Decimal", "io.debezium.time.", "io.debezium.data."


def base64(number: int) -> str:
    return b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


VALUES: list[tuple[dict[str, Any], Any, Any]] = [
    (field("v", "bytes", DECIMAL, scale="2"), base64(123456), Decimal("1234.56")),
    (field("v", "bytes", DECIMAL, scale="2"), base64(-1), Decimal("-0.01")),
    (field("v", "bytes", DECIMAL, scale="-2"), base64(5), Decimal("5E+2")),
    (field("v", "bytes", DECIMAL, scale="20"), base64(10**60), Decimal("1" + "0" * 40 + "." + "0" * 20)),
    (field("v", "struct", DATA + "VariableScaleDecimal"), {"scale": 3, "value": base64(1500)}, Decimal("1.500")),
    (field("v", "int32", TIME + "Date"), -3653, date(1960, 1, 1)),
    (field("v", "int32", "org.apache.kafka.connect.data.Date"), 0, date(1970, 1, 1)),
    (field("v", "int32", TIME + "Time"), 1, time(0, 0, 0, 1000)),
    (field("v", "int64", TIME + "MicroTime"), 86_399_999_999, time(23, 59, 59, 999_999)),
    (field("v", "int64", TIME + "MicroTime"), 86_400_000_000, "24:00:00"),
    (field("v", "int64", TIME + "NanoTime"), 1_000, time(0, 0, 0, 1)),
    (field("v", "int64", TIME + "Timestamp"), -1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    (field("v", "int64", TIME + "MicroTimestamp"), 253402300799999999, datetime(9999, 12, 31, 23, 59, 59, 999_999)),
    (field("v", "int64", TIME + "NanoTimestamp"), -1_000, datetime(1969, 12, 31, 23, 59, 59, 999_999)),
    (field("v", named=TIME + "ZonedTimestamp"), "2024-02-29T10:00:00.5Z", "2024-02-29T10:00:00.5Z"),
    (field("v", named=TIME + "Interval"), "P1Y2DT3.5S", "P1Y2DT3.5S"),
    (field("v", named=DATA + "Json"), '{"a": 1.50}', msgspec.Raw(b'{"a": 1.50}')),
    (field("v", "bytes", DATA + "Bits", length="9"), b64encode(b"\x01\x01").decode(), "100000001"),
    (field("v", "bytes", DATA + "Bits", length="9"), b64encode(b"\x05\x00").decode(), "000000101"),
    (field("v", "bytes"), b64encode(b"\0\xff").decode(), b"\0\xff"),
    (field("v", "struct", DATA + "geometry.Point"), {"x": 1.5, "y": -2.0, "wkb": "", "srid": None}, "(1.5,-2.0)"),
    (
        field("v", "struct", DATA + "geometry.Geometry"),
        {"wkb": b64encode(bytes.fromhex("0101000000000000000000f03f0000000000000040")).decode(), "srid": 4326},
        "0101000020e6100000000000000000f03f0000000000000040",
    ),
    (  # PostGIS's own binary has the SRID already
        field("v", "struct", DATA + "geometry.Geometry"),
        {"wkb": b64encode(bytes.fromhex("0101000020e6100000000000000000f03f0000000000000040")).decode(), "srid": 4326},
        "0101000020e6100000000000000000f03f0000000000000040",
    ),
    (
        field("v", "struct", DATA + "geometry.Geography"),
        {"wkb": b64encode(bytes.fromhex("00000000013ff00000000000004000000000000000")).decode(), "srid": 4326},
        "0020000001000010e63ff00000000000004000000000000000",
    ),
    (
        field("v", "struct", DATA + "geometry.Geometry"),
        {"wkb": b64encode(bytes.fromhex("0101000000000000000000f03f0000000000000040")).decode(), "srid": None},
        "0101000000000000000000f03f0000000000000040",
    ),
    (
        {**field("v", "array"), "items": {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1"}}},
        [base64(15), None],
        [Decimal("1.5"), None],
    ),
    ({**field("v", "array"), "items": {"type": "string"}}, ["a", None], ["a", None]),
    (
        {**field("v", "map"), "keys": {"type": "string"}, "values": {"type": "bytes"}},
        {"a": "AQ==", "b": None},
        {"a": b"\1", "b": None},
    ),
    ({**field("v", "map"), "keys": {"type": "int32"}, "values": {"type": "bytes"}}, [[1, "AQ=="]], [[1, b"\1"]]),
    (field("v"), "__debezium_unavailable_value", UNAVAILABLE),
    (field("v", "bytes"), b64encode(b"__debezium_unavailable_value").decode(), UNAVAILABLE),
    ({**field("v", "array"), "items": {"type": "string"}}, ["__debezium_unavailable_value"], UNAVAILABLE),
    (field("v", "bytes", DECIMAL, scale="2"), None, None),
]


@pytest.mark.parametrize(("schema", "sent", "value"), VALUES)
def test_a_value_is_what_the_schema_says(schema: dict[str, Any], sent: Any, value: Any) -> None:
    change = Debezium().decode(raw(event([schema], "c", None, {"v": sent})))
    assert change is not None
    assert change.after is not None
    assert (type(change.after["v"]), change.after["v"]) == (type(value), value)
    if isinstance(value, Decimal):
        assert change.after["v"].as_tuple() == value.as_tuple(), "all digits"


@pytest.mark.parametrize(
    ("schema", "sent", "message"),
    [
        (field("v", "int64", TIME + "MicroDuration"), 5, "interval.handling.mode=string"),
        (field("v", "int64", TIME + "NanoTimestamp"), 1, "not whole microseconds"),
        (field("v", "int64", TIME + "MicroTimestamp"), 2**62, "field 'v'"),
        (field("v", "int32", TIME + "Date"), 1.5, "cannot be interpreted as an integer"),
        (field("v", "int64", TIME + "MicroTime"), -1, "not a time of day"),
        (field("v", "bytes", DATA + "Bits"), "AQE=", "how many bits there are"),
        (field("v", "bytes", DECIMAL), "AQE=", "needs the parameter 'scale'"),
        (field("v", "struct", DATA + "Unheard"), {}, "Seekpoint cannot read values of io.debezium.data.Unheard"),
    ],
)
def test_a_value_that_cannot_be_exact_is_refused(schema: dict[str, Any], sent: Any, message: str) -> None:
    change = Debezium().decode(raw(event([schema], "c", None, {"v": sent})))
    assert change is not None
    assert change.after is not None
    assert isinstance(change.after["v"], Unreadable)
    assert message in change.after["v"].why


def test_white_space_before_an_event_is_json() -> None:
    change = Debezium().decode(raw(b" \n" + event([field("v", "int32")], "c", None, {"v": 5})))
    assert change is not None
    assert change.after == {"v": 5}


def test_an_event_without_a_schema_needs_a_declaration() -> None:
    body = {"before": None, "after": {"id": 1, "at": 5, "n": 5}, "source": {}, "op": "c"}
    value = raw(json.dumps(body).encode(), key=b'{"id": 1}')
    with pytest.raises(Poison, match=r"the event's key has no schema.* key\.converter\.schemas\.enable=true.*key=De"):
        Debezium().decode_key(value)
    with pytest.raises(Poison, match=r"the event's value .* set value\.converter\.schemas\.enable=true"):
        Debezium().decode(value)
    codec = Debezium(types={"at": TIME + "MicroTimestamp"})
    change = codec.decode(value)
    assert change is not None
    assert change.after == {"id": 1, "at": datetime(1970, 1, 1, microsecond=5), "n": 5}
    assert codec.decode_key(value) == {"id": 1}
    scaled = Debezium(types={"n": {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1"}}})
    change = scaled.decode(raw(json.dumps({**body, "after": {"n": base64(15)}}).encode()))
    assert change is not None
    assert change.after == {"n": Decimal("1.5")}


def test_a_source_is_an_object_or_null() -> None:
    change = Debezium().decode(raw(event([field("id")], "c", None, {"id": "1"}, lsn=7)))
    assert change is not None
    assert change.source == {"table": "t", "lsn": 7}
    codec = Debezium(types={})
    change = codec.decode(raw(b'{"op": "c", "after": {"id": 1}, "source": null}'))
    assert change is not None
    assert change.source == {}
    for source in (b'"x"', b"5", b"[1]"):
        for op, row in ((b"c", b"after"), (b"d", b"before")):
            with pytest.raises(Poison, match="it has no op, or no object as source"):
                codec.decode(raw(b'{"op": "%b", "%b": {"id": 1}, "source": %b}' % (op, row, source)))


def test_flattened_rows() -> None:
    codec = Debezium(flattened=True, types={})
    change = codec.decode(raw(b'{"id": 1, "__deleted": "false", "__lsn": 7}'))
    assert change is not None
    assert (change.op, change.after, change.source) == ("u", {"id": 1}, {"__deleted": "false", "__lsn": 7})
    change = codec.decode(raw(b'{"id": 1, "__deleted": "true"}'))
    assert change is not None
    assert (change.op, change.before, change.after) == ("d", {"id": 1}, None)
    assert codec.decode(raw(None)) is None
    assert codec.decode(raw(b"null")) is None, "as the JSON converter writes the tombstone of a delete"
    change = codec.decode(raw(b' {"schema": "public", "payload": 5}'))
    assert change is not None
    assert change.after == {"schema": "public", "payload": 5}, "columns, and no schema of the event"
    with pytest.raises(Poison, match="an envelope, not a flattened row"):
        codec.decode(raw(b'{"op": "c", "before": null, "after": {}, "source": {}}'))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"source": {}, "ddl": "CREATE TABLE t", "tableChanges": []}, "a schema change .* leave its topic"),
        ({"ts_ms": 1}, "a heartbeat is not a change of a row"),
        ({"id": 1}, "no op, or no object as source"),
        ({"op": "m", "source": {}}, "not a change of a row"),
        ({"op": "c", "source": {}, "after": None}, "'after' is missing"),
        ({"op": "d", "source": {}, "after": {}}, "'after' is not null"),
        ([], "not a Debezium envelope"),
        ({"op": ["c"], "source": {}}, r"op is \['c'\], which is not a change of a row"),
        ({"op": "c", "source": {}, "after": [1]}, "'before' and 'after' must be objects or null"),
        ({"op": "d", "source": {}, "before": 5}, "'before' and 'after' must be objects or null"),
    ],
)
def test_what_is_no_change_of_a_row_is_named(body: Any, message: str) -> None:
    with pytest.raises(Poison, match=message):
        Debezium(types={}).decode(raw(json.dumps(body).encode()))


def test_a_schema_change_is_named_by_its_schema() -> None:
    schema = {"type": "struct", "fields": [], "name": "io.debezium.connector.mysql.SchemaChangeValue"}
    with pytest.raises(Poison, match="a schema change"):
        Debezium().decode(raw(json.dumps({"schema": schema, "payload": {"databaseName": "x"}}).encode()))


def test_a_key_is_its_columns() -> None:
    assert Debezium().decode_key(raw(b"x", key=key_of(id=1))) == {"id": 1}
    assert Debezium().decode_key(raw(b"x", key=None)) is None


def test_types_are_a_mapping() -> None:
    for name, meant in (("MicroTimestamp", "MicroTimestamp"), ("timestamp", "Timestamp"), (TIME + "Dat", "Date")):
        why = f"types= gives 'at' the type '{name}', which Seekpoint cannot read: did you mean '{TIME}{meant}'"
        for kind in (name, {"type": "int64", "name": name}):
            with pytest.raises(ConfigError, match=re.escape(why)):
                Debezium(types={"at": kind})
    for wrong in ({"at": int}, {"at": None}, {1: TIME + "Date"}):
        with pytest.raises(ConfigError, match="types= maps columns to the names of their types, got"):
            Debezium(types=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="types= maps columns"):
        Debezium(types="io.debezium.time.Date")  # type: ignore[arg-type]


def test_the_next_event_is_read_by_its_own_schema() -> None:
    """An event that begins as the last one is read without its schema; any other is read with it."""
    codec = Debezium()
    day, number = field("v", "int32", TIME + "Date"), field("v", "int32")
    events = [event([schema], "c", None, {"v": 1}) for schema in (day, day, number, day)]
    events += [events[0].replace(b'"payload"', b' "payload"'), events[0][:-1] + b" }"]
    payload, schema = (json.dumps(json.loads(events[2])[part]) for part in ("payload", "schema"))
    events += [f'{{"payload":{payload},"schema":{schema}}}'.encode()] * 2
    changes = [codec.decode(raw(value)) for value in events]
    values = [change.after["v"] for change in changes if change is not None and change.after is not None]
    assert values == [date(1970, 1, 2), date(1970, 1, 2), 1, *[date(1970, 1, 2)] * 3, 1, 1]
    for begin in (codec, Debezium()):
        with pytest.raises((msgspec.DecodeError, Poison)):
            begin.decode(raw(events[4][:-1] + b',"more":1}'))
    assert codec.decode(raw(events[0][: events[0].index(b'"payload"')] + b'"payload":null}')) is None


def test_a_table_may_be_called_heartbeats() -> None:
    body = json.loads(event([field("v", "int32")], "c", None, {"v": 1}))
    body["schema"]["name"] = "dbz.public.Heartbeats.Envelope"
    change = Debezium().decode(raw(json.dumps(body).encode()))
    assert change is not None
    assert change.after == {"v": 1}
    row = {"schema": {"type": "struct", "name": "dbz.public.Heartbeats.Value", "fields": []}, "payload": {"v": 1}}
    change = Debezium(flattened=True).decode(raw(json.dumps(row).encode()))
    assert change is not None
    assert change.after == {"v": 1}
