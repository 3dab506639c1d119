"""Avro, JSON Schema and Protobuf in a registry's wire format: values, frames, evolution, whose fault an error is."""

from __future__ import annotations

import json
import os
import pickle
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.schema_registry import (
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from seekpoint import Append, Bytes, Pipeline
from seekpoint.codecs import Avro, JsonSchema, Protobuf
from seekpoint.codecs.codec import key_decoder, value_decoder
from seekpoint.errors import CodecUnavailable, ConfigError, Poison
from seekpoint.records import one_line
from seekpoint.testing import raw
from support.schema_registry import SchemaRegistry, message_class, shop

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "seal", "type": {"type": "fixed", "name": "Seal", "size": 4}},
    ],
}
VALUE: dict[str, Any] = {
    "id": 2**62,
    "amount": Decimal("-1234567890123456789012345678.90"),
    "at": datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "seen": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    "local": datetime(2024, 1, 2, 3, 4, 5, 6),
    "day": date(2024, 2, 29),
    "noon": time(12, 0, 0, 5000),
    "uid": UUID("12345678-1234-5678-1234-567812345678"),
    "note": None,
    "state": "PAID",
    "tags": {"a": [1, 2], "b": []},
    "seal": b"\x00\xff\x01\xfe",
}


class Order(msgspec.Struct):
    id: int
    amount: Decimal
    at: datetime
    seen: datetime
    local: datetime
    day: date
    noon: time
    uid: UUID
    note: str | None
    state: str
    tags: dict[str, list[int]]
    seal: bytes


class Small(msgspec.Struct):
    id: int


@dataclass
class Parcel:
    id: int


class Typed(TypedDict):
    id: int


SMALL = json.dumps({"type": "record", "name": "Small", "fields": [{"name": "id", "type": "long"}]})
SHOP = shop()
FRAMED = b"\x00\x00\x00\x00\x01\x0a\x0a"


@pytest.fixture
def client() -> SchemaRegistryClient:
    """A registry in memory."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def context(field: str = "value", headers: list[Any] | None = None) -> SerializationContext:
    return SerializationContext("t", MessageField.KEY if field == "key" else MessageField.VALUE, headers)


def avro(client: Any, schema: str, value: Any, **options: Any) -> bytes:
    data: bytes | None = AvroSerializer(client, schema)(value, context(**options))
    assert data is not None
    return data


def quick(registry: SchemaRegistry, **more: Any) -> dict[str, Any]:
    return {"url": registry.url, "max.retries": 0, "timeout": 10, **more}


# -- Avro ---------------------------------------------------------------------------------------------------


def test_avro_becomes_what_it_was_with_every_logical_type(client: SchemaRegistryClient) -> None:
    data = avro(client, json.dumps(ORDER), VALUE)
    assert Avro(registry=lambda: client).decode(raw(data)) == VALUE
    assert Avro(Order, registry=lambda: client).decode(raw(data)) == Order(**VALUE)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Small, Small(5)), (Parcel, Parcel(5)), (Typed, {"id": 5}), (dict[str, int], {"id": 5}), (None, {"id": 5})],
)
def test_avro_becomes_the_type(client: SchemaRegistryClient, kind: Any, expected: Any) -> None:
    assert Avro(kind, registry=lambda: client).decode(raw(avro(client, SMALL, {"id": 5}))) == expected


def test_what_does_not_fit_the_type_says_where(client: SchemaRegistryClient) -> None:
    class Other(msgspec.Struct):
        id: str

    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$\.id`"):
        Avro(Other, registry=lambda: client).decode(raw(avro(client, SMALL, {"id": 5})))


def test_keys_are_decoded_by_the_same_codec(client: SchemaRegistryClient) -> None:
    codec = Avro(int, registry=lambda: client)
    record = raw(avro(client, '"long"', 2**40), key=avro(client, '"long"', 7, field="key"), topic="t")
    assert (key_decoder(codec)(record), value_decoder(codec)(record)) == (7, 2**40)
    assert key_decoder(codec)(raw(b"", key=None)) is None


def test_the_id_may_come_in_a_header(registry: SchemaRegistry) -> None:
    """Of one value only; the last header counts; the payload may then be as short as it likes."""
    client = SchemaRegistryClient({"url": registry.url})
    headers: list[Any] = [("__value_schema_id", b"\x01" + bytes(16)), ("__value_schema_id", None)]
    serialize = AvroSerializer(client, '"int"', conf={"schema.id.serializer": header_schema_id_serializer})
    data = serialize(7, context(headers=headers))
    assert data == b"\x0e"
    key = avro(client, '"long"', 5, field="key")
    record = raw(data, headers=headers, key=key)
    codec = Avro(int, registry=registry.url)
    assert (codec.decode(record), codec.decode_key(record)) == (7, 5)
    assert any("/schemas/guids/" in path for path in registry.asked)


def test_a_readers_schema_resolves_what_was_written_with_another(client: SchemaRegistryClient) -> None:
    wider = json.dumps(
        {
            "type": "record",
            "name": "Small",
            "fields": [
                {"name": "number", "aliases": ["id"], "type": "double"},
                {"name": "note", "type": "string", "default": "none"},
            ],
        }
    )
    old, new = avro(client, SMALL, {"id": 5}), avro(client, wider, {"number": 0.5, "note": "x"})
    codec = Avro(registry=lambda: client, schema=wider)
    assert codec.decode(raw(old)) == {"number": 5.0, "note": "none"}
    assert codec.decode(raw(new)) == {"number": 0.5, "note": "x"}
    assert Avro(registry=lambda: client).decode(raw(old)) == {"id": 5}
    latest = Avro(registry=lambda: client, options={"use.latest.version": True})
    assert latest.decode(raw(old, topic="t")) == {"number": 5.0, "note": "none"}


def test_what_cannot_be_resolved_is_the_records_fault(client: SchemaRegistryClient) -> None:
    needs = '{"type": "record", "name": "Small", "fields": [{"name": "other", "type": "string"}]}'
    with pytest.raises(Exception, match="No default value for") as caught:
        Avro(registry=lambda: client, schema=needs).decode(raw(avro(client, SMALL, {"id": 5})))
    assert not isinstance(caught.value, CodecUnavailable | ConfigError)


# -- JSON Schema --------------------------------------------------------------------------------------------


LINE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Line",
    "type": "object",
    "properties": {"cents": {"type": "integer", "minimum": 0}},
    "required": ["cents"],
}
CART: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Cart",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "rate": {"type": "number"},
        "lines": {"type": "array", "items": {"$ref": "line.json"}},
    },
    "required": ["id"],
}


class Cart(msgspec.Struct):
    id: int
    rate: Decimal = Decimal(0)
    lines: list[dict[str, int]] = []


@pytest.fixture
def cart(client: SchemaRegistryClient) -> Schema:
    """A schema that refers to another one."""
    client.register_schema("line", Schema(json.dumps(LINE), "JSON"))
    return Schema(json.dumps(CART), "JSON", [SchemaReference("line.json", "line", 1)])


def framed(client: SchemaRegistryClient, schema: Schema, body: bytes) -> bytes:
    """These bytes as a producer sends them that has not checked them."""
    return b"\0" + client.register_schema("t-value", schema).to_bytes(4, "big") + body


def test_json_is_checked_by_its_schema_and_keeps_the_digits(client: SchemaRegistryClient, cart: Schema) -> None:
    body = b'{"id": 12345678901234567890123, "rate": 0.12345678901234567890, "lines": [{"cents": 5}]}'
    typed = JsonSchema(Cart, registry=lambda: client).decode(raw(framed(client, cart, body)))
    assert typed == Cart(12345678901234567890123, Decimal("0.12345678901234567890"), [{"cents": 5}])
    plain = JsonSchema(registry=lambda: client).decode(raw(framed(client, cart, body)))
    assert (plain["id"], plain["rate"].text) == (12345678901234567890123, "0.12345678901234567890")


@pytest.mark.parametrize("kind", [None, Cart])
def test_json_that_does_not_fit_its_schema_says_where(client: SchemaRegistryClient, cart: Schema, kind: Any) -> None:
    data = framed(client, cart, b'{"id": 1, "lines": [{"cents": 1}, {"cents": -5}]}')
    with pytest.raises(ValueError, match=r"-5 is less than the minimum of 0 - at `\$\.lines\[1\]\.cents`"):
        JsonSchema(kind, registry=lambda: client).decode(raw(data))
    unchecked = JsonSchema(kind, registry=lambda: client, options={"validate": False})
    first, again = unchecked.decode(raw(data)), unchecked.decode(raw(data))  # which may be another way
    assert msgspec.to_builtins(first)["lines"][1] == {"cents": -5}
    assert first == again


def test_json_as_confluents_serializer_writes_it(client: SchemaRegistryClient) -> None:
    serialize = JSONSerializer(json.dumps(LINE), client)
    assert JsonSchema(dict[str, int], registry=lambda: client).decode(raw(serialize({"cents": 5}, context()))) == {
        "cents": 5
    }


def test_json_is_checked_by_the_readers_schema_where_one_is_given(client: SchemaRegistryClient, cart: Schema) -> None:
    strict = json.dumps({**LINE, "required": ["id", "note"]})
    codec = JsonSchema(registry=lambda: client, schema=strict)
    with pytest.raises(ValueError, match=r"'note' is a required property - at `\$`"):
        codec.decode(raw(framed(client, cart, b'{"id": 1}')))


def test_a_json_schema_of_the_codec_that_is_none_is_no_records_fault() -> None:
    codec = JsonSchema(registry="http://r", schema='{"type": "objct"}')
    with pytest.raises(ConfigError, match=r"schema= is not a JSON Schema: 'objct' is not valid under any"):
        codec.decode(raw(b"\0\0\0\0\1{}"))


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b'{"id": 1}', SerializationError),  # not framed
        (b"\0\0\0\3\xe7{}", LookupError),  # a schema that the registry does not know
    ],
)
def test_bytes_that_no_registrys_serializer_wrote_are_poison(
    client: SchemaRegistryClient, data: bytes, wrong: type[Exception]
) -> None:
    with pytest.raises(wrong):
        JsonSchema(Cart, registry=lambda: client).decode(raw(data))


def test_rules_and_migrations_make_dicts_and_no_types(client: SchemaRegistryClient) -> None:
    ruled = Schema(json.dumps(LINE), "JSON", rule_set=RuleSet(migration_rules=[], domain_rules=[]))
    data = framed(client, ruled, b'{"cents": 5}')
    assert JsonSchema(registry=lambda: client).decode(raw(data)) == {"cents": 5}
    with pytest.raises(ConfigError, match=r"schema \d+ has rules, .*leave the type out"):
        JsonSchema(Cart, registry=lambda: client).decode(raw(data))
    with pytest.raises(ConfigError, match=r"'use.latest.version'.*leave the type out"):
        JsonSchema(Cart, registry="http://r", options={"use.latest.version": True})


# -- Protobuf -----------------------------------------------------------------------------------------------


def full() -> Any:
    order = SHOP["Order"](id=2**62, note="", state=2, seal=b"\x00\xff", prices={"a": 1}, tags=["x", "y"])
    order.at.FromDatetime(datetime(2024, 1, 2, 3, 4, 5, 678901))
    order.items.add(sku="s", count=2**64 - 1)
    order.discount.value = 0.0
    return order


def protobuf(client: Any, message: Any, headers: list[Any] | None = None) -> bytes:
    conf: dict[str, Any] = {"use.deprecated.format": False}
    if headers is not None:
        conf["schema.id.serializer"] = header_schema_id_serializer
    data: bytes | None = ProtobufSerializer(type(message), client, conf)(message, context(headers=headers))
    assert data is not None
    return data


PLAIN = {
    "id": 2**62,
    "note": "",
    "at": datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "state": "PAID",
    "items": [{"sku": "s", "count": 2**64 - 1}],
    "seal": b"\x00\xff",
    "prices": {"a": 1},
    "discount": 0.0,
    "tags": ["x", "y"],
    "best": None,
}


class Item(msgspec.Struct):
    sku: str
    count: int


class Sale(msgspec.Struct):
    id: int
    at: datetime | None
    items: list[Item]
    state: str
    note: str | None = None


def test_protobuf_is_the_message_or_the_type(client: SchemaRegistryClient) -> None:
    data, known = protobuf(client, full()), lambda: client
    assert Protobuf(SHOP["Order"], registry=known).decode(raw(data)) == full()
    assert Protobuf(SHOP["Order"], registry=known, type=dict).decode(raw(data)) == PLAIN
    assert Protobuf(SHOP["Order"], registry=known, type=Sale).decode(raw(data)) == Sale(
        2**62, datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), [Item("s", 2**64 - 1)], "PAID", ""
    )
    empty = Protobuf(SHOP["Order"], registry=known, type=dict).decode(raw(protobuf(client, SHOP["Order"]())))
    assert empty == {
        "id": 0, "note": None, "at": None, "state": "UNKNOWN", "items": [], "seal": b"", "prices": {},
        "discount": None, "tags": [], "best": None,
    }  # fmt: skip
    codec: Any = Protobuf(SHOP["Order"], registry=known, type=dict)
    assert codec.decode(raw(protobuf(client, SHOP["Order"](state=9))))["state"] == 9


def test_well_known_messages_are_pythons_own_types() -> None:
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2
    from google.protobuf import duration_pb2, struct_pb2
    from google.type import date_pb2, timeofday_pb2
    from google.type import decimal_pb2 as google_decimal

    from seekpoint.codecs.protobuf_values import plain

    wide, confluents = 10**40 + 1, vars(decimal_pb2)["Decimal"]
    unscaled = confluents(value=(-wide).to_bytes(20, "big", signed=True), scale=3)
    assert plain(unscaled) == Decimal(f"-{10**37}.001")
    assert plain(google_decimal.Decimal(value="12.30")).as_tuple() == Decimal("12.30").as_tuple()
    assert plain(date_pb2.Date(year=2024, month=2, day=29)) == date(2024, 2, 29)
    assert plain(timeofday_pb2.TimeOfDay(hours=12, nanos=5000)) == time(12, 0, 0, 5)
    assert plain(duration_pb2.Duration(seconds=-1, nanos=-500_000_000)).total_seconds() == -1.5
    document = struct_pb2.Struct()
    document.update({"a": [1, None]})
    assert plain(document) == {"a": [1.0, None]}
    with pytest.raises(ValueError, match="year 0 is out of range"):
        plain(date_pb2.Date(month=2, day=3))


def test_a_message_of_another_name_is_not_read_as_this_one(client: SchemaRegistryClient) -> None:
    """Its bytes could be: a payment's id would become an order's."""
    data = protobuf(client, SHOP["Payment"](id=5))
    with pytest.raises(ValueError, match=r"the record is a shop\.Payment, but the codec reads shop\.Order"):
        Protobuf(SHOP["Order"], registry=lambda: client).decode(raw(data))
    assert Protobuf(SHOP["Payment"], registry=lambda: client).decode(raw(data)) == SHOP["Payment"](id=5)
    assert Protobuf(SHOP["Order"], registry=None).decode(raw(data)) == SHOP["Order"](id=5), "the registry was not asked"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("shop.v1.OrderRefunded.Line", "shop.v1.OrderPlaced.Line"),
        ("shop.v2.Order", "shop.v1.Order"),
        ("Order", "shop.v1.Order"),
        ("shop.v1.Order", "Order"),
    ],
)
def test_a_message_of_the_same_simple_name_is_not_read_as_this_one(
    client: SchemaRegistryClient, written: str, read: str
) -> None:
    data = protobuf(client, message_class(written)(id=5))
    codec: Any = Protobuf(message_class(read), registry=lambda: client, type=dict)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"the record is a {written}, but the codec reads {read}"):
            codec.decode(raw(data))
    same: Any = Protobuf(message_class(written), registry=lambda: client, type=dict)
    assert same.decode(raw(data)) == {"id": 5}


def test_protobuf_with_its_id_in_a_header(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    headers: list[Any] = []
    record = raw(protobuf(client, SHOP["Payment"](id=5), headers), headers=headers)
    assert record.value == b"\x08\x05"
    assert Protobuf(SHOP["Payment"], registry=registry.url).decode(record) == SHOP["Payment"](id=5)


# -- null ---------------------------------------------------------------------------------------------------


def codecs(**options: Any) -> list[Any]:
    return [Avro(registry="mock://", **options), Protobuf(SHOP["Order"], registry="mock://", **options)]


def test_a_null_value_is_poison_unless_declared_and_asks_no_registry() -> None:
    for codec in codecs():
        with pytest.raises(Poison, match="does not declare tombstones=True"):
            codec.decode(raw(None))
    for codec in codecs(tombstones=True):
        assert codec.decode(raw(None)) is None
        assert codec._decoder is None


# -- the record's fault -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"id": 5}', b"\x07\x00\x00\x00\x01\x0a\x0a", b"\x00\x00\x00", b"\x01abc"]
)
@pytest.mark.parametrize("codec", codecs(), ids=repr)
def test_what_is_not_in_the_wire_format_is_the_records_fault(codec: Any, data: bytes) -> None:
    with pytest.raises((SerializationError, ValueError, struct.error, EOFError)):
        codec.decode(raw(data))


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"", "0 bytes"), (b"\x00", "1 byte"), (b"\x00" * 3, "3 bytes"), (FRAMED[:5], "5 bytes"), (b"\x01abc", "4 bytes")],
)
@pytest.mark.parametrize("codec", [*codecs(), JsonSchema(registry="mock://")], ids=repr)
def test_a_value_or_key_too_short_for_the_wire_format_says_so(codec: Any, data: bytes, size: str) -> None:
    with pytest.raises(ValueError, match=f"the value has {size}, too few for a schema registry's wire format"):
        codec.decode(raw(data))
    with pytest.raises(ValueError, match=f"the key has {size}, too few"):
        codec.decode_key(raw(b"", key=data))


@pytest.mark.parametrize("codec", [*codecs(), JsonSchema(registry="mock://")], ids=repr)
def test_a_value_without_the_magic_byte_says_what_to_declare(codec: Any) -> None:
    with pytest.raises(SerializationError) as refused:
        codec.decode(raw(b'{"id": 12345678}'))
    assert "the value begins with the byte 0x7b, not with the magic byte 0 or 1" in one_line(refused.value)


def test_a_function_that_returns_no_registry_is_named() -> None:
    def nothing() -> Any:
        return None

    with pytest.raises(ConfigError, match=r"registry=.*nothing returned NoneType: return a URL, the client's conf"):
        JsonSchema(registry=nothing).decode(raw(FRAMED))


@pytest.mark.parametrize("header", [b"", b"\x01", b"\x01" + bytes(15), b"\x00\x00", b"\x05" + bytes(20)])
def test_a_header_that_holds_no_id_is_the_records_fault(header: bytes) -> None:
    with pytest.raises(ValueError, match="the header __value_schema_id holds no schema id"):
        Avro(registry="mock://").decode(raw(b"\x0e", headers=[("__value_schema_id", header)]))


def test_a_schema_that_the_registry_does_not_know_is_the_records_fault(registry: SchemaRegistry) -> None:
    for codec in (Avro(registry=quick(registry)), Protobuf(SHOP["Order"], registry=quick(registry))):
        with pytest.raises(LookupError, match=r"schema 77 is not in the registry at 'http://127.*Schema not found"):
            codec.decode(raw(b"\x00" + struct.pack(">I", 77) + b"\x00\x0a\x0a"))
    asked = len(registry.asked)
    with pytest.raises(LookupError, match="4294967295 is not a schema id"):
        Avro(registry=quick(registry)).decode(raw(b"\x00\xff\xff\xff\xff\x0a\x0a"))
    assert len(registry.asked) == asked, "a registry would say that there is no such page"


@pytest.mark.parametrize(
    ("codec", "kind", "written", "right"),
    [
        (JsonSchema, "JSON", "AVRO", "Avro"),
        (Avro, "AVRO", "JSON", "JsonSchema"),
        (Avro, "AVRO", "PROTOBUF", "Protobuf"),
        (partial(Protobuf, SHOP["Order"]), "PROTOBUF", "JSON", "JsonSchema"),
    ],
)
def test_a_record_of_another_format_is_not_read_as_this_one(
    client: SchemaRegistryClient, codec: Any, kind: str, written: str, right: str
) -> None:
    schemas = {"AVRO": '"string"', "JSON": "{}", "PROTOBUF": 'syntax = "proto3"; message Order {}'}
    number = client.register_schema("orders-value", Schema(schemas[written], written))
    record = raw(b"\x00" + struct.pack(">I", number) + b"\x00")
    expected = f"schema {number} is {written}, but this codec reads {kind}: decode its topic with {right}"
    with pytest.raises(LookupError, match=expected):
        codec(registry=lambda: client).decode(record)


@pytest.mark.parametrize("rest", [b"", b"\xff", b"\xff" * 20])
def test_a_payload_that_ends_early_or_never_is_the_records_fault(client: SchemaRegistryClient, rest: bytes) -> None:
    data = avro(client, json.dumps(ORDER), VALUE)[:5] + rest
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- fastavro's, of many kinds
        Avro(registry=lambda: client).decode(raw(data))
    assert not isinstance(caught.value, CodecUnavailable | ConfigError)


# -- no record's fault --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error_code": 50001, "message": "Error in the backend data store"}'),
        (503, b"busy"),
        (429, b'{"error_code": 42900, "message": "slow down"}'),
        (404, b"default backend - 404"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (200, b"<html>please log in</html>"),
        (302, b""),
    ],
)
def test_an_answer_without_a_schema_blames_no_record(registry: SchemaRegistry, status: int, body: bytes) -> None:
    avro(SchemaRegistryClient({"url": registry.url}), SMALL, {"id": 5})
    registry.answer = status, body
    codec = Avro(registry=quick(registry))
    with pytest.raises(CodecUnavailable, match="no answer from the schema registry at 'http://127") as caught:
        codec.decode(raw(FRAMED))
    assert caught.value.ask is not None
    with pytest.raises(CodecUnavailable):
        caught.value.ask()
    registry.answer = None
    caught.value.ask()
    assert codec.decode(raw(FRAMED)) == {"id": 5}


def test_silence_and_refused_connections_blame_no_record(registry: SchemaRegistry) -> None:
    registry.silent.set()
    with pytest.raises(CodecUnavailable, match="ReadTimeout"):
        Avro(registry=quick(registry, timeout=0.3)).decode(raw(FRAMED))
    registry.silent.clear()
    codec = Avro(registry=quick(registry))
    registry.stop()
    with pytest.raises(CodecUnavailable, match="ConnectError") as caught:
        codec.decode(raw(FRAMED))
    registry.start()
    assert caught.value.ask is not None
    caught.value.ask()  # that there is no such schema is an answer
    with pytest.raises(LookupError):
        codec.decode(raw(FRAMED))


def test_refused_credentials_are_a_mistake_in_the_configuration(registry: SchemaRegistry) -> None:
    registry.answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
    with pytest.raises(ConfigError, match="refuses the credentials: Unauthorized"):
        Avro(registry=quick(registry)).decode(raw(FRAMED))


def test_a_subject_without_schemas_is_a_mistake_in_the_configuration(registry: SchemaRegistry) -> None:
    codec = Avro(registry=quick(registry), options={"use.latest.version": True})
    with pytest.raises(ConfigError, match="has no schema of the subject 't-value'"):
        codec.decode(raw(FRAMED, topic="t"))


# -- declarations -------------------------------------------------------------------------------------------


def test_a_client_is_made_once_in_each_process(client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def connect() -> SchemaRegistryClient:
        calls.append(os.getpid())
        return client

    codec = Avro(registry=connect)
    Pipeline("g", topics="t", value=codec, key=codec, sinks=[Append("t", columns=["id"])])
    assert not calls
    data = avro(client, SMALL, {"id": 5})
    for _ in range(2):
        assert codec.decode(raw(data)) == {"id": 5}
    assert len(calls) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    for _ in range(2):
        codec.decode(raw(data))
    assert calls[1:] == [-1]


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:s3cret@registry:8081",
        "https://ann:s3cr%65t@registry:8081?x=s3cret",
        "https://ann:s3cret@a:1,https://ann:s3cret@registry:8081",
        {"url": "https://registry:8081", "basic.auth.user.info": "ann:s3cret"},
        {"url": "https://ann:s3cret@registry:8081"},
    ],
)
def test_credentials_are_never_shown(url: Any) -> None:
    for codec in (Avro(Small, registry=url), Protobuf(SHOP["Order"], registry=url)):
        assert "registry='https://registry:8081'" in repr(codec)
        assert "s3cr" not in repr(codec)


@pytest.mark.parametrize("url", ["ann:s3cret@h", "htps://ann:s3cret@h", "https://ann:s3,cret@h"])
def test_a_url_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    for conf in (url, {"url": url}, lambda: url):
        with pytest.raises(ConfigError, match="begins with http:// or https://") as caught:
            Avro(registry=conf).decode(raw(FRAMED))
        assert "s3" not in str(caught.value)


def test_credentials_are_in_no_error(registry: SchemaRegistry) -> None:
    registry.answer = 503, b"no: ann:s3cret, and Basic YW5uOnMzY3JldA==, s3cret"
    conf = quick(registry, **{"basic.auth.user.info": "ann:s3cret"})
    with pytest.raises(CodecUnavailable, match=r"no: \*\*\*, and Basic \*\*\*, \*\*\*") as caught:
        Avro(registry=conf).decode(raw(FRAMED))
    assert caught.value.__suppress_context__
    assert "s3cret" not in str(caught.value)
    assert registry.headers[0]["Authorization"] == "Basic YW5uOnMzY3JldA==", "it was sent, though"
    with pytest.raises(ConfigError, match="Unrecognized properties: colour") as mistaken:
        Avro(registry={**conf, "colour": "s3cret"}).decode(raw(FRAMED))
    assert "s3cret" not in str(mistaken.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Avro(registry=None), "registry= takes a URL"),  # type: ignore[call-overload]
        (lambda: Avro(registry=5), "got int"),  # type: ignore[call-overload]
        (lambda: Avro(registry={}), "url is missing; a registry's url begins with http://"),
        (lambda: Protobuf(Small, registry=None), "give the class that protoc generated"),
        (lambda: Avro(registry="mock://", options={"schema.id.deserializer": len}), "the codec sets this option"),
        (
            lambda: Protobuf(SHOP["Order"], registry="mock://", options={"subject.name.strategy.type": "RECORD"}),
            "the codec sets this option",
        ),
        (lambda: Avro(registry="mock://", schema="{").decode(raw(FRAMED)), r"Avro\(registry='mock://'\)"),
        (lambda: Avro(registry="mock://", options={"x": 1}).decode(raw(FRAMED)), "Unrecognized properties: x"),
        (lambda: Avro(registry=lambda: {"url": "no"}).decode(raw(FRAMED)), "begins with http://"),
        (lambda: Avro(registry=lambda: os.environ["NO_SUCH"]).decode(raw(FRAMED)), "KeyError"),
        (lambda: value_decoder(Avro), "Avro is a class, and a codec must be an instance"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_as_a_mistake_in_the_declaration(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_type_that_nothing_can_become_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no type for a codec: Type unions may not contain more than one"):
        Avro(int | Small | Parcel, registry="mock://")  # type: ignore[arg-type]


def test_codecs_of_bytes_are_untouched() -> None:
    assert key_decoder(Bytes())(raw(b"v", key=b"k")) == b"k"
    assert pickle.loads(pickle.dumps(CodecUnavailable("x"))).ask is None


def test_the_registrys_own_error_is_confluents(client: SchemaRegistryClient) -> None:
    """What the classification uses: status and code, as the client gives them."""
    with pytest.raises(SchemaRegistryError) as caught:
        client.get_schema(5)
    assert (caught.value.http_status_code, caught.value.error_code // 100) == (404, 404)
    assert Schema('"int"', "AVRO").schema_str == '"int"'
