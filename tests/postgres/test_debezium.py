"""``Upsert(changes=True)`` on a real Postgres: Debezium's changes make the source's table, by every write strategy."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from sqlalchemy import create_engine

from seekpoint import Json, OnPoison, Partition, Pipeline, Text, Upsert, schema
from seekpoint.codecs import Debezium
from seekpoint.errors import ConfigError
from seekpoint.records import RawRecord
from seekpoint.sinks.upsert import strategy
from seekpoint.testing import raw
from support.databases import create_extension
from support.debezium import event, field, golden, golden_avro, golden_json_schema, key_of
from support.sink_tables import TOPIC, SinkTables

FIELDS = [field("id", "int32"), field("v"), field("body")]
LOST = "__debezium_unavailable_value"


@pytest.fixture(params=[10**9, 0], ids=["unnest", "copy or stage"])
def _each_strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "SMALL", request.param)


def row(id: int, v: str | None = None, body: str | None = None) -> dict[str, Any]:  # noqa: A002
    return {"id": id, "v": v, "body": body}


class Log:
    """Records of one partition, in order."""

    def __init__(self) -> None:
        self.records: list[RawRecord] = []

    def add(self, op: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Log:
        changed: Any = after or before
        return self.put(event(FIELDS, op, before, after), key_of(id=changed["id"]) if changed else None)

    def put(self, value: bytes | None, key: bytes | None) -> Log:
        self.records.append(raw(value, topic=TOPIC, offset=len(self.records), key=key))
        return self


def replica(
    sink_tables: SinkTables, group: str, body: str = "id int PRIMARY KEY, v text, body text", **options: Any
) -> Pipeline:
    path = sink_tables.create(body)
    sink = Upsert(path, **{"key": ["id"], "columns": ["id", "v", "body"], "changes": True, **options})
    return Pipeline(
        group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink], on_poison="dead_letter"
    )  # fmt: skip


@pytest.mark.usefixtures("_each_strategy")
def test_creates_reads_updates_and_deletes(sink_tables: SinkTables, group: str) -> None:
    log = Log().add("r", None, row(1, "a")).add("c", None, row(2, "b")).add("c", None, row(3, "c"))
    log.add("u", None, row(2, "B")).add("d", row(1), None).put(None, key_of(id=1)).put(None, key_of(id=3))
    done = sink_tables.process(replica(sink_tables, group), *log.records)
    assert done.dead_letters == ()
    assert sink_tables.rows("id", "v") == [(2, "B")], "3 by its tombstone: compaction may have removed the delete"


@pytest.mark.usefixtures("_each_strategy")
def test_a_changed_key_is_a_delete_and_an_insert(sink_tables: SinkTables, group: str) -> None:
    """If the topic's key is another one than the table's, an update itself may change the key."""
    pipeline = replica(sink_tables, group, "id int, v text PRIMARY KEY, body text", key=["v"])
    log = Log().add("c", None, row(1, "old", "x")).add("c", None, row(2, "two"))
    log.add("u", row(1, "old", "x"), row(1, "new", "y")).add("u", row(2, "two"), row(2, "two", "z"))
    log.add("u", None, row(2, "three")).add("c", None, row(3, "six", "w")).add("u", row(3, LOST), row(3, "four"))
    done = sink_tables.process(pipeline, *log.records)
    assert sink_tables.rows("v", "id", "body") == [("new", 1, "y"), ("six", 3, "w"), ("two", 2, "z")]
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [4, 6], "the old row is not known"
    assert all("REPLICA IDENTITY FULL" in dead_letter.failure.summary for dead_letter in done.dead_letters)


@pytest.mark.usefixtures("_each_strategy")
def test_what_was_not_sent_keeps_what_the_row_has(sink_tables: SinkTables, group: str) -> None:
    log = Log().add("c", None, row(1, "a", "long")).add("u", None, row(1, "b", LOST)).add("c", None, row(2, "x", "y"))
    log.add("u", None, row(2, LOST, "Y")).add("u", None, row(2, "X", LOST)).add("u", None, row(9, "v", LOST))
    log.add("c", None, row(3, "after", "it")).add("d", row(3), None).add("u", None, row(1, "c", LOST))
    done = sink_tables.process(replica(sink_tables, group), *log.records)
    assert sink_tables.rows("id", "v", "body") == [(1, "c", "long"), (2, "X", "Y")]
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [5], "there is no row to keep it of"
    assert "the event lacks body" in done.dead_letters[0].failure.summary


def test_an_older_update_changes_nothing_where_the_offset_is_stored(sink_tables: SinkTables, group: str) -> None:
    pipeline = replica(sink_tables, group, "id int PRIMARY KEY, v text, body text, o bigint", offset_column="o")
    log = Log().add("c", None, row(1, "a", "long")).add("u", None, row(1, "b", LOST)).add("u", None, row(1, "c", LOST))
    sink_tables.process(pipeline, *log.records)
    sink_tables.sql("UPDATE t SET o = 9")
    again = Pipeline(
        f"{group}-again", topics=TOPIC, value=Debezium(), key=Debezium(), sinks=pipeline.sinks, on_poison="dead_letter"
    )
    assert sink_tables.process(again, *log.records).dead_letters == ()
    assert sink_tables.rows("v", "body", "o") == [("c", "long", 9)]


def test_what_is_not_applied_is_its_records_error(sink_tables: SinkTables, group: str) -> None:
    log = Log().add("c", None, row(1, "a")).add("t", None, None).add("u", None, row(1, "b"))
    done = sink_tables.process(replica(sink_tables, group), *log.records)
    assert [dead_letter.offset for dead_letter in done.dead_letters] == [1]
    assert "give the sink truncate='delete'" in done.dead_letters[0].failure.summary
    assert sink_tables.rows("id", "v") == [(1, "b")]


@pytest.mark.usefixtures("_each_strategy")
def test_a_declared_truncate_deletes_the_rows_before_it(sink_tables: SinkTables, group: str) -> None:
    columns = "id int PRIMARY KEY, v text, body text, o bigint"
    pipeline = replica(sink_tables, group, columns, offset_column="o", truncate="delete")
    log = Log().add("c", None, row(1, "a")).add("c", None, row(2, "b")).add("t", None, None).add("c", None, row(2, "c"))
    log.add("u", None, row(2, "d", LOST)).add("t", None, None).add("c", None, row(3, "e")).add("c", None, row(4, "f"))
    assert sink_tables.process(pipeline, *log.records).dead_letters == ()
    assert sink_tables.rows("id", "v", "o") == [(3, "e", 6), (4, "f", 7)]
    sink_tables.sql("UPDATE t SET o = NULL WHERE id = 4")
    again = Pipeline(f"{group}-again", topics=TOPIC, value=Debezium(), key=Debezium(), sinks=pipeline.sinks)
    sink_tables.process(again, *log.records[:6])
    assert sink_tables.rows("id", "v", "o") == [(3, "e", 6)], "as after a rewind: newer rows stay"


def test_a_truncate_is_declared_for_one_topic_of_one_partition(sink_tables: SinkTables, group: str) -> None:
    columns = "id int PRIMARY KEY, v text, body text, o bigint"
    pipeline = replica(sink_tables, group, columns, offset_column="o", truncate="delete")
    with pytest.raises(
        ConfigError, match=r"a truncate came in .*/1: records of several partitions have no common order"
    ):
        sink_tables.process(pipeline, raw(event(FIELDS, "t", None, None), topic=TOPIC, partition=1))
    options: dict[str, Any] = {"key": ["id"], "columns": ["id"], "changes": True}
    for more in ({"truncate": "delete"}, {"truncate": "all", "offset_column": "o"},
                 {"truncate": "delete", "offset_column": "o", "compacted": True},
                 {"truncate": "delete", "offset_column": "o", "changes": False}):  # fmt: skip
        with pytest.raises(ConfigError, match="needs changes=True and offset_column="):
            Upsert("t", **options | more)
    sink = Upsert("t", **options, truncate="delete", offset_column="o")
    with pytest.raises(ConfigError, match="takes several topics, and a truncate in one would delete the rows of all"):
        Pipeline(group, topics=["a", "b"], value=Debezium(), sinks=[sink])
    with pytest.raises(ConfigError, match="another sink writes the table of Upsert"):
        Pipeline(group, topics="a", value=Debezium(), sinks=[sink, Upsert("t", **options)])


class SourceChanges:
    """Changes of a row at a source's positions, at given partitions and offsets."""

    def __init__(self, sink_tables: SinkTables, group: str, **options: Any) -> None:
        columns = "id int PRIMARY KEY, v text, body text, o bigint, p int, lsn bigint"
        provenance = {"partition": "p"}
        self.pipeline = replica(
            sink_tables, group, columns, offset_column="o", order_by="lsn", provenance=provenance, **options
        )
        self._tables = sink_tables

    def records(self, *changes: tuple[int, int, str, int | None, str], partition: int = 0) -> list[RawRecord]:
        """Records of (offset, id, op, LSN, value); without an LSN it is a tombstone."""
        records = []
        for offset, id_, op, lsn, v in changes:
            before, after = (row(id_), None) if op == "d" else (None, row(id_, v, LOST if v.islower() else "long"))
            value = None if lsn is None else event(FIELDS, op, before, after, connector="postgresql", lsn=lsn)
            records.append(raw(value, topic=TOPIC, partition=partition, offset=offset, key=key_of(id=id_)))
        return records

    def process(self, *records: RawRecord) -> Any:
        return self._tables.process(self.pipeline, *records)

    @property
    def rows(self) -> list[Any]:
        return self._tables.rows("id", "v", "p", "o", "lsn")


@pytest.mark.usefixtures("_each_strategy")
def test_between_partitions_the_sources_position_decides(sink_tables: SinkTables, group: str) -> None:
    """As after the topic got more partitions: the same row's changes are in two of them."""
    source = SourceChanges(sink_tables, group)
    source.process(*source.records((7, 1, "c", 100, "A"), (8, 2, "c", 110, "A"), (9, 3, "c", 120, "A")))
    source.process(*source.records((0, 1, "u", 90, "OLD"), (1, 2, "u", 111, "NEW"), (2, 3, "d", 119, ""), partition=1))
    assert source.rows == [(1, "A", 0, 7, 100), (2, "NEW", 1, 1, 111), (3, "A", 0, 9, 120)]
    source.process(*source.records((3, 3, "", None, ""), (4, 2, "d", 130, ""), (5, 2, "", None, ""), partition=1))
    assert source.rows == [(1, "A", 0, 7, 100), (3, "A", 0, 9, 120)], "a tombstone deletes a row of its partition only"
    both = [*source.records((10, 4, "c", 200, "A")), *source.records((6, 4, "u", 190, "B"), partition=1)]
    source.process(*both, *source.records((11, 1, "", None, "")))
    assert source.rows == [(3, "A", 0, 9, 120), (4, "A", 0, 10, 200)], "within one transaction, too"


@pytest.mark.usefixtures("_each_strategy")
@pytest.mark.parametrize("on_poison", ["dead_letter", "stop"])
@pytest.mark.parametrize(
    "change", [("u", 99, "NEW"), ("u", 99, "part"), ("d", 99, "")], ids=["update", "in part", "delete"]
)
@pytest.mark.parametrize("is_together", [True, False], ids=["together", "stored"])
def test_a_position_that_goes_back_in_its_partition_stops_it(
    sink_tables: SinkTables, group: str, on_poison: Any, change: tuple[str, int, str], is_together: bool
) -> None:
    """A restored source, or changes that are sent again: never dropped silently, and never a dead letter."""
    source = SourceChanges(sink_tables, group)
    source.pipeline.on_poison = OnPoison(on_poison)
    first = source.records((0, 1, "c", 90, "A"), (1, 2, "c", 91, "B"), (2, 1, "u", 100, "C"))
    op, lsn, v = change
    back = source.records((3, 2, "u", 92, "D"), (4, 1, op, lsn, v), (5, 2, "u", 101, "E"))
    if not is_together:
        source.process(*first)
    done = source.process(*first, *back) if is_together else source.process(*back)
    assert done.dead_letters == ()
    stop = done.stopped[Partition(TOPIC, 0)]
    assert stop.offset == 4
    assert "the source's position goes back: 99 after 100, which column 'lsn' has" in str(stop)
    assert "set the column that the error names to NULL in all rows" in stop.choices[0]
    assert source.rows == [(1, "C", 0, 2, 100), (2, "D", 0, 3, 92)]
    sink_tables.sql("UPDATE t SET lsn = NULL")
    assert source.process(*back[1:]).stopped == {}
    row_of_1 = [] if op == "d" else [(1, v, 0, 4, 99)]
    assert source.rows == [*row_of_1, (2, "E", 0, 5, 101)], "the operator's choice: the log's order"


def test_after_a_rewind_positions_that_come_again_change_nothing(sink_tables: SinkTables, group: str) -> None:
    source = SourceChanges(sink_tables, group)
    records = source.records((0, 1, "c", 90, "A"), (1, 1, "u", 100, "B"), (2, 2, "c", 101, "C"))
    source.process(*records)
    again = Pipeline(f"{group}-again", topics=TOPIC, value=Debezium(), key=Debezium(), sinks=source.pipeline.sinks)
    assert sink_tables.process(again, records[0]).stopped == {}
    assert source.rows == [(1, "B", 0, 1, 100), (2, "C", 0, 2, 101)]


@pytest.mark.parametrize("kind", ["text", "double precision"])
def test_the_sources_position_is_a_whole_number(sink_tables: SinkTables, group: str, kind: str) -> None:
    columns = f"id int PRIMARY KEY, v text, body text, o bigint, lsn {kind}"
    (sink,) = replica(sink_tables, group, columns, offset_column="o", order_by="lsn").sinks
    remedy = rf"order_by='lsn' is of type {kind}, .* ALTER COLUMN \"lsn\" TYPE numeric"
    with sink_tables.engine.connect() as tx, pytest.raises(ConfigError, match=remedy):
        sink.check(tx, [])


def test_the_sources_position_needs_a_column_of_its_own(sink_tables: SinkTables, group: str) -> None:
    options: dict[str, Any] = {"key": ["id"], "columns": ["id", "lsn"], "changes": True}
    with pytest.raises(ConfigError, match="order_by=, which needs it"):
        Upsert("t", **options, order_by="at")
    with pytest.raises(ConfigError, match="order_by='lsn' gets the source's position, so it cannot be one of columns="):
        Upsert("t", **options, order_by="lsn", offset_column="o")
    source = SourceChanges(sink_tables, group)
    done = source.process(raw(event(FIELDS, "c", None, row(1), connector="db2"), topic=TOPIC, key=key_of(id=1)))
    assert "the event's connector is 'db2': leave out order_by=" in done.dead_letters[0].failure.summary


MISREAD: list[tuple[str, dict[str, Any], Any, str]] = [
    ("time", field("v", "int64"), 123456, "a number does not say which unit or type of time it is"),
    ("timestamptz", field("v", "int64", "io.debezium.time.MicroTimestamp"), 1, "no time zone"),
    ("interval", field("v", "int64"), 5, "a number does not say which unit or type of time it is"),
    ("bytea", field("v"), "AP8Q", "binary.handling.mode=bytes"),
    ("jsonb", field("v"), '{"a": 1}', "a text may be JSON or a string"),
    ("numeric", field("v", "double"), 0.1, "decimal.handling.mode"),
    ("interval", field("v", "int64", "io.debezium.time.MicroDuration"), 5, "interval.handling.mode=string"),
    ("varbit", field("v", "bytes", "io.debezium.data.Bits", length="3"), "BQ==", "how many bits"),
]


@pytest.mark.parametrize("case", MISREAD, ids=lambda case: case[0])
def test_a_value_that_the_column_would_read_otherwise(
    sink_tables: SinkTables, group: str, case: tuple[str, dict[str, Any], Any, str]
) -> None:
    column, schema, sent, message = case
    pipeline = replica(sink_tables, group, f"id int PRIMARY KEY, v {column}", columns=["id", "v"])
    body = event([field("id", "int32"), schema], "c", None, {"id": 1, "v": sent})
    done = sink_tables.process(pipeline, raw(body, topic=TOPIC, key=key_of(id=1)))
    assert message in done.dead_letters[0].failure.summary
    assert sink_tables.rows("id") == []


def test_a_sink_that_would_leave_deleted_rows(
    sink_tables: SinkTables, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = sink_tables.create("id int PRIMARY KEY, v text")
    sink = Upsert(path, key=["id"], columns=["id", "v"])
    with sink_tables.engine.connect() as tx:
        with pytest.raises(ConfigError, match="would leave deleted rows"):
            sink.check(tx, [Debezium()])
        with pytest.raises(ConfigError, match=r"value=Debezium\(\)"):
            Upsert(path, key=["id"], columns=["id", "v"], changes=True).check(tx, [Json()])
    envelope = {"before": None, "after": {"id": 1, "v": "a"}, "source": {}, "op": "c"}
    taken_apart = Upsert(path, key=["id"], columns=["id", "v"], row=lambda r: r.value["after"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), key=Text(), sinks=[taken_apart])
    with caplog.at_level(logging.WARNING, "seekpoint.sinks.upsert"):
        sink_tables.process(
            pipeline, *[raw(json.dumps(envelope).encode(), topic=TOPIC, offset=n, key=b"1") for n in range(2)]
        )
    assert ["a Debezium envelope" in line.getMessage() for line in caplog.records] == [True], "once"


# -- what Debezium itself has written ---------------------------------------------------------------------------------

EVERYTHING = """
    id bigint PRIMARY KEY, big bigint, small smallint, n int, r real, d double precision, flag boolean,
    amount numeric(10,2), anynum numeric, day date, t time, t3 time(3), ttz timetz, ts timestamp, ts3 timestamp(3),
    tstz timestamptz, iv interval, u uuid, j jsonb, js json, bin bytea, bits bit(9), onebit bit(1), mood mood, ip inet,
    pt point, rng int4range, tags text[], nums int[], amounts numeric(10,2)[], days date[], tss timestamptz[],
    uuids uuid[], h hstore, txt text, ch char(5), mac macaddr
"""
COLUMNS = [part.split()[0] for part in EVERYTHING.replace("(10,2)", "").split(",")]
AT_THE_SOURCE = """
    INSERT INTO source VALUES (2, -9223372036854775808, -32768, 2147483647, 1.5, 0.1, true, -0.01,
    0.1234567890123456789, '2024-02-29', '23:59:59.123456', '12:34:56.789', '08:00:00.5+00',
    '2024-02-29 23:59:59.123456', '2024-02-29 23:59:59.123', '2024-02-29 23:59:59.123456+02',
    '1 year 2 days 03:04:05.000006', '0190d5b0-0000-7000-8000-000000000001', '{"a": [1, 2.50]}', '{"b":1.50}',
    '\\x00ff10', B'100000001', '1', 'so-so', '192.168.0.1', '(1.5,-2)', '[1,5)', '{a,NULL,"b,c"}', '{1,2,NULL}',
    '{1.50,NULL}', '{2024-02-29}', '{2024-02-29 23:59:59.123456+00}', '{0190d5b0-0000-7000-8000-000000000001}',
    'a=>1, b=>NULL', 'changed', 'ab', '08:00:2b:01:02:03');
    INSERT INTO source (id) VALUES (3);
    INSERT INTO source (id, day, ts, ts3, tstz) VALUES (4, '1960-01-01', '1960-01-01 00:00:00.000001',
    '1960-01-01 00:00:00.001', '1960-01-01 00:00:00.000001+00')
"""
TYPES: dict[str, Any] = {
    "day": "io.debezium.time.Date",
    "t": "io.debezium.time.MicroTime",
    "t3": "io.debezium.time.Time",
    "ts": "io.debezium.time.MicroTimestamp",
    "ts3": "io.debezium.time.Timestamp",
    "j": "io.debezium.data.Json",
    "js": "io.debezium.data.Json",
    "h": "io.debezium.data.Json",
    "bin": {"type": "bytes"},
    "bits": {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "9"}},
    "pt": "io.debezium.data.geometry.Point",
    "days": {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}},
}
DECIMALS = {
    "amount": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    "anynum": "io.debezium.data.VariableScaleDecimal",
    "amounts": {
        "type": "array",
        "items": {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    },
}
# By the connector's settings: the codec, and the columns whose values these settings do not send exactly.
REGISTRY = SchemaRegistryClient.new_client({"url": "mock://"})
IN_JSON: Any = None
SETTINGS: list[tuple[str, Any, Debezium, set[str]]] = [
    ("schema", IN_JSON, Debezium(), {"iv"}),
    ("schema", golden_avro, Debezium(registry=lambda: REGISTRY), {"iv"}),
    ("schema", golden_json_schema, Debezium(registry=lambda: REGISTRY), {"iv"}),
    ("flattened", golden_avro, Debezium(registry=lambda: REGISTRY, flattened=True), {"iv"}),
    ("string_connect", IN_JSON, Debezium(), {"t", "ts"}),  # to the millisecond
    ("double_schemaless", IN_JSON, Debezium(types=TYPES), {"iv", "amount", "anynum", "amounts"}),
    ("flattened", IN_JSON, Debezium(flattened=True), {"iv"}),
    ("flattened_schemaless", IN_JSON, Debezium(flattened=True, types=TYPES | DECIMALS), {"iv"}),
    ("isostring", IN_JSON, Debezium(), {"iv", "bin"}),
]


@pytest.fixture
def sink_tables_with_hstore(idle_databases: Callable[[], AbstractContextManager[str]]) -> Iterator[SinkTables]:
    """Tables in another database: if one has ``hstore``, SQLAlchemy gives psycopg another dumper for a dict."""
    with idle_databases() as url:
        engine = create_engine(url)
        schema.upgrade(engine, schema="seekpoint")
        create_extension(engine, "hstore")
        yield SinkTables(engine, "seekpoint")
        engine.dispose()


@pytest.mark.usefixtures("_each_strategy")
@pytest.mark.parametrize(
    "setting", SETTINGS, ids=[f"{name} {getattr(written_by, '__name__', 'json')}" for name, written_by, *_ in SETTINGS]
)
def test_rows_are_those_of_the_source(
    sink_tables_with_hstore: SinkTables, group: str, setting: tuple[str, Any, Debezium, set[str]]
) -> None:
    settings, written_by, codec, inexact = setting
    sink_tables = sink_tables_with_hstore
    sink_tables.sql("CREATE TYPE mood AS ENUM ('good', 'so-so')")
    sink_tables.sql(f"SET LOCAL search_path = \"{sink_tables.schema}\", public; CREATE TABLE t ({EVERYTHING});"
               f"CREATE TABLE source ({EVERYTHING}); {AT_THE_SOURCE}")  # fmt: skip
    columns = [name for name in COLUMNS if name not in inexact]
    sink = Upsert((sink_tables.schema, "t"), key=["id"], columns=columns, changes=True)
    pipeline = Pipeline(group, topics=TOPIC, value=codec, key=codec, sinks=[sink], on_poison="dead_letter")
    if codec.registry is None:
        records = golden(settings, TOPIC, source="dbz.shop.everything")
    else:
        records = written_by(settings, TOPIC, source="dbz.shop.everything", client=REGISTRY)
    done = sink_tables.process(pipeline, *records[:5])
    assert done.dead_letters == ()
    texts = {"ttz": "(ttz AT TIME ZONE 'UTC')::text", "anynum": "trim_scale(anynum)::text"}
    listed = ", ".join(texts.get(name, f"{name}::text") for name in columns)
    with sink_tables.engine.connect() as tx:
        compared = f'SELECT {listed} FROM "{sink_tables.schema}".%s WHERE id > 1 ORDER BY id'
        rows, expected = (tx.exec_driver_sql(compared % name).all() for name in ("t", "source"))
    assert rows == expected
    done = sink_tables.process(pipeline, *records[5:])
    assert done.dead_letters == ()
    assert sink_tables.rows("id") == [(1,)], "what was deleted, and the row of the changed key, too"


def test_a_value_that_postgres_did_not_log_is_kept(sink_tables: SinkTables, group: str) -> None:
    """The body is in TOAST, and the update has not changed it."""
    sink = Upsert(
        sink_tables.create("id int PRIMARY KEY, name text, body text NOT NULL"),
        key=["id"],
        columns=["id", "name", "body"],
        changes=True,
    )
    pipeline = Pipeline(group, topics=TOPIC, value=Debezium(), key=Debezium(), sinks=[sink])
    records = golden("schema", TOPIC, source="dbz.shop.toasted")
    sink_tables.process(pipeline, *records[:2])
    assert sink_tables.rows("id", "name") == [(1, "uno")]
    assert sink_tables.value("length(body)") == 300 * 32
    sink_tables.process(pipeline, *records[2:])
    assert sink_tables.rows("id") == []
