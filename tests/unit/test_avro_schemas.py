"""Avro as its specification says where fastavro leaves it: defaults, uuid on fixed, nanoseconds, records' names."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from confluent_kafka.schema_registry import Metadata, MetadataProperties, Rule, RuleKind, RuleMode, RuleSet, Schema
from confluent_kafka.schema_registry import SchemaRegistryClient as Client
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from seekpoint.codecs import Avro
from seekpoint.errors import ConfigError
from seekpoint.testing import raw

SMALL = {"type": "record", "name": "Small", "fields": [{"name": "id", "type": "long"}]}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
DAY = {"type": "int", "logicalType": "date"}
PRICE = {
    "type": "record",
    "name": "Price",
    "fields": [{"name": "net", "type": CENTS}, {"name": "since", "type": DAY, "default": 1}],
}
UID = "12345678-1234-5678-1234-567812345678"


@pytest.fixture
def client() -> Client:
    """A registry in memory."""
    return Client.new_client({"url": "mock://"})


def encoded(client: Client, schema: Any, value: Any) -> bytes:
    data: bytes | None = AvroSerializer(client, json.dumps(schema))(
        value, SerializationContext("t", MessageField.VALUE)
    )
    assert data is not None
    return data


def with_default(kind: Any, default: Any) -> str:
    """``SMALL`` with one more field."""
    fields = [*SMALL["fields"], {"name": "more", "type": kind, "default": default}]
    return json.dumps({**SMALL, "fields": fields})


def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


DEFAULTS = [
    (CENTS, "1", Decimal("0.49")),
    (CENTS, "\u00ff\u00fe", Decimal("-0.02")),
    ({**of("fixed", "decimal", precision=4, scale=1), "name": "F", "size": 2}, "\u0001\u0000", Decimal("25.6")),
    ("bytes", "\u00ff", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
    ({**of("fixed", "uuid"), "name": "U", "size": 16}, "\u0000" * 15 + "\u00ff", UUID(int=255)),
    (of("string", "uuid"), UID, UUID(UID)),
    (DAY, 1, date(1970, 1, 2)),
    (of("long", "timestamp-millis"), 1500, datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)),
    (of("long", "timestamp-micros"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    (of("long", "timestamp-nanos"), 5999, datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
    (of("long", "local-timestamp-micros"), 5, datetime(1970, 1, 1, 0, 0, 0, 5)),
    (of("int", "time-millis"), 5, time(0, 0, 0, 5000)),
    (of("long", "time-micros"), 5, time(0, 0, 0, 5)),
    ("double", 1, 1.0),
    ("float", "-Infinity", float("-inf")),
    ("string", "\u00ff", "\u00ff"),
    (["bytes", "string"], "\u00ff", b"\xff"),
    (["string", "bytes"], "\u00ff", "\u00ff"),
    (["null", DAY], None, None),
    ([DAY, "null"], 1, date(1970, 1, 2)),
    ({"type": "array", "items": DAY}, [1], [date(1970, 1, 2)]),
    ({"type": "map", "values": CENTS}, {"a": "1"}, {"a": Decimal("0.49")}),
    (PRICE, {"net": "1"}, {"net": Decimal("0.49"), "since": date(1970, 1, 2)}),
    (PRICE, {"net": "1", "since": 0}, {"net": Decimal("0.49"), "since": date(1970, 1, 1)}),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS, ids=repr)
def test_a_default_of_the_readers_schema_is_a_value_of_its_type(
    client: Client, kind: Any, default: Any, expected: Any
) -> None:
    codec: Any = Avro(registry=lambda: client, schema=with_default(kind, default))
    data = encoded(client, SMALL, {"id": 5})
    for _ in range(2):
        assert repr(codec.decode(raw(data, topic="t"))) == repr({"id": 5, "more": expected})


def test_a_default_within_an_older_record_is_converted(client: Client) -> None:
    """In a record that the writer knows by an older schema, in an array, and in a type that refers to itself."""
    old: dict[str, Any] = {"type": "record", "name": "Price", "fields": [{"name": "net", "type": CENTS}]}
    written = {**SMALL, "fields": [{"name": "prices", "type": {"type": "array", "items": old}}]}
    below = {"name": "below", "type": ["null", "Price"], "default": None}
    read = {**SMALL, "fields": [{"name": "prices", "type": {"type": "array", "items": {**PRICE, "fields": [
        *PRICE["fields"], below]}}}]}  # fmt: skip
    data = encoded(client, written, {"prices": [{"net": Decimal("1.00")}]})
    codec: Any = Avro(registry=lambda: client, schema=json.dumps(read))
    for _ in range(2):
        assert codec.decode(raw(data, topic="t")) == {
            "prices": [{"net": Decimal("1.00"), "since": date(1970, 1, 2), "below": None}]
        }


@pytest.mark.parametrize(
    ("kind", "default", "message"),
    [
        (DAY, 2**30, "the default of the field Small.more is invalid: "),
        ("long", 2**63, f"Small.more is invalid: {2**63} is not of the type long"),
        ("int", True, "True is not of the type int"),
        ("bytes", "\u1234", "Small.more is invalid: "),
        ({"type": "fixed", "name": "F", "size": 2}, "a", r"'a' is not of the type fixed\(2\)"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "'B' is not of the type enum"),
        (of("string", "uuid"), "me", "badly formed hexadecimal UUID"),
        (PRICE, {}, "lacks 'net', a field of Price without a default"),
        ({"type": "array", "items": "int"}, ["a"], "'a' is not of the type int"),
    ],
)  # fmt: skip
def test_a_default_that_is_no_value_of_its_type_is_refused_before_any_record(
    client: Client, kind: Any, default: Any, message: str
) -> None:
    """Each old record would be poison, or be stored with another value."""
    codec: Any = Avro(registry=lambda: client, schema=with_default(kind, default))
    with pytest.raises(ConfigError, match=message):
        codec.decode(raw(b"", topic="t"))


def test_a_default_is_no_list_that_records_share(client: Client) -> None:
    codec: Any = Avro(registry=lambda: client, schema=with_default({"type": "array", "items": "string"}, []))
    data = encoded(client, SMALL, {"id": 5})
    for _ in range(3):
        value = codec.decode(raw(data, topic="t"))
        assert value == {"id": 5, "more": []}
        value["more"].append("from the record before")


def ruled(client: Client, subject: str, schema: Any) -> Schema:
    rule = Rule("r", "", RuleKind.CONDITION, RuleMode.READ, "NOTHING", [], None, None, None, None, True)
    with_rules = Schema(
        json.dumps(schema), "AVRO", [], Metadata(None, MetadataProperties({}), None), RuleSet([], [rule])
    )
    client.register_schema(subject, with_rules)
    return with_rules


def test_what_only_confluents_deserializer_reads_is_refused_if_its_default_needs_conversion(client: Client) -> None:
    """Otherwise the default would be stored as JSON has it."""
    latest: Any = Avro(registry=lambda: client, options={"use.latest.version": True})
    data = encoded(client, SMALL, {"id": 5})
    assert latest.decode(raw(data, topic="t")) == {"id": 5}
    encoded(client, json.loads(with_default(DAY, 1)), {"id": 5, "more": date(2024, 1, 1)})
    with pytest.raises(ConfigError, match=r"latest schema needs .* the default of Small\.more as its JSON value"):
        Avro(registry=lambda: client, options={"use.latest.version": True}).decode(raw(data, topic="t"))
    with pytest.raises(ConfigError, match=r"these options need .*Small\.more as its JSON value"):
        Avro(
            registry=lambda: client, schema=with_default(DAY, 1), options={"use.latest.version": True}
        ).decode(raw(data, topic="t"))  # fmt: skip
    serialize = AvroSerializer(client, ruled(client, "r-value", SMALL), conf={"auto.register.schemas": False})
    checked = serialize({"id": 5}, SerializationContext("r", MessageField.VALUE))
    with pytest.raises(ConfigError, match=r"rules of the record's schema need .*Small\.more as its JSON value"):
        Avro(registry=lambda: client, schema=with_default(DAY, 1)).decode(raw(checked, topic="r"))
    with pytest.raises(ConfigError, match=r"record_name='type': rules of the record's schema need Confluent"):
        Avro(registry=lambda: client, record_name="type").decode(raw(checked, topic="r"))


NANOS = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        ({**of("fixed", "uuid"), "name": "U", "size": 16}, UUID(UID).bytes, UUID(UID)),
        ({**of("fixed", "uuid"), "name": "U", "size": 4}, b"abcd", b"abcd"),
        (of("long", "timestamp-nanos"), NANOS, datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)),
        (of("long", "timestamp-nanos"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (of("long", "local-timestamp-nanos"), NANOS, datetime(2023, 11, 14, 22, 13, 20, 123456)),
    ],
)
def test_logical_types_that_fastavro_leaves_as_they_are(client: Client, kind: Any, written: Any, expected: Any) -> None:
    fields = [{"name": "a", "type": kind}, {"name": "b", "type": ["null", kind.get("name", kind)]}]
    schema = {**SMALL, "fields": fields}
    data = encoded(client, schema, {"a": written, "b": written})
    for reader in (None, json.dumps(schema)):
        codec: Any = Avro(registry=lambda: client, schema=reader)
        for _ in range(2):
            assert codec.decode(raw(data, topic="t")) == {"a": expected, "b": expected}
    alone: Any = Avro(registry=lambda: client)
    assert alone.decode(raw(encoded(client, ["null", kind], written), topic="t")) == expected


class Created(msgspec.Struct, tag_field="type", tag="shop.Created"):
    id: int


class Deleted(msgspec.Struct, tag_field="type", tag="shop.Deleted"):
    id: int


def event(name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}


def test_the_name_of_a_record_in_a_union_chooses_its_struct(client: Client) -> None:
    """Also where the topic has several schemas, each of one record."""
    both: Any = Avro(Created | Deleted, registry=lambda: client, record_name="type")  # type: ignore[arg-type]
    union = [event("Created"), event("Deleted")]
    for _ in range(2):
        assert both.decode(raw(encoded(client, union, ("shop.Deleted", {"id": 5})), topic="t")) == Deleted(5)
        assert both.decode(raw(encoded(client, union, ("shop.Created", {"id": 5})), topic="t")) == Created(5)
        assert both.decode(raw(encoded(client, event("Deleted"), {"id": 6}), topic="t")) == Deleted(6)


def test_names_are_given_where_there_is_a_choice(client: Client) -> None:
    fields = [
        {"name": "one", "type": ["null", event("Small")]},
        {"name": "of", "type": {"type": "array", "items": [event("Created"), event("Deleted")]}},
    ]
    outer = {"type": "record", "name": "Outer", "fields": fields}
    data = encoded(client, outer, {"one": {"id": 1}, "of": [("shop.Deleted", {"id": 2})]})
    codec: Any = Avro(registry=lambda: client, record_name="type")
    for _ in range(2):
        assert codec.decode(raw(data, topic="t")) == {
            "type": "Outer", "one": {"id": 1}, "of": [{"type": "shop.Deleted", "id": 2}],
        }  # fmt: skip
    taken: Any = Avro(registry=lambda: client, record_name="one")
    with pytest.raises(ValueError, match="Outer has a field 'one', which record_name='one' would replace"):
        taken.decode(raw(data, topic="t"))
    reader: Any = Avro(registry=lambda: client, record_name="type", schema=json.dumps({**outer, "fields": fields[1:]}))
    assert reader.decode(raw(data, topic="t")) == {"type": "Outer", "of": [{"type": "shop.Deleted", "id": 2}]}


def test_fastavro_reads_other_users_schemas_as_before() -> None:
    """The logical types are read under names of our own: the host's readers keep theirs."""
    from fastavro.read import LOGICAL_READERS

    assert not {"fixed-uuid", "long-timestamp-nanos", "long-local-timestamp-nanos"} & set(LOGICAL_READERS)
