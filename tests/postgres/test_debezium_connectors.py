"""Debezium's events of other sources than Postgres, applied to a real Postgres.

Some are those that its documentation shows; others were made of values by the classes of its connectors.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from seekpoint import Pipeline, Upsert
from seekpoint.codecs import Debezium
from seekpoint.codecs.source_position import source_position
from seekpoint.records import RawRecord
from seekpoint.testing import raw
from support.debezium import GOLDEN, Form, connector_lines, golden_of_connector
from support.sink_tables import TOPIC, SinkTables

EVENTS = [json.loads(line) for line in GOLDEN.joinpath("documented.jsonl").read_text(encoding="utf-8").splitlines()]


def documented(connector: str) -> list[dict[str, Any]]:
    """The events of a connector's page, in its order: create, update, delete, truncate."""
    events = [line["value"] for line in EVENTS if line["connector"] == connector]
    for event in events:
        event["payload"]["source"].setdefault("connector", connector)
    return events


def records(events: list[dict[str, Any]]) -> list[RawRecord]:
    """The events as records of one partition, without keys: ``before`` has the row of a delete."""
    return [raw(json.dumps(event).encode(), topic=TOPIC, offset=offset) for offset, event in enumerate(events)]


@pytest.mark.parametrize(
    ("connector", "key", "changed"),
    [
        ("mysql", "id", ("first_name", "Anne Marie")),
        ("sqlserver", "id", ("email", "noreply@example.org")),
        ("oracle", "ID", ("EMAIL", "anne@example.com")),
    ],
)
def test_a_row_follows_its_changes(
    sink_tables: SinkTables, group: str, connector: str, key: str, changed: tuple[str, str]
) -> None:
    column, value = changed
    path = sink_tables.create(f'"{key}" int PRIMARY KEY, "{column}" text, o bigint, position numeric')
    sink = Upsert(
        path, key=[key], columns=[key, column], changes=True, truncate="delete", offset_column="o", order_by="position"
    )
    pipeline = Pipeline(group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink])
    events = documented(connector)
    if connector == "oracle":  # the page's delete has a lower SCN than its update
        events[2]["payload"]["source"]["scn"] = "2130000"
    create, update, delete, *truncates = records(events)
    assert sink_tables.process(pipeline, create, update).stopped == {}
    position = source_position(documented(connector)[1]["payload"]["source"])
    assert sink_tables.rows(column, "o", "position") == [(value, 1, position)]
    assert sink_tables.process(pipeline, delete).stopped == {}
    assert sink_tables.rows("o") == []
    assert sink_tables.process(pipeline, *truncates).stopped == {}


MONGODB = {
    "id": "bigint PRIMARY KEY", "n": "int", "d": "double precision", "big": "bigint", "amount": "numeric",
    "at": "timestamp", "oid": "text", "bin": "bytea", "flag": "boolean", "txt": "text", "tags": "text[]",
    "address": "jsonb",
}  # fmt: skip


@pytest.mark.parametrize("form", ["schema", "avro"])
def test_a_row_follows_its_flattened_document(sink_tables: SinkTables, group: str, form: Form) -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    codec = Debezium(flattened=True, registry=(lambda: client) if form == "avro" else None)
    path = sink_tables.create(", ".join(f"{column} {kind}" for column, kind in MONGODB.items()))
    sink = Upsert(path, key=["id"], columns=[*MONGODB], changes=True)
    pipeline = Pipeline(group, topics=TOPIC, value=codec, key=codec, sinks=[sink])
    read, delete = golden_of_connector("mongodb_flattened", TOPIC, form, client)
    assert sink_tables.process(pipeline, read).stopped == {}
    texts = (
        "1004,5,0.1,9223372036854775807,12345.60,2024-02-29 23:59:59.123,596e275826f08b2730779e1f,\\x00ff10,true,ä €"
    )
    listed = ", ".join(f"{column}::text" for column in MONGODB)
    with sink_tables.engine.connect() as tx:
        rows = tx.exec_driver_sql(f'SELECT {listed} FROM "{path[0]}".t').all()
    assert rows == [(*texts.split(","), "{a,b}", '{"city": "Bonn"}')]
    assert sink_tables.process(pipeline, delete).stopped == {}
    assert sink_tables.rows("id") == []


def test_changes_of_mongodb_are_named(sink_tables: SinkTables, group: str) -> None:
    sink = Upsert(sink_tables.create("id int PRIMARY KEY"), key=["id"], columns=["id"], changes=True)
    pipeline = Pipeline(
        group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink], on_poison="dead_letter"
    )  # fmt: skip
    events = [*records(documented("mongodb")), *golden_of_connector("mongodb", TOPIC, "schema")]
    done = sink_tables.process(pipeline, *[raw(record.value, topic=TOPIC, offset=n) for n, record in enumerate(events)])
    assert len(done.dead_letters) == 5, "deletes, which have no 'after', too"
    for dead_letter in done.dead_letters:
        assert "set ExtractNewDocumentState in the connector" in dead_letter.failure.summary


# -- what the connectors' own classes have made -----------------------------------------------------------------------

# A column's type here, and the source's value as this Postgres writes it.
MYSQL = {
    "id": ("bigint", "2"), "tiny": ("smallint", "-128"), "flag": ("smallint", "1"), "utiny": ("smallint", "255"),
    "n": ("bigint", "4294967295"), "ubig": ("numeric", "18446744073709551615"), "amount": ("numeric(10,2)", "-0.01"),
    "f": ("real", "0.1"), "d": ("double precision", "0.1"), "day": ("date", "2024-02-29"),
    "t": ("time", "23:59:59.123456"), "ts": ("timestamp", "2024-02-29 23:59:59.123456"),
    "ts3": ("timestamp", "2024-02-29 23:59:59.123"), "tstz": ("timestamptz", "2024-02-29 23:59:59.123456+00"),
    "y": ("smallint", "2024"), "e": ("text", "b"), "s": ("text", "x,z"), "j": ("json", '{"a": [1, 2.50]}'),
    "onebit": ("bit(1)", "1"), "bits": ("bit(9)", "100000001"), "bin": ("bytea", "\\x00ff10"),
    "fixed": ("bytea", "\\x01020000"), "bl": ("bytea", "\\x0100"), "txt": ("text", "ä €"),
    "p": ("text", "0101000020e6100000000000000000f83f00000000000000c0"),
    "g": ("text", "0101000020e6100000000000000000f83f00000000000000c0"),
}  # fmt: skip
SQL_SERVER = {
    "id": ("bigint", "2"), "tiny": ("smallint", "255"), "flag": ("boolean", "true"),
    "amount": ("numeric(10,2)", "-0.01"), "cash": ("numeric(19,4)", "0.0001"), "r": ("real", "0.1"),
    "d": ("double precision", "0.1"), "day": ("date", "2024-02-29"), "t": ("time", "23:59:59.123456"),
    "t3": ("time", "12:34:56.789"), "ts": ("timestamp", "2024-02-29 23:59:59.123456"),
    "finer": ("timestamp", "2024-02-29 23:59:59.1234567"), "small": ("timestamp", "2024-02-29 23:59:00"),
    "tstz": ("timestamptz", "2024-02-29 23:59:59.123456+00"),
    "finertz": ("timestamptz", "2024-02-29 23:59:59.1234567+00"),
    "u": ("uuid", "0190d5b0-0000-7000-8000-000000000001"), "x": ("text", "<a/>"), "bin": ("bytea", "\\x00ff10"),
    "txt": ("text", "ä €"),
}  # fmt: skip
ORACLE = {
    "ID": ("bigint", "2"), "TINY": ("smallint", "-99"), "HUNDREDS": ("int", "12300"),
    "AMOUNT": ("numeric(10,2)", "-0.01"), "ANYNUM": ("numeric", "0.12345678901234567890"),
    "WHOLE": ("numeric", "12345678901234567890"), "FL": ("numeric", "1.5"), "BF": ("real", "0.1"),
    "BD": ("double precision", "0.1"), "NAN": ("double precision", "NaN"),
    "DAY": ("timestamp", "2024-02-29 23:59:59"), "TS": ("timestamp", "2024-02-29 23:59:59.123456"),
    "TS3": ("timestamp", "2024-02-29 23:59:59.123"), "FINER": ("timestamp", "2024-02-29 23:59:59.123456789"),
    "TSTZ": ("timestamptz", "2024-02-29 21:59:59.123456+00"),
    "FINERTZ": ("timestamptz", "2024-02-29 21:59:59.123456789+00"), "YM": ("interval", "1 year 2 mons"),
    "DS": ("interval", "1 day 02:03:04.000006"), "BIN": ("bytea", "\\x00ff10"), "TXT": ("text", "ä €"),
}  # fmt: skip
SOURCES = {"mysql": MYSQL, "mariadb": MYSQL, "sqlserver": SQL_SERVER, "oracle": ORACLE}
NANOSECONDS, FINER, MONTHS = "not whole microseconds", "finer than a microsecond", "interval.handling.mode=string"
LOST_DIGITS, FLOAT = "a float may have lost digits", "a float for a whole number"
# Columns whose values these settings of the connector do not send exactly: why they are refused. None: the connector
# has changed the value, and the event does not say so.
INEXACT: dict[str, dict[str, str | None]] = {
    "mysql": {"ubig": None},
    "mysql_string_connect": {"t": None, "ts": None},
    "mysql_double_isostring": {"ubig": None, "amount": LOST_DIGITS},
    "mariadb": {"ubig": None},
    "mariadb_string_connect": {"t": None, "ts": None},
    "mariadb_double_isostring": {"ubig": None, "amount": LOST_DIGITS},
    "sqlserver": {"finer": NANOSECONDS, "finertz": FINER},
    "sqlserver_string_connect": {"t": None, "ts": None, "finer": None, "finertz": FINER},
    "sqlserver_double_isostring": {"amount": LOST_DIGITS, "cash": LOST_DIGITS, "finer": FINER, "finertz": FINER},
    "oracle": {"FINER": NANOSECONDS, "FINERTZ": FINER, "YM": MONTHS, "DS": MONTHS},
    "oracle_string_connect": {"TS": None, "FINER": None, "FINERTZ": FINER},
    "oracle_double_isostring": {
        "ID": FLOAT, "TINY": FLOAT, "ANYNUM": LOST_DIGITS, "WHOLE": LOST_DIGITS, "AMOUNT": LOST_DIGITS,
        "FL": LOST_DIGITS, "FINER": FINER, "FINERTZ": FINER, "YM": MONTHS, "DS": MONTHS,
    },
}  # fmt: skip
EXACT_KEYS = [name for name in INEXACT if not {"id", "ID"} & INEXACT[name].keys()]
FORMS: tuple[Form, ...] = ("schema", "schemaless", "avro")


def codec_of(name: str, form: Form, client: SchemaRegistryClient) -> Debezium:
    """The codec for these events; without schemas, with the types of their columns that need it."""
    if form == "avro":
        return Debezium(registry=lambda: client)
    if form == "schema":
        return Debezium()
    envelope = next(schema for schema in connector_lines(name)[0]["json"] if schema["name"].endswith(".Envelope"))
    after = next(part for part in envelope["fields"] if part["field"] == "after")
    return Debezium(types={field["field"]: field for field in after["fields"]})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EXACT_KEYS)
def test_rows_are_those_of_the_source(sink_tables: SinkTables, group: str, name: str, form: Form) -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    codec, source = codec_of(name, form, client), SOURCES[name.partition("_")[0]]
    key = next(iter(source))
    columns = [column for column in source if column not in INEXACT[name]]
    body = ", ".join(f'"{column}" {source[column][0]}' for column in columns)
    path = sink_tables.create(f'{body}, o bigint, PRIMARY KEY ("{key}")')
    sink = Upsert(path, key=[key], columns=columns, changes=True, offset_column="o", truncate="delete")
    pipeline = Pipeline(group, topics=TOPIC, value=codec, key=codec, sinks=[sink], on_poison="dead_letter")
    read, create, update, *moved, delete, tombstone, truncate = golden_of_connector(name, TOPIC, form, client)
    assert sink_tables.process(pipeline, read, create, update).dead_letters == ()
    listed = ", ".join(f'"{column}"::text' for column in columns)
    with sink_tables.engine.connect() as tx:
        tx.exec_driver_sql("SET timezone = 'UTC'")
        rows = tx.exec_driver_sql(f'SELECT {listed} FROM "{path[0]}".t ORDER BY "{key}"').all()
    assert [dict(zip(columns, row, strict=True)) for row in rows] == [
        {column: "1" if column == key else None for column in columns},
        {column: source[column][1] for column in columns},
    ]
    assert sink_tables.process(pipeline, *moved).dead_letters == ()
    assert sink_tables.rows(key) == [(1,), (20,)], "the changed key: a delete with its tombstone, and a create"
    assert sink_tables.process(pipeline, delete, tombstone).dead_letters == ()
    assert sink_tables.rows(key) == [(1,)]
    assert sink_tables.process(pipeline, truncate).dead_letters == ()
    assert sink_tables.rows(key) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INEXACT)
def test_a_value_that_is_not_sent_exactly_is_refused(
    sink_tables: SinkTables, group: str, name: str, form: Form
) -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    codec, source = codec_of(name, form, client), SOURCES[name.partition("_")[0]]
    key, create = next(iter(source)), golden_of_connector(name, TOPIC, form, client)[1]
    for column, message in INEXACT[name].items():
        if message is None:
            continue
        columns = {key: "double precision" if key in INEXACT[name] else "bigint"} | {column: source[column][0]}
        body = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        path = sink_tables.create(f'{body}, PRIMARY KEY ("{key}")', column)
        sink = Upsert(path, key=[key], columns=[*columns], changes=True)
        pipeline = Pipeline(
            f"{group}-{column}", topics=TOPIC, value=codec, key=codec, sinks=[sink], on_poison="dead_letter"
        )
        done = sink_tables.process(pipeline, create)
        assert [message in dead_letter.failure.summary for dead_letter in done.dead_letters] == [True], column
        assert sink_tables.rows(key, name=column) == []
