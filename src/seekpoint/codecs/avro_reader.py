"""Avro's fast path: fastavro's reader, which also converts defaults and adds records' names.

It is used for schemas without rules, once Confluent's deserializer has fetched them. That deserializer neither converts
defaults nor adds names: if rules or options need it, a codec that needs either raises ConfigError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader

from seekpoint.codecs.avro_schema import ReaderSchema, copied, parsed, with_names
from seekpoint.codecs.registry_client import RegistryClient
from seekpoint.codecs.wire_format import Short, schema_id
from seekpoint.errors import ConfigError

Read = Callable[[bytes, int], Any]


class AvroReader:
    """Makes the fast path for a frame. ``is_short``: no option makes Confluent's deserializer do more than decode.

    Raises ValueError if a default in the reader's schema does not fit its type.
    """

    def __init__(self, client: RegistryClient, schema: str | None, record_name: str | None, is_short: bool) -> None:
        self._client, self._schema, self._record_name, self._is_short = client, schema, record_name, is_short
        self._converted = [] if schema is None else ReaderSchema(schema).converted
        self._latest: set[str] = set()  # schemas of use.latest.version that were checked
        if not is_short:
            self._refuse(self._converted, "these options need")

    def check_latest(self) -> None:
        """Raise ConfigError if a subject's latest schema has defaults that Confluent does not convert."""
        for schema in self._client.latest:
            if schema.schema_str not in self._latest:
                resolved = ReaderSchema(schema.schema_str, self._others(schema))
                self._refuse(resolved.converted, "the subject's latest schema needs")
                self._latest.add(schema.schema_str)

    def _refuse(self, converted: list[str], why: str) -> None:
        """Raise ConfigError if the codec needs converted defaults or records' names, which Confluent's cannot make."""
        if converted:
            raise ConfigError(
                f"{why} Confluent's deserializer, which returns the default of {converted[0]} as its JSON value, not "
                "converted to its type: declare the field without a default, or with the default null"
            )
        if self._record_name is not None:
            raise ConfigError(
                f"record_name={self._record_name!r}: {why} Confluent's deserializer, which does not add records' names"
            )

    def shorten(self, frame: bytes, data: bytes, value: Any) -> Short | None:
        """The fast path for data with this frame; None if there is none. Raises ConfigError if the codec needs one."""
        schema = self._client.written_with(schema_id(frame))
        if not self._is_short:
            return None
        if schema is None or schema.rule_set is not None:
            why = "rules of the record's schema need" if schema else "an id that two subjects share needs"
            self._refuse(self._converted, why)
            return None
        if _is_bytes(schema.schema_str):
            return None  # bytes at the top level have no length prefix: only Confluent's deserializer reads them
        others = self._others(schema)
        if repr(self._plain(schema.schema_str, others)(data, len(frame))) != repr(value):
            self._refuse(self._converted, "the record's schema needs")
            return None
        return self._reader(schema.schema_str, others)

    def _others(self, schema: Any) -> list[str]:
        """The schemas that ``schema`` needs, each after its own dependencies."""
        schemas: dict[tuple[str, int], str] = {}

        def add(referring: Any) -> None:
            for reference in referring.references or ():
                if (reference.subject, reference.version) in schemas:
                    continue
                other = self._client.get_version(reference.subject, reference.version, True).schema
                add(other)
                schemas[reference.subject, reference.version] = other.schema_str

        add(schema)
        return list(schemas.values())

    def _plain(self, written: str, others: list[str]) -> Read:
        """A reader with the results of Confluent's deserializer."""
        wrap = not self._are_records(written)
        reader = None if self._schema is None else parsed(self._schema, in_a_record=wrap)
        return partial(_read, parsed(written, others, in_a_record=wrap), reader, wrap)

    def _reader(self, written: str, others: list[str]) -> Read:
        """The fast path: with logical types, values of defaults and records' names."""
        wrap = not self._are_records(written)
        schema, reader, shared = parsed(written, others, ours=True, in_a_record=wrap), None, False
        if self._schema is not None and parsed(self._schema, ours=True, in_a_record=wrap) != schema:
            resolved = ReaderSchema(self._schema, in_a_record=wrap)
            reader, shared = resolved.schema, resolved.shared
        key = self._record_name
        if key is None:
            read = partial(_read, schema, reader, wrap)
            return (lambda data, begin: copied(read(data, begin))) if shared else read
        of_value = parsed(written, others) if wrap or reader is None else reader
        name = of_value["name"] if _is_record(written) else None
        read = partial(_read, schema, reader, wrap, names=True)
        return lambda data, begin: with_names(read(data, begin), key, name)

    def _are_records(self, written: str) -> bool:
        return _is_record(written) and (self._schema is None or _is_record(self._schema))


def _read(schema: Any, reader: Any, wrap: bool, data: bytes, begin: int, *, names: bool = False) -> Any:
    """Read one value. With ``names``, a record from a union of several record types is a tuple (name, record)."""
    value = schemaless_reader(
        BytesIO(data[begin:]), schema, reader, return_record_name=names, return_record_name_override=names
    )
    return value["value"] if wrap else value  # type: ignore[index,call-overload]


def _is_record(schema: str) -> bool:
    loaded = json.loads(schema)
    return isinstance(loaded, dict) and loaded.get("type") == "record"


def _is_bytes(schema: str) -> bool:
    loaded = json.loads(schema)
    return loaded == "bytes" or (isinstance(loaded, dict) and loaded.get("type") == "bytes")
