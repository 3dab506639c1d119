"""Reads Kafka Connect's data in Avro, as AvroConverter writes it, with the schema that JsonConverter would write.

AvroConverter stores a Connect type's name and parameters as properties of the Avro type. Avro's logical types, which it
adds to some of them, are ignored: `connect_values` converts values by the Connect type's name, as it does for JSON.
"""

from __future__ import annotations

import json
from functools import partial
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader

from seekpoint.codecs.avro_reader import Read
from seekpoint.codecs.connect_values import Schema

# AvroConverter's names for structs without a name (from the second on with a number) and for entries of maps.
_DEFAULT = "io.confluent.connect.avro.ConnectDefault"
_ENTRY = "io.confluent.connect.avro.MapEntry"
# JsonConverter says "float", not "float32": in JSON such numbers already have the fewest digits, and need no
# conversion.
_KINDS = {"record": "struct", "fixed": "bytes", "float": "float32"}
Named = dict[str, Any]


def connect_reader(written: str) -> tuple[Schema, Read]:
    """The schema that JsonConverter would write, and a function that reads values.

    Raises ValueError if the schema lacks the names of Connect's types.
    """
    named: Named = {}
    field = {"name": "value", "type": json.loads(written, object_hook=_without_logical_type)}
    # Inside a record the value may be of any type; the bytes are the same. The record has no namespace, because types
    # without one would inherit it.
    schema = parse_schema({"type": "record", "name": "seekpoint_value", "fields": [field]}, named)
    connect = _connect(schema["fields"][0]["type"], named)  # type: ignore[call-overload,index]
    return connect, partial(_read, schema)


def _read(schema: Any, data: bytes, begin: int) -> Any:
    return schemaless_reader(BytesIO(data[begin:]), schema, None)["value"]  # type: ignore[index,call-overload]


def _without_logical_type(loaded: dict[str, Any]) -> dict[str, Any]:
    loaded.pop("logicalType", None)
    return loaded


def _connect(schema: Any, named: Named) -> Schema:
    """The Connect schema of an Avro type; a union of null and one type has that type's schema."""
    if isinstance(schema, list):
        kinds = [branch for branch in schema if branch != "null"]
        return _connect(kinds[0], named) if len(kinds) == 1 else {"type": "union"}
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    connect: dict[str, Any] = {"type": _KINDS.get(kind, kind)}
    connect |= {part: schema[f"connect.{part}"] for part in ("name", "parameters") if f"connect.{part}" in schema}
    if kind == "record":
        if schema["name"] == _ENTRY or schema.get("connect.internal.type") == "MapEntry":
            connect["type"] = "entry"
        elif "name" not in connect and not schema["name"].startswith(_DEFAULT):
            raise ValueError(
                f"the Avro schema of {schema['name']} has no connect.name, so the types of its values are not known: "
                "set value.converter.connect.meta.data=true (and key.converter…), AvroConverter's default"
            )
        connect["fields"] = [{**_connect(field["type"], named), "field": field["name"]} for field in schema["fields"]]
    elif kind == "map":
        connect |= {"keys": {"type": "string"}, "values": _connect(schema["values"], named)}
    elif kind == "array":
        items = _connect(schema["items"], named)
        if items["type"] == "entry":  # entries of a map whose keys are not strings
            connect |= {"type": "map", "keys": items["fields"][0], "values": items["fields"][1]}
        else:
            connect["items"] = items
    return connect
