"""The short way through a registry's codecs gives what Confluent's deserializers give, record by record."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka.schema_registry import (
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_deserializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from seekpoint.codecs import Avro, Protobuf
from seekpoint.codecs.protobuf_values import plain
from seekpoint.codecs.wire_format import Frames, protobuf_frame, schema_id
from seekpoint.testing import raw
from support.schema_registry import SchemaRegistry, shop

SHOP = shop()
VALUE = SerializationContext("t", MessageField.VALUE)
CONF = {
    "subject.name.strategy": topic_subject_name_strategy,
    "schema.id.deserializer": prefix_schema_id_deserializer,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = time.time_ns()
    print(f"{request.node.name}: seed {seed}")
    return random.Random(seed)


def serialized(serialize: Callable[..., bytes | None], value: Any, subject: SerializationContext = VALUE) -> bytes:
    data = serialize(value, subject)
    assert data is not None
    return data


def shortened(codec: Any) -> bool:
    """Whether the last frames of the codec are decoded the short way."""
    frames = codec._decoder[1]
    assert isinstance(frames, Frames)
    return bool(frames._short) and all(short is not None for short in frames._short.values())


# -- Avro: any schema, any value ----------------------------------------------------------------------------

Make = Callable[[], Any]


class Schemas:
    """Random schemas, each with a function that makes its values."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.names = chance, 0

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def any(self, depth: int = 0) -> tuple[Any, Make]:
        kinds: list[Callable[[int], tuple[Any, Make]]] = [self.enum, self.fixed, *[self.simple, self.logical] * 2]
        if depth < 3:
            kinds += [self.optional, self.array, self.map, self.record, self.union]
        return self.chance.choice(kinds)(depth)

    def simple(self, _: int) -> tuple[Any, Make]:
        r = self.chance
        return r.choice(
            [
                ("long", lambda: r.choice([0, -1, 63, 64, 2**62, -(2**63), 2**63 - 1, r.randrange(10**9)])),
                ("int", lambda: r.choice([0, -(2**31), 2**31 - 1, r.randrange(10**6)])),
                ("string", lambda: r.choice(["", "ä€😀", "x" * 200, "a\0b", "plain"])),
                ("double", lambda: r.choice([0.0, -0.0, 1e308, float("inf"), float("nan"), r.random()])),
                ("float", lambda: r.choice([0.5, -2.0, float("-inf")])),
                ("boolean", lambda: r.random() < 0.5),
                ("bytes", lambda: r.randbytes(r.randrange(6))),
                ("null", lambda: None),
            ]
        )

    def logical(self, _: int) -> tuple[Any, Make]:
        r = self.chance

        def now() -> datetime:
            return EPOCH + timedelta(milliseconds=r.randrange(-(10**13), 10**14))

        def of(kind: Any, name: str, **more: Any) -> Any:
            return {"type": kind, "logicalType": name, **more}

        seal = {"type": "fixed", "name": self._name("Cents"), "size": 12}
        return r.choice(
            [
                (of("bytes", "decimal", precision=20, scale=3), lambda: Decimal(r.randrange(-(10**20), 10**20)) / 1000),
                ({**of("fixed", "decimal", precision=20, scale=2), **seal}, lambda: Decimal(r.randrange(10**9)) / 100),
                (of("long", "timestamp-millis"), now),
                (of("long", "timestamp-micros"), lambda: now() + timedelta(microseconds=r.randrange(1000))),
                (of("long", "local-timestamp-millis"), lambda: now().replace(tzinfo=None)),
                (of("long", "local-timestamp-micros"), lambda: now().replace(tzinfo=None)),
                (of("int", "date"), lambda: date.fromordinal(r.randrange(1, date.max.toordinal()))),
                (of("int", "time-millis"), lambda: clock(r.randrange(24), 59, 58, 7000)),
                (of("long", "time-micros"), lambda: clock(r.randrange(24), 0, 1, 7)),
                (of("string", "uuid"), uuid4),
                (of("string", "unheard-of"), lambda: "kept"),
            ]
        )

    def enum(self, _: int) -> tuple[Any, Make]:
        symbols = ["OPEN", "PAID", "GONE"]
        return {"type": "enum", "name": self._name("Enum"), "symbols": symbols}, lambda: self.chance.choice(symbols)

    def fixed(self, _: int) -> tuple[Any, Make]:
        return {"type": "fixed", "name": self._name("Fixed"), "size": 4}, lambda: self.chance.randbytes(4)

    def optional(self, depth: int) -> tuple[Any, Make]:
        schema, make = self.any(depth + 1)
        if schema == "null" or isinstance(schema, list):
            return self.simple(depth)
        return ["null", schema], lambda: None if self.chance.random() < 0.3 else make()

    def union(self, depth: int) -> tuple[Any, Make]:
        record, make = self.record(depth + 1)
        several = ["null", "long", "string", {"type": "array", "items": "int"}, record]
        return several, lambda: self.chance.choice([None, 5, "text", [1, 2], make()])

    def array(self, depth: int) -> tuple[Any, Make]:
        schema, make = self.any(depth + 1)
        return {"type": "array", "items": schema}, lambda: [make() for _ in range(self.chance.randrange(4))]

    def map(self, depth: int) -> tuple[Any, Make]:
        schema, make = self.any(depth + 1)
        return {"type": "map", "values": schema}, lambda: {f"k{n}": make() for n in range(self.chance.randrange(3))}

    def record(self, depth: int) -> tuple[Any, Make]:
        fields = {f"f{n}": self.any(depth + 1) for n in range(self.chance.randrange(1, 7))}
        schema = {
            "type": "record",
            "name": self._name("Record"),
            "namespace": self.chance.choice(["shop", "shop.inner"]),
            "fields": [{"name": name, "type": kind} for name, (kind, _) in fields.items()],
        }
        return schema, lambda: {name: make() for name, (_, make) in fields.items()}


def long_way(client: Any, data: bytes, reader: str | None = None) -> Any:
    return AvroDeserializer(client, reader, conf=dict(CONF))(data, VALUE)


def test_avro_of_any_schema_is_what_confluent_makes_of_it(client: SchemaRegistryClient, chance: random.Random) -> None:
    short = 0
    for n in range(150):
        schemas = Schemas(chance)
        schema, make = schemas.record(0) if n % 5 else chance.choice([schemas.array, schemas.map, schemas.union])(0)
        serialize = AvroSerializer(client, json.dumps(schema), conf={"auto.register.schemas": True})
        codec: Any = Avro(registry=lambda: client)
        subject = SerializationContext(f"t{n}", MessageField.VALUE)
        for _ in range(6):
            data = serialize(make(), subject)
            if data is None or len(data) <= 5:  # no value at the top, no bytes: a record without fields
                continue
            expected = AvroDeserializer(client, None, conf=dict(CONF))(data, subject)
            assert repr(codec.decode(raw(data, topic=f"t{n}"))) == repr(expected), (schema, data)
            cut = data[: chance.randrange(6, len(data) + 1)]  # may end early, or be whole
            long = AvroDeserializer(client, None, conf=dict(CONF))
            assert outcome(codec.decode, raw(cut, topic=f"t{n}")) == outcome(long, cut, subject)
        short += codec._decoder is not None and shortened(codec)
    assert short > 100, "nearly all go the short way"


def outcome(call: Callable[..., Any], *args: Any) -> str:
    """The value, or the error, without the address of the file that it may name."""
    try:
        return repr(call(*args))
    except Exception as error:  # noqa: BLE001 -- of many kinds, and the kind is compared
        return re.sub("at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")


def test_the_readers_schema_is_resolved_the_short_way_too(client: SchemaRegistryClient) -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
    old = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "gone", "type": "string"},
            {"name": "items", "type": {"type": "array", "items": item}},
            {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["A", "B"]}},
            {"name": "maybe", "type": "int"},
        ],
    }
    wide = {**item, "fields": [*item["fields"], {"name": "count", "type": "long", "default": 1}]}
    new = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "items", "type": {"type": "array", "items": wide}},
                {"name": "number", "aliases": ["id"], "type": "double"},
                {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["A", "X"], "default": "X"}},
                {"name": "maybe", "type": ["null", "long"], "default": None},
                {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            ],
        }
    )
    serialize = AvroSerializer(client, json.dumps(old))
    codec: Any = Avro(registry=lambda: client, schema=new)
    for n in range(4):
        value = {"id": n, "gone": "x", "items": [{"sku": "s"}] * n, "state": "AB"[n % 2], "maybe": n}
        data = serialized(serialize, value)
        assert codec.decode(raw(data, topic="t")) == long_way(client, data, new)
    assert shortened(codec)
    assert codec.decode(raw(data, topic="t")) == {
        "items": [{"sku": "s", "count": 1}] * 3, "number": 3.0, "state": "X", "maybe": 3, "tags": [],
    }  # fmt: skip


def test_a_readers_schema_that_nothing_resolves_to_fails_as_before(client: SchemaRegistryClient) -> None:
    def small(kind: str) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": ["null", kind]}]})

    serialize = AvroSerializer(client, small("string"))
    codec: Any = Avro(registry=lambda: client, schema=small("int"))
    fits, other = serialized(serialize, {"id": None}), serialized(serialize, {"id": "x"})
    assert codec.decode(raw(fits, topic="t")) == {"id": None}
    assert shortened(codec)
    for _ in range(2):
        assert outcome(codec.decode, raw(other, topic="t")) == outcome(long_way, client, other, small("int"))


def test_bytes_alone_go_the_long_way(client: SchemaRegistryClient) -> None:
    codec: Any = Avro(registry=lambda: client)
    for value in (b"\x02abc", b"\x08\x00"):
        data = serialized(AvroSerializer(client, '"bytes"'), value)
        assert codec.decode(raw(data, topic="t")) == value
    assert not shortened(codec)


def test_where_there_is_no_short_way_the_long_one_is_used() -> None:
    def shorten(frame: bytes, data: bytes, value: Any) -> Any:
        raise ValueError("a schema that only Confluent's deserializer understands")

    frames = Frames(lambda data, record, field: data[5:], lambda data: 5, shorten)
    for payload in (b"x", b"y"):
        assert frames(b"\0\0\0\0\1" + payload, raw(b"", topic="t"), "value") == payload


def test_a_value_that_only_the_short_way_refuses_is_refused() -> None:
    """The long way's value would be another one: a number instead of a time."""

    def short(data: bytes, begin: int) -> Any:
        raise OverflowError("no time")

    frames = Frames(lambda data, record, field: 5, lambda data: 5, lambda frame, data, value: short)
    for _ in range(2):
        with pytest.raises(OverflowError, match="no time"):
            frames(b"\0\0\0\0\1x", raw(b"", topic="t"), "value")


def test_schemas_that_refer_to_others_are_read_the_short_way(client: SchemaRegistryClient) -> None:
    """A reference that two others share, too, and a union of references alone."""
    client.register_schema("day", Schema('{"type": "fixed", "name": "shop.Day", "size": 2}', "AVRO"))
    day = SchemaReference("shop.Day", "day", 1)
    for name in ("Item", "Gift"):
        refers = {"type": "record", "name": f"shop.{name}", "fields": [{"name": "day", "type": "shop.Day"}]}
        client.register_schema(name, Schema(json.dumps(refers), "AVRO", [day]))
    both = [SchemaReference("shop.Item", "Item", 1), SchemaReference("shop.Gift", "Gift", 1)]
    fields = [{"name": "a", "type": "shop.Item"}, {"name": "b", "type": ["null", "shop.Gift"]}]
    record = json.dumps({"type": "record", "name": "R", "fields": fields})
    for n, (schema, value) in enumerate(
        [(record, {"a": {"day": b"ab"}, "b": {"day": b"cd"}}), ('["shop.Item", "shop.Gift"]', {"day": b"ef"})]
    ):
        serialize = AvroSerializer(client, Schema(schema, "AVRO", both))
        codec: Any = Avro(registry=lambda: client)
        data = serialized(serialize, value, SerializationContext(f"t{n}", MessageField.VALUE))
        for _ in range(3):
            assert codec.decode(raw(data, topic=f"t{n}")) == value
        assert shortened(codec)


def test_schemas_with_rules_and_options_that_ask_more_go_the_long_way(client: SchemaRegistryClient) -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
    rule = Rule("r", "", RuleKind.CONDITION, RuleMode.READ, "NOTHING", [], None, None, None, None, True)
    ruled = Schema(text, "AVRO", [], Metadata(None, MetadataProperties({}), None), RuleSet([], [rule]))
    client.register_schema("ruled-value", ruled)
    serialize = AvroSerializer(client, ruled, conf={"auto.register.schemas": False})
    data = serialized(serialize, {"n": 1}, SerializationContext("ruled", MessageField.VALUE))
    codec: Any = Avro(registry=lambda: client)
    for _ in range(2):
        assert codec.decode(raw(data, topic="ruled")) == {"n": 1}
    assert not shortened(codec)
    plainly = serialized(AvroSerializer(client, text), {"n": 1})
    latest: Any = Avro(registry=lambda: client, options={"use.latest.version": True})
    for _ in range(2):
        assert latest.decode(raw(plainly, topic="t")) == {"n": 1}
    assert not shortened(latest)


def test_frames_of_topics_keys_and_guids_are_kept_apart_and_asked_once(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    headers: list[Any] = []
    key = AvroSerializer(client, '"long"')(7, SerializationContext("t", MessageField.KEY))
    serialize = AvroSerializer(client, '"string"', conf={"schema.id.serializer": header_schema_id_serializer})
    value = serialize("x", SerializationContext("t", MessageField.VALUE, headers))
    codec: Any = Avro(registry=registry.url)
    registry.asked.clear()
    for _ in range(3):
        record = raw(value, topic="t", key=key, headers=headers)
        assert (codec.decode(record), codec.decode_key(record)) == ("x", 7)
    assert shortened(codec)
    assert len(registry.asked) == 2
    assert codec.decode_key(raw(b"", topic="other", key=key)) == 7
    assert len(codec._decoder[1]._short) == 3


def test_an_id_with_different_schemas_under_different_subjects_is_asked_each_time() -> None:
    """In a registry with contexts an id alone says nothing."""

    class Two:
        def config(self) -> dict[str, Any]:
            return {}

        def get_schema(self, number: int, subject: str, *_: Any) -> Schema:
            return Schema('"long"' if subject == "a-value" else '"string"', "AVRO")

    codec: Any = Avro(registry=Two)
    data = b"\0\0\0\0\x01\x02x"
    for _ in range(2):
        assert codec.decode(raw(data, topic="a")) == 1
        assert codec.decode(raw(data, topic="b")) == "x"


# -- Protobuf -----------------------------------------------------------------------------------------------


def orders(chance: random.Random) -> Any:
    order = SHOP["Order"](
        id=chance.choice([0, -1, 2**62]), state=chance.randrange(5), seal=chance.randbytes(3), tags=["x"] * 2
    )
    if chance.random() < 0.5:
        order.note = chance.choice(["", "ä€"])
    if chance.random() < 0.5:
        order.at.FromDatetime(datetime(2024, 1, 2, 3, 4, 5, chance.randrange(10**6)))
        order.discount.value = 0.0
        order.best.sku = "b"
    for n in range(chance.randrange(3)):
        order.items.add(sku=f"s{n}", count=2**64 - 1)
        order.prices[f"p{n}"] = n
    return order


def test_protobuf_is_what_confluent_makes_of_it(client: SchemaRegistryClient, chance: random.Random) -> None:
    serialize = ProtobufSerializer(SHOP["Order"], client, {"use.deprecated.format": False})
    long = ProtobufDeserializer(SHOP["Order"], dict(CONF), client)
    known = lambda: client  # noqa: E731
    codecs: list[Any] = [Protobuf(SHOP["Order"], registry=known), Protobuf(SHOP["Order"], registry=None)]
    typed: Any = Protobuf(SHOP["Order"], registry=known, type=dict)
    for _ in range(100):
        data = serialized(serialize, orders(chance))
        expected = long(data, VALUE)
        for codec in codecs:
            decoded = codec.decode(raw(data, topic="t"))
            assert decoded == expected
            assert type(decoded) is type(expected)
        assert typed.decode(raw(data, topic="t")) == plain(expected)
        cut = data[: chance.randrange(6, len(data))]
        assert outcome(codecs[0].decode, raw(cut, topic="t")) == outcome(long, cut, VALUE)
    assert all(map(shortened, codecs))


def test_a_message_within_a_message_and_one_that_holds_itself(client: SchemaRegistryClient) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="tree", syntax="proto3")
    file.message_type.add(name="First")
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="Zero")
    node = outer.nested_type.add(name="Node")
    node.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    node.field.add(
        name="below", number=2, type=kinds.TYPE_MESSAGE, type_name=".tree.Outer.Node", label=kinds.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("tree.Outer.Node"))
    message = message_type(id=1, below=[message_type(id=2, below=[message_type(id=3)])])
    data = serialized(ProtobufSerializer(message_type, client, {"use.deprecated.format": False}), message)
    assert protobuf_frame(data) == 8, "two steps: message 1 of the file, message 1 within it"
    codec: Any = Protobuf(message_type, registry=lambda: client, type=dict)
    for _ in range(3):
        assert codec.decode(raw(data, topic="t")) == {
            "id": 1, "below": [{"id": 2, "below": [{"id": 3, "below": []}]}],
        }  # fmt: skip
    assert shortened(codec)


def test_another_message_of_the_same_schema_is_not_taken_for_the_known_one(client: SchemaRegistryClient) -> None:
    """Their frames differ in the message's path alone."""
    order, payment = (
        serialized(ProtobufSerializer(SHOP[name], client, {"use.deprecated.format": False}), SHOP[name](id=5))
        for name in ("Order", "Payment")
    )
    assert order[:5] == payment[:5], "one file, one id"
    codec = Protobuf(SHOP["Order"], registry=lambda: client)
    for _ in range(2):
        assert codec.decode(raw(order, topic="t")) == SHOP["Order"](id=5)
        with pytest.raises(ValueError, match=r"the record is a shop\.Payment"):
            codec.decode(raw(payment, topic="t"))


@pytest.mark.parametrize("path", [b"\xff" * 9, b"\x04\xff", b"\x02", b"", b"\x04\x02", b"\xfe\xff\xff\xff\x0f"])
def test_a_path_that_does_not_end_is_no_frame(path: bytes) -> None:
    assert protobuf_frame(b"\0\0\0\0\1" + path) == 0


def test_ids_and_guids_are_different() -> None:
    assert schema_id(b"\0\0\0\1\0") == 256
    assert schema_id(b"\1" + UUID(int=5).bytes) == str(UUID(int=5))
