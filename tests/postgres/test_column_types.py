"""Types of a table's columns are remembered only while no other session can change them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from seekpoint import Append, Json, Pipeline, Upsert, events
from seekpoint.sinks.session_tables import types_locked
from support.batch_committer import BatchCommitter
from support.sink_tables import TOPIC, SinkTables, orders


@pytest.fixture
def driver(sink_tables: SinkTables) -> Iterator[psycopg.Connection[Any]]:
    """A session with an open transaction."""
    with sink_tables.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        connection.exec_driver_sql("SELECT 1")
        yield driver


def test_no_session_alters_the_table_until_the_transaction_ends(sink_tables: SinkTables, driver: Any) -> None:
    path = sink_tables.create("v text")
    locked: set[tuple[str, ...]] = set()
    assert types_locked(driver, path, locked).columns["v"].named == "text"
    with pytest.raises(OperationalError, match="lock timeout"):
        sink_tables.sql("SET LOCAL lock_timeout = '50ms'; ALTER TABLE t ALTER v TYPE jsonb USING to_jsonb(v)")
    assert list(locked) == [path]


def test_a_name_without_a_schema_may_become_another_table(sink_tables: SinkTables, driver: Any) -> None:
    other = f"{sink_tables.schema}_first"
    sink_tables.create("v text")
    sink_tables.sql(f'CREATE SCHEMA "{other}"')
    try:
        driver.execute(f'SET LOCAL search_path = "{other}", "{sink_tables.schema}"')
        locked: set[tuple[str, ...]] = set()
        assert types_locked(driver, ["t"], locked).columns["v"].named == "text"
        sink_tables.sql(f'CREATE TABLE "{other}".t (v jsonb)')
        assert types_locked(driver, ["t"], locked).columns["v"].named == "jsonb"
    finally:
        driver.rollback()
        sink_tables.sql(f'DROP SCHEMA "{other}" CASCADE')


def test_a_view_is_not_locked_and_is_asked_again(sink_tables: SinkTables, driver: Any) -> None:
    sink_tables.create("v text", "base")
    sink_tables.sql("CREATE VIEW t AS SELECT * FROM base")
    locked: set[tuple[str, ...]] = set()
    assert types_locked(driver, (sink_tables.schema, "t"), locked).columns["v"].named == "text"
    sink_tables.sql("DROP VIEW t; CREATE VIEW t AS SELECT to_jsonb(v) AS v FROM base")
    assert types_locked(driver, (sink_tables.schema, "t"), locked).columns["v"].named == "jsonb"


@pytest.mark.parametrize("kind", [partial(Append), partial(Upsert, key=["id"])])
def test_a_column_that_was_dropped_and_added_again_is_written(sink_tables: SinkTables, kind: Any) -> None:
    """The statements that are known name it, and its declaration is as it was."""
    sink = kind(sink_tables.create("id int PRIMARY KEY, v text, n int"), columns=["id", "v", "n"])
    pipeline = Pipeline("g", topics=TOPIC, value=Json(), sinks=[sink])
    sink_tables.process(pipeline, *orders(b'{"id": 1, "v": "a", "n": 1}'))
    sink_tables.sql("ALTER TABLE t DROP v; ALTER TABLE t ADD v text")
    sink_tables.process(pipeline, *orders(b'{"id": 2, "v": "b", "n": 2}', start=1))
    assert sorted(sink_tables.rows("id", "n")) == [(1, 1), (2, 2)]
    assert sink_tables.value("string_agg(v, ',')") == "b"


class State(Enum):
    IN_TRANSIT = "in-transit"
    DELIVERED = "delivered"


class Shipment(msgspec.Struct):
    id: int
    state: State


@pytest.mark.parametrize("kind", [partial(Append), partial(Upsert, key=["id"])])
@pytest.mark.parametrize("records", [1, 3000])  # the way of small batches, and COPY
def test_labels_that_are_renamed_while_a_worker_runs_are_read_again(
    sink_tables: SinkTables, kind: Any, records: int
) -> None:
    """The column's declaration stays as it was, and the labels of before would be refused."""
    sink_tables.sql("CREATE TYPE state AS ENUM ('IN_TRANSIT', 'DELIVERED')")
    sink = kind(sink_tables.create("id int PRIMARY KEY, state state"))
    pipeline = Pipeline("g", topics=TOPIC, value=Json(Shipment), sinks=[sink])
    for start in (0, records, 2 * records):
        values = [b'{"id": %d, "state": "in-transit"}' % (start + n) for n in range(records)]
        sink_tables.process(pipeline, *orders(*values, start=start))
        if not start:
            sink_tables.sql("ALTER TYPE state RENAME VALUE 'IN_TRANSIT' TO 'in-transit'")
            sink_tables.sql("ALTER TYPE state RENAME VALUE 'DELIVERED' TO 'delivered'")
    assert sink_tables.value("count(*) FILTER (WHERE state = 'in-transit')") == 3 * records


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("key", ["id", "state"])
def test_no_record_is_blamed_after_an_enums_labels_were_renamed(sink_tables: SinkTables, key: str, count: int) -> None:
    """A member is now stored by its name. The column's declaration is as it was."""
    sink_tables.sql("CREATE TYPE state AS ENUM ('in-transit', 'delivered')")
    path = sink_tables.create(f'id int NOT NULL, state "{sink_tables.schema}".state NOT NULL, UNIQUE ({key})')
    sink = Upsert(path, key=[key], columns=["id", "state"])
    pipeline = Pipeline("g", topics=TOPIC, value=Json(Shipment), sinks=[sink], on_poison="dead_letter")
    worker = BatchCommitter(sink_tables.engine, sink_tables.schema, pipeline)
    for number in range(3):
        worker.apply({"id": number, "state": "in-transit"})
    sink_tables.sql("ALTER TYPE state RENAME VALUE 'in-transit' TO 'IN_TRANSIT'")
    sink_tables.sql("ALTER TYPE state RENAME VALUE 'delivered' TO 'DELIVERED'")
    worker.apply(*[{"id": number, "state": "delivered"} for number in range(3, 3 + count)])
    worker.committer.close()
    assert not [event for event in worker.seen if isinstance(event, events.DeadLettered)]
    assert ("DELIVERED",) in sink_tables.rows("state")
