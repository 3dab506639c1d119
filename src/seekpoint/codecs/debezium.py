"""Decodes Debezium's change events, envelopes or flattened rows, and converts values by the event's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from seekpoint.codecs.connect_json_schema import connect_json_reader
from seekpoint.codecs.connect_values import Convert, Schema, row_converter, schema_named
from seekpoint.codecs.json import json_number
from seekpoint.codecs.registry_client import Registry, check, connect, shown
from seekpoint.codecs.registry_codec import NOTHING, Decode, RegistryCodec
from seekpoint.codecs.wire_format import avro_frame, schema_id
from seekpoint.errors import ConfigError, Poison
from seekpoint.records import RawRecord

Row = Mapping[str, Any]
Op = Literal["c", "r", "u", "d", "t"]
Event = tuple[Schema | None, Any, Convert]  # an event's schema, its payload, and the converter of its rows

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_plain = msgspec.json.Decoder(float_hook=json_number)
_DELETED = "__deleted"  # added by ExtractNewRecordState in the mode ``rewrite``
_ROW = (dict, type(None))
_ENVELOPE = {"op", "before", "after", "source"}


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change of a row: ``op`` is c (create), r (read by a snapshot), u (update), d (delete) or t (truncate).

    ``before`` and ``after`` are rows, or None if the event has none. A value that the source did not send is
    ``seekpoint.codecs.UNAVAILABLE``. ``source`` has the origin of the change, with the source's position (the LSN of
    Postgres). For a flattened row, ``source`` has the fields that were added to it, and ``op`` is u or d.
    """

    op: Op
    before: Row | None
    after: Row | None
    source: Row


class Debezium:
    """Decode Debezium's change events into a :class:`Change`; a tombstone into None. Also for ``key=``.

    Events are in JSON, or with ``registry`` in Avro or in JSON with a JSON Schema, as Confluent's AvroConverter and
    JsonSchemaConverter write them; all give the same values. The registry is a URL, a configuration or a function, as
    for :class:`seekpoint.codecs.Avro`. If it does not answer, decoding raises CodecUnavailable: the worker
    waits, and no record fails.

    Values are converted by the event's schema (``schemas.enable``): times, decimals, bits, JSON, arrays. A value that
    cannot be converted exactly is an ``Unreadable``, which no sink writes. For JSON without schemas, ``types`` maps
    columns to names of Debezium's or Connect's types, as in ``{"at": "io.debezium.time.MicroTimestamp"}``, or to a
    field's schema with its parameters; other columns stay as in JSON.

    ``flattened=True``: the value is the row itself, as ``ExtractNewRecordState`` makes it. Schema changes, heartbeats
    and other events that change no row are poison; the error names them.
    """

    def __init__(
        self,
        *,
        registry: Registry | None = None,
        flattened: bool = False,
        types: Mapping[str, str | Schema] | None = None,
    ) -> None:
        if types is not None and not isinstance(types, Mapping):
            raise ConfigError(f"Debezium: types= maps columns to the names of their types, got {types!r}")
        if registry is not None and types is not None:
            raise ConfigError(
                "Debezium: types= is for JSON without schemas; with registry= the schemas have the types: remove types="
            )
        self._framed = None if registry is None else _RegistryEvents(registry)
        self.registry, self.flattened = registry, flattened
        self._declared = None if types is None else row_converter(
            {"type": "struct", "fields": [schema_named(name, kind) for name, kind in types.items()]}
        )  # fmt: skip
        self._compiled: dict[bytes, tuple[Schema, Convert]] = {}
        self._known: dict[tuple[str, str], tuple[bytes, Schema, Convert]] = {}  # by topic and part of the record

    def __repr__(self) -> str:
        registry = [] if self.registry is None else [f"registry={shown(self.registry)}"]
        return f"Debezium({', '.join([*registry, *(['flattened=True'] if self.flattened else [])])})"

    def decode(self, record: RawRecord, /) -> Change | None:
        """Decode a change; None for a tombstone.

        Raises CodecUnavailable if the schema registry does not answer, Poison or ValueError for any other record.
        """
        if record.value is None:
            return None
        schema, payload, convert = self._event(record, record.value, "value")
        if payload is None:  # a tombstone that ExtractNewRecordState made from a delete
            return None
        change = self._flat if self.flattened else self._change
        return change(schema, payload, convert, record)

    def decode_key(self, record: RawRecord, /) -> Any:
        """The columns of a record's key; None if it has no key."""
        if record.key is None:
            return None
        _, payload, convert = self._event(record, record.key, "key")
        return convert(payload) if isinstance(payload, dict) else payload

    def _event(self, record: RawRecord, data: bytes, field: str) -> Event:
        if self._framed is not None:
            return self._framed.event(record, data, field)
        known = self._known.get((record.topic, field))
        if known is not None and data.startswith(known[0]) and data.endswith(b"}"):  # the schema is that of the last
            begin, schema, convert = known
            return schema, _plain.decode(data[len(begin) : -1]), convert
        if data[:1] in {b"\0", b"\1"}:
            raise ValueError("in a schema registry's wire format, not JSON: give Debezium(registry=...)")
        payload = _plain.decode(data)
        if isinstance(payload, dict) and payload.keys() == {"schema", "payload"}:
            if isinstance(payload["schema"], dict):  # otherwise both names may be columns of a flattened row
                return self._with_schema(record, data, field)
            if payload["schema"] is None:
                payload = payload["payload"]
        if self._declared is None:
            raise Poison(
                f"the event's {field} has no schema, so the types of its numbers and texts are not known: set "
                f"{field}.converter.schemas.enable=true in the connector; or declare columns with {field}=Debezium("
                "types={'at': 'io.debezium.time.MicroTimestamp'}), types={} if no value needs a conversion"
            )
        return None, payload, self._declared

    def _with_schema(self, record: RawRecord, data: bytes, field: str) -> Event:
        """The event in JSON with its schema; the next event that begins with the same bytes is read without it."""
        members = _members.decode(data)
        framed, raw = bytes(members["schema"]), bytes(members["payload"])
        if framed not in self._compiled:
            schema: Schema = msgspec.json.decode(framed)
            self._compiled[framed] = schema, row_converter(_row_of(schema))
        schema, convert = self._compiled[framed]
        if [*members] == ["schema", "payload"] and data.endswith(raw + b"}"):
            self._known[record.topic, field] = data[: -len(raw) - 1], schema, convert
        return schema, _plain.decode(raw), convert

    def _change(self, schema: Schema | None, payload: Any, convert: Convert, record: RawRecord) -> Change:
        if not _holds_change(payload):
            _require_change_of_a_row(schema, payload, record)
            name = "" if schema is None else f" ({schema.get('name')})"
            raise Poison(
                f"not a Debezium envelope{name}: it has no op, or no object as source; for flattened rows "
                "(ExtractNewRecordState) give value=Debezium(flattened=True)",
                record,
            )
        op, before, after, source = payload["op"], payload.get("before"), payload.get("after"), payload["source"] or {}
        if op not in ("c", "r", "u", "d", "t"):  # a tuple: a list as op has no hash
            raise Poison(f"op is {op!r}, which is not a change of a row", record)
        if isinstance(before, str) or isinstance(after, str) or source.get("connector") == "mongodb":
            raise Poison(
                "the event is of MongoDB, whose 'after' is a text of JSON: set ExtractNewDocumentState in the "
                "connector, and give value=Debezium(flattened=True)",
                record,
            )
        if not isinstance(before, _ROW) or not isinstance(after, _ROW):
            raise Poison("'before' and 'after' must be objects or null", record)
        if (after is None) == (op in {"c", "r", "u"}):
            raise Poison(f"op is {op!r}, but 'after' is {'missing' if after is None else 'not null'}", record)
        return Change(
            op=op,
            before=None if before is None else convert(before),
            after=None if after is None else convert(after),
            source=source,
        )

    def _flat(self, schema: Schema | None, payload: Any, convert: Convert, record: RawRecord) -> Change:
        if not isinstance(payload, dict):
            raise Poison("not a row: the value is not a JSON object", record)
        _require_change_of_a_row(schema, payload, record)
        if payload.keys() >= _ENVELOPE:
            raise Poison("an envelope, not a flattened row: give value=Debezium()", record)
        if payload.get("__op") == "t":
            raise Poison("the source's table was truncated, which a flattened row cannot describe", record)
        row = convert(payload)
        added = {name: row.pop(name) for name in [*row] if name.startswith("__")}
        is_deleted = added.get(_DELETED) in {"true", True} or added.get("__op") == "d"
        return Change(
            op="d" if is_deleted else "u",
            before=row if is_deleted else None,
            after=None if is_deleted else row,
            source=added,
        )


_CONVERTERS = (
    "ProtobufConverter keeps no names of Debezium's types, so a timestamp is a plain number: set "
    "value.converter=io.confluent.connect.avro.AvroConverter (and key.converter) in the connector, or "
    "io.confluent.connect.json.JsonSchemaConverter; or org.apache.kafka.connect.json.JsonConverter, and Debezium() here"
)


class _RegistryEvents(RegistryCodec[Event]):
    """Decodes events that AvroConverter or JsonSchemaConverter wrote; converts values by their Connect types."""

    def __init__(self, registry: Registry) -> None:
        check(registry)
        super().__init__(registry, None, False, NOTHING)

    def __repr__(self) -> str:
        return f"Debezium(registry={shown(self.registry)})"

    def event(self, record: RawRecord, data: bytes, field: str) -> Event:
        """The event in a record's value or key. Raises CodecUnavailable if the registry does not answer."""
        return self._decode(record, data, field)

    def _open(self) -> Decode:
        from seekpoint.codecs.connect_avro import connect_reader  # noqa: PLC0415 -- it needs the extra

        assert self.registry is not None
        client = connect(self.registry, "AVRO", "JSON", otherwise=_CONVERTERS)
        readers: dict[tuple[str, str, bytes], tuple[Schema, Convert, Callable[[bytes, int], Any]]] = {}

        def read(data: bytes, record: RawRecord, field: str) -> Event:
            begin = avro_frame(data)
            if not begin:
                raise ValueError(
                    f"not in a schema registry's wire format: the {field} begins with {data[:9]!r}; for events in JSON "
                    "give Debezium() without registry="
                )
            if (key := (record.topic, field, data[:begin])) not in readers:
                number, subject = schema_id(data[:begin]), f"{record.topic}-{field}"
                ask = (
                    partial(client.get_schema, subject_name=subject)
                    if isinstance(number, int)
                    else client.get_schema_by_guid
                )
                written = ask(number)
                reader_of = connect_json_reader if written.schema_type == "JSON" else connect_reader
                schema, reader = reader_of(written.schema_str)
                readers[key] = schema, row_converter(_row_of(schema)), reader
            schema, convert, reader = readers[key]
            return schema, reader(data, begin), convert

        return read


def _row_of(schema: Schema) -> Schema:
    """The schema of the event's rows: that of ``after`` in an envelope, otherwise the event's own."""
    fields: Sequence[Schema] = schema.get("fields") or ()
    return next((field for field in fields if field.get("field") == "after" and field.get("type") == "struct"), schema)


def _holds_change(payload: Any) -> bool:
    return isinstance(payload, dict) and "op" in payload and isinstance(payload.get("source", ""), dict | None)


def _require_change_of_a_row(schema: Schema | None, payload: Any, record: RawRecord) -> None:
    """Raise Poison for schema changes, transaction metadata and heartbeats; the message names the event."""
    name = str((schema or {}).get("name") or "")
    kind = name.rpartition(".")[2] if name.startswith("io.debezium.") else ""  # other names are made from a table's
    is_dict = isinstance(payload, dict)
    if kind.startswith("SchemaChange") or (is_dict and payload.keys() >= {"source", "tableChanges"}):
        raise Poison(
            f"a schema change ({record.topic}), not a change of a row: leave its topic out of topics=",
            record,
        )
    if kind.startswith(("Heartbeat", "TransactionMetadata")) or (is_dict and payload.keys() <= {"ts_ms"}):
        raise Poison(f"{name or 'a heartbeat'} is not a change of a row: leave {record.topic} out of topics=", record)


def is_envelope(value: Any) -> bool:
    """Whether the value is a Change, or an envelope that another codec has decoded."""
    if isinstance(value, Mapping) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    return isinstance(value, Change) or (isinstance(value, Mapping) and value.keys() >= _ENVELOPE)
