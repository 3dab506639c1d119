"""The test kit: records made by hand, and the real unit of work without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection, Engine, create_engine, text

from seekpoint import Append, Batch, Bytes, Json, Pipeline, events
from seekpoint.errors import ConfigError, Fenced, HandlerOutdated, Poison, PoisonStop, SchemaMismatch
from seekpoint.events import Observer
from seekpoint.ledger import GroupLedger
from seekpoint.records import Partition, RawRecord, Span
from seekpoint.testing import Processed, batch, kit, process, raw, record
from seekpoint.testing.pytest_plugin import with_search_path
from support.fixtures import NewEngine
from support.sink_tables import TOPIC, SinkTables, orders
from support.waiting import until


@pytest.fixture
def pipeline(sink_tables: SinkTables, group: str) -> Pipeline:
    sink = sink_tables.append("p int, o bigint", columns=["p", "o"], row=lambda r: (r.partition, r.offset))
    return Pipeline(group, topics=TOPIC, value=Bytes(), sinks=[sink])


# -- made by hand -------------------------------------------------------------------------------------------


def test_raw_and_record_hold_what_they_are_given() -> None:
    time = datetime(2026, 8, 1, 12, 30, 0, 123000, UTC)
    options: dict[str, Any] = {
        "topic": "orders", "partition": 3, "offset": 2**40, "headers": [("h", b"1"), ("h", None)],
        "timestamp": time, "leader_epoch": 4,
    }  # fmt: skip
    assert raw(b"v", key=b"k", **options) == RawRecord(
        "orders", 3, 2**40, 1785587400123, b"k", b"v", (("h", b"1"), ("h", None)), 4
    )
    assert record({"v": 1}, key=5, **options).value == {"v": 1}
    assert record(None, key=5, **options).timestamp == time
    assert raw(None) == RawRecord("topic", 0, 0, None, None, None)


def test_a_naive_timestamp_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give an aware time, e\.g\. datetime\(\.\.\., tzinfo=UTC\)"):
        raw(b"", timestamp=datetime(2026, 8, 1))


def test_a_batch_spans_its_records() -> None:
    some = [record(1, offset=5), record(2, partition=1, offset=7), record(3, offset=9)]
    built = batch(*some)
    assert list(built) == some
    assert built.spans == (Span(Partition("topic", 0), 5, 10), Span(Partition("topic", 1), 7, 8))
    assert batch().spans == ()


# -- the real unit of work ----------------------------------------------------------------------------------


def test_it_says_what_it_did(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    done = sink_tables.process(pipeline, *orders(b"", b"", start=5), *orders(b"", partition=2, start=40))
    assert done == Processed(spans=(Span(Partition(TOPIC, 0), 5, 7), Span(Partition(TOPIC, 2), 40, 41)), records=3)
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 7, Partition(TOPIC, 2): 41}


def test_the_order_of_the_records_is_the_batchs(sink_tables: SinkTables, group: str) -> None:
    seen: list[str] = []
    pipeline = Pipeline(group, topics=[TOPIC, "b"], value=Bytes(), handle=lambda tx, b: seen.extend(r.id for r in b))
    mixed = [raw(b"", topic=t, partition=p, offset=o) for t, p, o in [("b", 1, 0), (TOPIC, 0, 3), ("b", 1, 1)]]
    sink_tables.process(pipeline, *mixed)
    assert seen == ["b/1/0", f"{TOPIC}/0/3", "b/1/1"]


def test_records_that_come_again_are_left_out(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    sink_tables.process(pipeline, *orders(b"", b"", start=5))
    done = sink_tables.process(pipeline, *orders(b"", b"", b"", b"", start=4))
    assert done.spans == (Span(Partition(TOPIC, 0), 7, 8),)
    assert sink_tables.rows("o") == [(5,), (6,), (7,)]
    assert sink_tables.process(pipeline, *orders(b"", start=7)) == Processed()


def test_a_gap_between_offsets_is_compaction(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    sink_tables.process(pipeline, *orders(b"", start=5), *orders(b"", start=90))
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 91}


def test_no_records_are_no_work(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    assert sink_tables.process(pipeline) == Processed()
    assert sink_tables.positions(pipeline) == {}


def test_claims_are_given_back_whatever_happens(sink_tables: SinkTables, pipeline: Pipeline, group: str) -> None:
    def fail(tx: Connection, b: Batch[Any, Any]) -> None:
        raise ZeroDivisionError

    sink_tables.process(pipeline, *orders(b""))
    sink_tables.process(pipeline, *orders(b""))
    with pytest.raises(ZeroDivisionError):
        sink_tables.process(Pipeline(group, topics=TOPIC, value=Bytes(), handle=fail), *orders(b"", start=1))
    (position,) = GroupLedger(sink_tables.engine, group, schema=sink_tables.schema).read()
    assert (position.owner, position.unreleased_claims) == (None, 0), "a test is no crash"
    assert position.epoch == 3


def test_a_record_that_stops_its_partition_is_raised_unless_stops_are_collected(
    sink_tables: SinkTables, group: str
) -> None:
    """A test that does not ask for stops would pass over a poison record."""

    def refuse(tx: Connection, batch: Batch[bytes, bytes | None]) -> None:
        if any(record.value == b"bad" for record in batch):
            raise Poison("no")

    pipeline = Pipeline(group, topics=TOPIC, value=Bytes(), handle=refuse)
    records = orders(b"", b"bad", b"")
    with pytest.raises(PoisonStop, match=rf"{TOPIC}/0 stopped at offset 1: .*no"):
        process(pipeline, sink_tables.engine, records, schema=sink_tables.schema)
    assert sink_tables.positions(pipeline) == {Partition(TOPIC, 0): 1}, "the records before it are applied"
    again = process(pipeline, sink_tables.engine, records, schema=sink_tables.schema, collect=True)
    assert ([*again.stopped], again.records) == ([Partition(TOPIC, 0)], 0)


def test_it_observes_like_a_worker(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    seen: list[events.Event] = []
    sink_tables.process(pipeline, *orders(b""), observe=(seen.append,))
    assert [type(e).__name__ for e in seen] == ["BatchOpened", "Held", "Applied", "Advanced", "Committed"]


@pytest.mark.parametrize("shape", ["text", "url"])
def test_an_engine_of_a_url_is_closed_again(
    sink_tables: SinkTables, pipeline: Pipeline, seekpoint_dsn: str, shape: str
) -> None:
    url = sink_tables.engine.url if shape == "url" else seekpoint_dsn
    named = Pipeline(
        sink_tables.schema, topics=TOPIC, value=Bytes(), sinks=pipeline.sinks
    )  # short enough to be found by
    open_meanwhile: list[int] = []
    counted: Observer = lambda event: open_meanwhile.append(sessions(sink_tables))  # noqa: E731
    assert process(named, url, orders(b""), schema=sink_tables.schema, observe=[counted]).records == 1
    assert max(open_meanwhile) >= 1
    until(lambda: sessions(sink_tables) == 0, "the end of the engine's sessions")


def sessions(sink_tables: SinkTables) -> int:
    """Open sessions of the group that is called like the schema."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'seekpoint % ' || :name")
    with sink_tables.engine.connect() as tx:
        return int(tx.execute(query, {"name": sink_tables.schema}).scalar_one())


# -- what it cannot take ------------------------------------------------------------------------------------


def test_records_of_another_topic_are_refused(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match=r"does not read topic 'topic': make its records with raw\(\.\.\., topic=\)"):
        sink_tables.process(pipeline, raw(b""))
    assert sink_tables.positions(pipeline) == {}


@pytest.mark.parametrize(("offsets", "message"), [([0, 0], "and 0 comes after 0"), ([5, 7, 6], "and 6 comes after 7")])
def test_offsets_rise_or_nothing_is_claimed(
    sink_tables: SinkTables, pipeline: Pipeline, offsets: list[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"the offsets of {TOPIC}/0 must rise from record to record, {message}"):
        sink_tables.process(pipeline, *[raw(b"", topic=TOPIC, offset=o) for o in offsets])
    assert sink_tables.positions(pipeline) == {}, "the corrected call stores the first position"


def test_a_newer_version_of_the_handler_stays_in_its_right(
    sink_tables: SinkTables, pipeline: Pipeline, group: str
) -> None:
    newer = Pipeline(group, topics=TOPIC, value=Bytes(), sinks=pipeline.sinks, version=2)
    sink_tables.process(newer, *orders(b""))
    with pytest.raises(HandlerOutdated, match="is at handler version 2, but this process runs version 1"):
        sink_tables.process(pipeline, *orders(b"", start=1))


def test_a_database_without_the_ledger(seekpoint_dsn: str, group: str, new_engine: NewEngine) -> None:
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), sinks=[Append("t", columns=["id"])])
    with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"):
        process(pipeline, new_engine(seekpoint_dsn), orders(b"1"), schema="no_such_schema")


def test_the_default_schema_without_the_ledger_names_the_fixture(
    sink_tables: SinkTables, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "DEFAULT_SCHEMA", "no_such_schema")
    with pytest.raises(SchemaMismatch, match="in a test, pass schema=seekpoint_schema, the plugin's fixture"):
        process(pipeline, sink_tables.engine, orders(b"1"), schema="no_such_schema")


def test_a_decoded_record_is_refused(sink_tables: SinkTables, pipeline: Pipeline) -> None:
    decoded: Any = record({"id": 1}, topic=TOPIC)
    with pytest.raises(ConfigError, match=r"whose value is a dict: make it with raw\(b'...', topic='orders'\)"):
        sink_tables.process(pipeline, decoded)
    assert sink_tables.positions(pipeline) == {}


def test_a_key_that_cannot_be_decoded_is_named(sink_tables: SinkTables, group: str) -> None:
    sink = sink_tables.append("id int", columns=["id"])
    pipeline = Pipeline(group, topics=TOPIC, value=Json(), key=Json(int), sinks=[sink])
    done = sink_tables.process(
        pipeline,
        raw(b'{"id": 1}', topic=TOPIC, key=b"one"),
        raw(b"one", topic=TOPIC, key=b"1", partition=1),
    )
    of_key, of_value = (str(done.stopped[Partition(TOPIC, number)]) for number in (0, 1))
    assert "it cannot be decoded: DecodeError: JSON is malformed" in of_key
    assert "(byte 0) (in the record's key)" in of_key
    assert "in the record's key" not in of_value


def test_connections_whose_rows_are_no_tuples_are_refused(
    seekpoint_dsn: str, pipeline: Pipeline, new_engine: NewEngine
) -> None:
    engine = new_engine(seekpoint_dsn, connect_args={"row_factory": dict_row})
    with pytest.raises(ConfigError, match="need tuples; create the engine without row_factory= in connect_args"):
        process(pipeline, engine, orders(b"1"))


@pytest.mark.long
def test_a_partition_that_another_session_writes_is_not_awaited_for_ever(
    sink_tables: SinkTables, pipeline: Pipeline
) -> None:
    sink_tables.process(pipeline, *orders(b""), *orders(b"", partition=1))
    with sink_tables.engine.begin() as tx:
        tx.execute(text(f'SELECT 1 FROM "{sink_tables.schema}".partition_offset WHERE partition = 1 FOR UPDATE'))
        with pytest.raises(Fenced, match=f"{TOPIC}/1: another transaction is writing there"):
            sink_tables.process(pipeline, *orders(b"", start=1), *orders(b"", partition=1, start=1))
    assert sink_tables.rows("p", "o") == [(0, 0), (1, 0)]
    sink_tables.process(pipeline, *orders(b"", start=1), *orders(b"", partition=1, start=1))
    assert sink_tables.rows("p", "o") == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_tables_without_a_schema_are_of_the_test(
    seekpoint_url: str, seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    engine = create_engine(seekpoint_url)
    with engine.begin() as tx:
        tx.exec_driver_sql("CREATE TABLE orders (o bigint)")
    engine.dispose()
    with seekpoint_engine.connect() as tx:
        assert tx.scalar(text(f"SELECT to_regclass('{seekpoint_schema}.orders') IS NOT NULL"))


def test_the_options_of_a_given_server_stay(seekpoint_engine: Engine) -> None:
    url = seekpoint_engine.url.update_query_dict({"options": "-c statement_timeout=5000"})
    engine = create_engine(with_search_path(url, "orders"))
    with engine.connect() as tx:
        assert tx.scalar(text("SHOW statement_timeout")) == "5s"
        assert tx.scalar(text("SHOW search_path")) == "orders,public"
    engine.dispose()
