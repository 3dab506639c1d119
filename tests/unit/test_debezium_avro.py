"""Debezium's events in a schema registry's formats: the same values as in JSON, and what is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import schemaless_writer

from seekpoint.codecs import UNAVAILABLE, Avro, Change, Debezium, Unreadable
from seekpoint.errors import CodecUnavailable, ConfigError, Poison
from seekpoint.records import RawRecord
from seekpoint.testing import raw
from support.debezium import event, field, frame, golden, golden_avro, golden_json_schema, key_of
from support.schema_registry import SchemaRegistry

SETTINGS = [("schema", {}), ("string_connect", {}), ("isostring", {}), ("flattened", {"flattened": True})]


@pytest.fixture
def client() -> SchemaRegistryClient:
    """A registry in memory."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def shown(value: Any) -> Any:
    """The value with its types, for comparison."""
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, Change):
        return shown({"op": value.op, "before": value.before, "after": value.after, "source": value.source})
    return type(value), bytes(value) if isinstance(value, msgspec.Raw) else repr(value)


def written(client: SchemaRegistryClient, schema: dict[str, Any], value: Any, kind: str = "AVRO") -> RawRecord:
    """A record of the topic ``t`` with this value."""
    number = client.register_schema("t-value", Schema(json.dumps(schema), kind))
    data = BytesIO()
    if kind == "AVRO":
        schemaless_writer(data, schema, value)
    else:
        data.write(json.dumps(value).encode())
    return raw(frame(number) + data.getvalue(), topic="t")


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """An Avro record, named as AvroConverter names a struct."""
    parts = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": parts, "connect.name": name, **more}


@pytest.mark.parametrize(("settings", "options"), SETTINGS, ids=[name for name, _ in SETTINGS])
@pytest.mark.parametrize("table", ["everything", "toasted", "fulls"])
@pytest.mark.parametrize("written_by", [golden_avro, golden_json_schema], ids=["avro", "json schema"])
def test_events_are_those_in_json(
    client: SchemaRegistryClient, settings: str, options: dict[str, Any], table: str, written_by: Any
) -> None:
    codec, in_json, source = Debezium(registry=lambda: client, **options), Debezium(**options), f"dbz.shop.{table}"
    records = golden(settings, "t", source=source)
    framed = written_by(settings, "t", source=source, client=client)
    assert len(framed) == len(records)
    for avro, same in zip(framed, records, strict=True):
        assert shown(codec.decode(avro)) == shown(in_json.decode(same))
        assert shown(codec.decode_key(avro)) == shown(in_json.decode_key(same))


def test_a_value_that_the_source_did_not_send(client: SchemaRegistryClient) -> None:
    codec = Debezium(registry=lambda: client, flattened=True)
    schema = record("t.Value", ("a", ["null", "bytes"]), ("b", "string"), ("c", {"type": "array", "items": "string"}))
    lost = "__debezium_unavailable_value"
    change = codec.decode(written(client, schema, {"a": lost.encode(), "b": lost, "c": [lost]}))
    assert change is not None
    assert change.after == {"a": UNAVAILABLE, "b": UNAVAILABLE, "c": UNAVAILABLE}


def test_types_that_debezium_seldom_writes(client: SchemaRegistryClient) -> None:
    """Maps with other keys than strings, as AvroConverter writes them; a second use of a type; fixed; 32 bits."""
    amount = {"scale": "1"}
    decimal = {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}
    decimal |= {"connect.name": "org.apache.kafka.connect.data.Decimal", "connect.parameters": amount}
    entry = record("io.confluent.connect.avro.MapEntry", ("key", "int"), ("value", ["null", "bytes"]))
    del entry["connect.name"]
    nameless = record("io.confluent.connect.avro.ConnectDefault", ("x", "bytes"))
    del nameless["connect.name"]
    schema = record(
        "t.Value", ("m", {"type": "array", "items": entry}), ("d", decimal), ("e", ["null", "D"]), ("f", "float"),
        ("s", nameless), ("u", ["null", "int", "string"]), ("n", {"type": "map", "values": "bytes"}),
    )  # fmt: skip
    value = {"m": [{"key": 1, "value": b"\1"}, {"key": 2, "value": None}], "d": b"\0\x0f", "e": b"\xff\xff", "f": 0.1}
    plain = json.loads(json.dumps(schema), object_hook=lambda part: {k: part[k] for k in part if k != "logicalType"})
    number = client.register_schema("t-value", Schema(json.dumps(schema), "AVRO"))
    data = BytesIO()
    schemaless_writer(data, plain, {**value, "s": {"x": b"\2"}, "u": 5, "n": {"a": b"\3"}})
    change = Debezium(registry=lambda: client, flattened=True).decode(raw(frame(number) + data.getvalue(), topic="t"))
    assert change is not None
    assert change.after is not None
    row = dict(change.after)
    assert isinstance(row["u"], Unreadable)
    assert "a union of several types" in row.pop("u").why
    assert row == {
        "m": [[1, b"\1"], [2, None]], "d": Decimal("1.5"), "e": Decimal("-0.1"), "f": 0.1, "s": {"x": b"\2"},
        "n": {"a": b"\3"},
    }  # fmt: skip


def test_a_decimal_keeps_more_digits_than_its_precision(client: SchemaRegistryClient) -> None:
    """Avro's logical type would round to the precision, which AvroConverter sets to 64 if Connect has none."""
    decimal = {
        "type": "bytes",
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": "2"},
    }
    schema = record("t.Value", ("v", {**decimal, "logicalType": "decimal", "precision": 4, "scale": 2}))
    number, data = 10**70 + 1, BytesIO()
    schemaless_writer(data, record("t.Value", ("v", "bytes")), {"v": number.to_bytes(30, "big")})
    schema_id = client.register_schema("t-value", Schema(json.dumps(schema), "AVRO"))
    codec = Debezium(registry=lambda: client, flattened=True)
    change = codec.decode(raw(frame(schema_id) + data.getvalue(), topic="t"))
    assert change is not None
    assert change.after == {"v": Decimal(f"1{'0' * 68}.01")}


def test_a_key_may_be_of_any_type(client: SchemaRegistryClient) -> None:
    """As ``ExtractField$Key`` makes it."""
    number = client.register_schema("t-key", Schema('"long"', "AVRO"))
    assert Debezium(registry=lambda: client).decode_key(raw(b"x", topic="t", key=frame(number) + b"\x0a")) == 5
    assert Debezium(registry=lambda: client).decode_key(raw(b"x", topic="t", key=None)) is None


def test_the_schemas_guid_in_a_header(client: SchemaRegistryClient, registry: SchemaRegistry) -> None:
    over_http = SchemaRegistryClient({"url": registry.url})
    row_change = written(over_http, record("t.Value", ("id", "int")), {"id": 7})
    assert row_change.value is not None
    guid = bytes.fromhex(registry.schemas[0]["guid"].replace("-", ""))
    headers = [("__value_schema_id", b"\1" + guid)]
    change = Debezium(registry=registry.url, flattened=True).decode(
        raw(row_change.value[5:], topic="t", headers=headers)
    )
    assert change is not None
    assert change.after == {"id": 7}


def test_a_schema_is_asked_for_once(registry: SchemaRegistry) -> None:
    row_change = written(SchemaRegistryClient({"url": registry.url}), record("Value", ("id", "int")), {"id": 7})
    codec = Debezium(registry=registry.url, flattened=True)
    registry.asked.clear()
    assert codec.decode(row_change) == codec.decode(row_change)
    assert registry.asked == ["/schemas/ids/1?subject=t-value"]


def test_types_that_json_schema_has_its_own_form_for(client: SchemaRegistryClient) -> None:
    """Maps with other keys than strings, a decimal as a number (``decimal.format=NUMERIC``), and a union."""
    entry = {"key": {"type": "integer", "connect.type": "int32"}, "value": {"type": "string", "connect.type": "bytes"}}
    decimal = {"type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes"}
    fields: dict[str, Any] = {
        "m": {"type": "array", "connect.type": "map", "items": {"type": "object", "properties": entry}},
        "d": {**decimal, "connect.parameters": {"scale": "2"}},
        "u": {"oneOf": [{"type": "null"}, {"type": "integer"}, {"type": "string"}]},
    }
    properties = {name: {**schema, "connect.index": place} for place, (name, schema) in enumerate(fields.items())}
    schema = {"type": "object", "title": "t.Value", "properties": properties}
    framed = written(client, schema, {"m": [{"key": 1, "value": "AQ=="}], "d": 0.10, "u": 5}, "JSON")
    change = Debezium(registry=lambda: client, flattened=True).decode(framed)
    assert change is not None
    assert change.after is not None
    assert (change.after["m"], str(change.after["d"])) == ([[1, b"\1"]], "0.1")
    assert isinstance(change.after["u"], Unreadable)


def test_a_registry_that_does_not_answer_is_no_error_of_the_record(registry: SchemaRegistry) -> None:
    row_change = written(SchemaRegistryClient({"url": registry.url}), record("t.Value", ("id", "int")), {"id": 7})
    registry.answer = 503, b"busy"
    codec = Debezium(registry={"url": registry.url, "max.retries": 0}, flattened=True)
    with pytest.raises(CodecUnavailable, match="no answer from the schema registry"):
        codec.decode(row_change)
    registry.answer = None
    assert codec.decode(row_change) is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("io.debezium.connector.mysql.SchemaChangeValue", "a schema change"),
        ("io.debezium.connector.common.Heartbeat", "Heartbeat is not a change of a row"),
        ("t.Value", "no op, or no object as source; for flattened rows"),
    ],
)
def test_what_is_no_change_of_a_row_is_named(client: SchemaRegistryClient, name: str, message: str) -> None:
    with pytest.raises(Poison, match=message):
        Debezium(registry=lambda: client).decode(written(client, record(name, ("id", "int")), {"id": 1}))


def test_wrong_formats_are_named(client: SchemaRegistryClient) -> None:
    codec = Debezium(registry=lambda: client)
    in_json = event([field("id", "int32")], "c", None, {"id": 1})
    with pytest.raises(
        ValueError, match=r"the value begins with b'{\"schema\"'; for events in JSON give Debezium\(\) without"
    ):
        codec.decode(raw(in_json, topic="t"))
    with pytest.raises(ValueError, match="the key begins with"):
        codec.decode_key(raw(None, topic="t", key=key_of(id=1)))
    row_change = written(client, record("t.Value", ("id", "int")), {"id": 1})
    with pytest.raises(
        ValueError, match=r"in a schema registry's wire format, not JSON: give Debezium\(registry=\.\.\.\)"
    ):
        Debezium().decode(row_change)
    number = client.register_schema("t-value", Schema('syntax = "proto3"; message M { int32 id = 1; }', "PROTOBUF"))
    refused = r"is PROTOBUF, but this codec reads AVRO and JSON: .* set value\.converter=io\.confluent\.connect\.avro"
    with pytest.raises(LookupError, match=refused):
        codec.decode(raw(frame(number) + b"\0", topic="t"))
    with pytest.raises(
        ValueError, match=r"'t\.Value' has fields without connect.index, so it was not made by Kafka Con"
    ):
        codec.decode(written(client, {"type": "object", "title": "t.Value", "properties": {"id": {}}}, {}, "JSON"))
    with pytest.raises(LookupError, match="schema 77 is not in the registry"):
        codec.decode(raw(frame(77) + b"\0", topic="t"))


def test_a_schema_without_connects_names_is_refused(client: SchemaRegistryClient) -> None:
    """Else a timestamp would be a plain number."""
    schema = record("t.Value", ("id", "int"))
    del schema["connect.name"]
    with pytest.raises(ValueError, match=r"t\.Value has no connect\.name.*value\.converter\.connect\.meta\.data=true"):
        Debezium(registry=lambda: client, flattened=True).decode(written(client, schema, {"id": 1}))


def test_wrong_declarations_are_refused(client: SchemaRegistryClient) -> None:
    with pytest.raises(ConfigError, match="with registry= the schemas have the types"):
        Debezium(registry="http://127.0.0.1", types={})
    with pytest.raises(ConfigError, match="registry= takes a URL"):
        Debezium(registry=Avro(registry="http://127.0.0.1"))  # type: ignore[arg-type]
    assert (
        repr(Debezium(registry="http://u:secret@h", flattened=True)) == "Debezium(registry='http://h', flattened=True)"
    )
