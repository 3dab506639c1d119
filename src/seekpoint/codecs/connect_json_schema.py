"""Reads Kafka Connect's data as JsonSchemaConverter writes it, with the schema that JsonConverter would write.

JsonSchemaConverter writes plain JSON. A Connect type's name is the JSON Schema's title, its parameters are a property.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from seekpoint.codecs.connect_values import Schema
from seekpoint.codecs.json import json_number

# JsonConverter's names of types; in JSON, numbers of 32 bits already have the fewest digits.
_KINDS = {"float32": "float", "float64": "double"}
_plain = msgspec.json.Decoder(float_hook=json_number)


def connect_json_reader(written: str) -> tuple[Schema, Callable[[bytes, int], Any]]:
    """The schema that JsonConverter would write, and a function that reads values.

    Raises ValueError if the schema lacks the names of Connect's types.
    """
    return _connect(json.loads(written)), _read


def _read(data: bytes, begin: int) -> Any:
    return _plain.decode(data[begin:])


def _connect(schema: Mapping[str, Any]) -> Schema:
    """The Connect schema of a JSON Schema; a union of null and one type has that type's schema."""
    if "oneOf" in schema:
        kinds = [branch for branch in schema["oneOf"] if branch != {"type": "null"}]
        return _connect(kinds[0]) if len(kinds) == 1 else {"type": "union"}
    kind = schema.get("connect.type", schema.get("type"))
    connect: dict[str, Any] = {"type": _KINDS.get(kind, kind)}
    if kind == "bytes" and schema.get("type") == "number":  # decimal.format=NUMERIC
        return {"type": "number"}
    connect |= {"name": schema["title"]} if "title" in schema else {}
    connect |= {"parameters": schema["connect.parameters"]} if "connect.parameters" in schema else {}
    if kind == "map":
        if "items" in schema:  # a map whose keys are not strings
            entry = schema["items"]["properties"]
            connect |= {"keys": _connect(entry["key"]), "values": _connect(entry["value"])}
        else:
            connect |= {"keys": {"type": "string"}, "values": _connect(schema["additionalProperties"])}
    elif kind == "array":
        connect["items"] = _connect(schema["items"])
    elif kind == "object":
        fields = schema.get("properties") or {}
        if any("connect.index" not in field for field in fields.values()):
            raise ValueError(
                f"the JSON Schema {schema.get('title', '')!r} has fields without connect.index, so it was not made by "
                "Kafka Connect, and the types of its values are not known: set JsonSchemaConverter in the connector"
            )
        connect |= {"type": "struct", "fields": [{**_connect(field), "field": name} for name, field in fields.items()]}
    return connect
