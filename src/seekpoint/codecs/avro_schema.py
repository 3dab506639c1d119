"""Avro schemas for fastavro, which lacks converted defaults and three logical types.

fastavro fills a field that the writer did not have with the default's JSON value: "1" for a decimal, a number for a
date. It reads a uuid on fixed(16) as bytes, and timestamps in nanoseconds as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from fastavro import parse_schema
from fastavro.read import LOGICAL_READERS

from seekpoint.records import EPOCH

Named = dict[str, Any]
LOCAL_EPOCH = EPOCH.replace(tzinfo=None)
FLOATS = {"NaN", "Infinity", "-Infinity"}  # floats for which JSON has no numbers
INTEGERS = {"int": 31, "long": 63}  # bits without the sign
SIMPLE = {"null": type(None), "boolean": bool, "string": str}


def _timestamp_nanos(number: int, _written: Any = None, _read: Any = None) -> Any:
    return EPOCH + timedelta(microseconds=number // 1000)  # times in Python and Postgres have microseconds


def _local_timestamp_nanos(number: int, _written: Any = None, _read: Any = None) -> Any:
    return LOCAL_EPOCH + timedelta(microseconds=number // 1000)


def _uuid(data: bytes, _written: Any = None, _read: Any = None) -> UUID:
    return UUID(bytes=data)


# Registered under names that only Seekpoint uses: LOGICAL_READERS is global, and other code in the process may use
# fastavro.
OURS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("fixed", "uuid"): _uuid,
    ("long", "timestamp-nanos"): _timestamp_nanos,
    ("long", "local-timestamp-nanos"): _local_timestamp_nanos,
}
for (_kind, _logical), _read in OURS.items():
    LOGICAL_READERS[f"{_kind}-seekpoint-{_logical}"] = _read


def parsed(schema: str, others: Sequence[str] = (), *, ours: bool = False, in_a_record: bool = False) -> Any:
    """Parse the schema with fastavro; ``others`` are the schemas that it needs, each after its own dependencies.

    ``ours``: logical types in ``OURS`` get our names. ``in_a_record``: the schema becomes the only field of a record,
    whose bytes are the same. Otherwise fastavro would parse a schema that is not a record for each value, and a union
    without references.
    """
    prepare: Callable[[Any], Any] = _with_our_names if ours else lambda loaded: loaded
    named: Named = {}
    for other in others:
        parse_schema(prepare(_loaded(other)), named)
    prepared = prepare(_loaded(schema))
    if in_a_record:
        prepared = {"type": "record", "name": "seekpoint.Value", "fields": [{"name": "value", "type": prepared}]}
    return parse_schema(prepared, named)


class ReaderSchema:
    """A reader's schema whose defaults are Python values (Decimal, bytes, date), as after decoding.

    Raises ValueError if a default does not fit its type. ``converted`` names the fields whose default differs from its
    JSON value; ``shared``: a default is a list or dict, one object that fastavro gives to all records.
    """

    def __init__(self, schema: str, others: Sequence[str] = (), *, in_a_record: bool = False) -> None:
        self.schema = parsed(schema, others, ours=True, in_a_record=in_a_record)
        self.converted: list[str] = []
        self.shared = False
        named: Named = {}
        fields = list(_fields(self.schema, named))
        values = [_default(record, field, named) for record, field in fields]
        for (record, field), value in zip(fields, values, strict=True):
            if repr(value) != repr(field["default"]):
                self.converted.append(f"{record}.{field['name']}")
            self.shared = self.shared or isinstance(value, list | dict)
            field["default"] = value


def _loaded(schema: str) -> Any:
    loaded = json.loads(schema)
    return loaded if isinstance(loaded, dict | list) else {"type": loaded}


def _with_our_names(schema: Any) -> Any:
    """The schema with our names for the logical types in ``OURS``."""
    if isinstance(schema, list):
        return [_with_our_names(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = dict(schema)
    for part in ("items", "values", "type"):
        if part in schema:
            renamed[part] = _with_our_names(schema[part])
    if isinstance(schema.get("fields"), list):
        renamed["fields"] = [_with_our_names(field) for field in schema["fields"]]
    logical = schema.get("logicalType")
    is_ours = isinstance(schema.get("type"), str) and (schema["type"], logical) in OURS
    if is_ours and schema.get("size", 16) == 16:
        renamed["logicalType"] = f"seekpoint-{logical}"
    return renamed


def _fields(schema: Any, named: Named) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields that have defaults, with their record's full name; fills ``named`` with the schema's named types."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for part in ("items", "values"):
            if part in schema:
                yield from _fields(schema[part], named)
        for field in schema.get("fields", ()):
            if "default" in field:
                yield schema["name"], field
            yield from _fields(field["type"], named)


def _default(record: str, field: dict[str, Any], named: Named) -> Any:
    try:
        return _value(field["type"], field["default"], named)
    except (ValueError, OverflowError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the default of the field {record}.{field['name']} is invalid: {error}") from error


def _value(schema: Any, default: Any, named: Named) -> Any:
    """The Python value of a default's JSON value, logical types included."""
    if isinstance(schema, list):
        return _value_of_union(schema, default, named)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array" and isinstance(default, list):
        value: Any = [_value(schema["items"], item, named) for item in default]
    elif kind == "map" and isinstance(default, dict):
        value = {key: _value(schema["values"], item, named) for key, item in default.items()}
    elif kind in {"record", "error"} and isinstance(default, dict):
        value = _value_of_record(schema, default, named)
    else:
        value = _simple(kind, schema, default)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    read = LOGICAL_READERS.get(f"{kind}-{logical}")
    return value if read is None else read(value, schema, None)


def _value_of_union(branches: list[Any], default: Any, named: Named) -> Any:
    refused = ValueError(f"{default!r}: the union has no types")
    for branch in branches:  # the first type that the default fits, as the specification says
        try:
            return _value(branch, default, named)
        except (ValueError, OverflowError) as error:
            refused = ValueError(str(error))
    raise refused


def _value_of_record(schema: dict[str, Any], default: dict[str, Any], named: Named) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for field in schema["fields"]:
        name = field["name"]
        if name not in default and "default" not in field:
            raise ValueError(f"{default!r} lacks {name!r}, a field of {schema['name']} without a default")
        value[name] = _value(field["type"], default[name] if name in default else field["default"], named)
    return value


def _simple(kind: str, schema: Any, default: Any) -> Any:
    """The value of a default without parts."""
    if kind == "bytes" and isinstance(default, str):
        return default.encode("latin-1")  # each character is a byte
    if kind == "fixed" and isinstance(default, str) and len(default) == schema["size"]:
        return default.encode("latin-1")
    if kind in {"float", "double"} and (type(default) in {int, float} or default in FLOATS):
        return float(default)
    if kind in INTEGERS:
        fits = type(default) is int and -(2 ** INTEGERS[kind]) <= default < 2 ** INTEGERS[kind]
    elif kind == "enum":
        fits = default in schema["symbols"]
    else:
        fits = type(default) is SIMPLE.get(kind)
    if not fits:
        raise ValueError(f"{default!r} is not of the type {kind}" + (f"({schema['size']})" if kind == "fixed" else ""))
    return default


def copied(value: Any) -> Any:
    """Copy the value's lists and dicts, because all records share those of a default."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def with_names(value: Any, key: str, name: str | None) -> Any:
    """The value with records' names under ``key``; fastavro returns a union's records as tuples (name, record).

    ``name`` is the name of ``value``, if that is a record. Raises ValueError if a record has a field ``key``.
    """
    if isinstance(value, tuple):
        name, value = value
    if isinstance(value, list):
        return [with_names(part, key, None) for part in value]
    if not isinstance(value, dict):
        return value
    parts = {field: with_names(part, key, None) for field, part in value.items()}
    if name is None:
        return parts
    if key in parts:
        raise ValueError(f"{name} has a field {key!r}, which record_name={key!r} would replace: choose another name")
    return {key: name, **parts}
