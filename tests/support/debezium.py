"""Debezium's events for tests: golden events that Debezium has written, and events that a test makes.

``golden/*.jsonl`` were written by Debezium 3.5.0's embedded engine (``DebeziumEngine``, format ``Json``) and its
Postgres connector (``pgoutput``, Postgres 18), a file for each set of settings: one line for each record of the topics,
with ``topic``, ``key``, ``value`` and ``headers``. ``golden/made.md`` has the settings, tables and statements.
``golden/avro/*.jsonl`` have the same events in Avro. ``golden/connectors/*.jsonl`` have events of MySQL, SQL Server,
Oracle and MongoDB, which Debezium's classes made of values, without a database (``connectors/Connectors.java``).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from confluent_kafka.schema_registry import Schema

from seekpoint.records import RawRecord
from seekpoint.testing import raw

GOLDEN = Path(__file__).parent / "golden"


def golden(settings: str, topic: str, *, source: str) -> list[RawRecord]:
    """The golden events of a source's table, written with these settings, as records of the topic."""
    lines = GOLDEN.joinpath(f"{settings}.jsonl").read_text(encoding="utf-8").splitlines()
    changes = [change for change in map(json.loads, lines) if change["topic"] == source]
    return [
        raw(_bytes(change["value"]), topic=topic, offset=offset, key=_bytes(change["key"]))
        for offset, change in enumerate(changes)
    ]


def golden_avro(settings: str, topic: str, *, source: str, client: Any) -> list[RawRecord]:
    """The golden records as Confluent's AvroConverter writes them; registers their schemas with the client."""
    head, *lines = map(json.loads, GOLDEN.joinpath(f"avro/{settings}.jsonl").read_text(encoding="utf-8").splitlines())
    changes = [change for change in lines if change["topic"] == source]

    def framed(side: dict[str, Any] | None, field: str) -> bytes | None:
        if side is None:
            return None
        written = Schema(json.dumps(head["schemas"][side["schema"]]), "AVRO")
        return frame(client.register_schema(f"{topic}-{field}", written)) + b64decode(side["data"])

    return [
        raw(framed(change["value"], "value"), topic=topic, offset=offset, key=framed(change["key"], "key"))
        for offset, change in enumerate(changes)
    ]


Form = Literal["schema", "schemaless", "avro"]


def golden_of_connector(name: str, topic: str, form: Form, client: Any = None) -> list[RawRecord]:
    """The golden events of ``golden/connectors/NAME.jsonl`` as records of the topic, as a converter writes them."""
    head, *lines = connector_lines(name)

    def data(side: dict[str, Any] | None, field: str) -> bytes | None:
        if side is None:
            return None
        if form == "schemaless":
            return _bytes(side["json"])
        if form == "schema":
            return f'{{"schema":{json.dumps(head["json"][side["schema"]])},"payload":{side["json"]}}}'.encode()
        written = Schema(json.dumps(head["avro"][side["schema"]]), "AVRO")
        return frame(client.register_schema(f"{topic}-{field}", written)) + b64decode(side["avro"])

    return [
        raw(data(line["value"], "value"), topic=topic, offset=offset, key=data(line["key"], "key"))
        for offset, line in enumerate(lines)
    ]


def connector_lines(name: str) -> list[dict[str, Any]]:
    """The lines of ``golden/connectors/NAME.jsonl``: the schemas, then the records."""
    return [*map(json.loads, GOLDEN.joinpath(f"connectors/{name}.jsonl").read_text(encoding="utf-8").splitlines())]


def golden_json_schema(settings: str, topic: str, *, source: str, client: Any) -> list[RawRecord]:
    """The golden records as Confluent's JsonSchemaConverter writes them; registers their schemas with the client.

    The schemas are made as in ``rawSchemaFromConnectSchema`` of its class JsonSchemaData.
    """

    def framed(data: bytes | None, field: str) -> bytes | None:
        if data is None:
            return None
        event = json.loads(data)
        written = Schema(json.dumps(json_schema(event["schema"])), "JSON")
        number = client.register_schema(f"{topic}-{field}", written)
        return frame(number) + json.dumps(event["payload"]).encode()

    return [
        raw(framed(record.value, "value"), topic=topic, offset=record.offset, key=framed(record.key, "key"))
        for record in golden(settings, topic, source=source)
    ]


_JSON_TYPES = {f"int{bits}": "integer" for bits in (8, 16, 32, 64)} | {
    "float": "number", "double": "number", "bytes": "string", "struct": "object",
}  # fmt: skip
_CONNECT_TYPES = {"float": "float32", "double": "float64"}


def json_schema(connect: Mapping[str, Any], index: int | None = None) -> dict[str, Any]:
    """A Connect schema, as JsonConverter writes it, as a JSON Schema."""
    kind = connect["type"]
    schema: dict[str, Any] = {"type": _JSON_TYPES.get(kind, kind)}
    if kind not in {"boolean", "string", "array", "struct"}:
        schema["connect.type"] = _CONNECT_TYPES.get(kind, kind)
    schema |= {"title": connect["name"]} if "name" in connect else {}
    schema |= {"connect.parameters": connect["parameters"]} if "parameters" in connect else {}
    if kind == "struct":
        fields = connect["fields"]
        schema["properties"] = {field["field"]: json_schema(field, place) for place, field in enumerate(fields)}
    elif kind == "array":
        schema["items"] = json_schema(connect["items"])
    elif kind == "map":
        schema |= {"type": "object", "additionalProperties": json_schema(connect["values"])}
    if connect.get("optional"):
        schema = {"oneOf": [{"type": "null"}, schema]}
    return schema | ({} if index is None else {"connect.index": index})


def frame(schema_id: int) -> bytes:
    """The bytes before a payload with this schema."""
    return b"\0" + schema_id.to_bytes(4, "big")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def field(name: str, kind: str = "string", named: str | None = None, **parameters: str) -> dict[str, Any]:
    """A field's schema; ``named`` names its type."""
    schema: dict[str, Any] = {"field": name, "type": kind, "optional": True}
    return schema | ({"name": named} if named else {}) | ({"parameters": parameters} if parameters else {})


def event(
    fields: list[dict[str, Any]],
    op: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    **source: Any,
) -> bytes:
    """An event in JSON, with its schema."""
    rows = [{"type": "struct", "fields": fields, "optional": True, "field": part} for part in ("before", "after")]
    schema = {"type": "struct", "fields": [*rows, field("op")], "name": "dbz.shop.t.Envelope"}
    payload = {"before": before, "after": after, "source": {"table": "t", **source}, "op": op, "ts_ms": 1}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def key_of(**values: int | str) -> bytes:
    """A record's key in JSON, with its schema."""
    fields = [field(name, "int32" if isinstance(value, int) else "string") for name, value in values.items()]
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": values}).encode()
