"""Types of a table's columns are remembered only while no other session can change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from seekpoint.sinks.column_types import types_locked
from support.sink_tables import Ground


@pytest.fixture
def ground(seekpoint_engine: Engine, seekpoint_schema: str) -> Ground:
    return Ground(seekpoint_engine, seekpoint_schema)


@pytest.fixture
def driver(ground: Ground) -> Iterator[psycopg.Connection[Any]]:
    """A session with an open transaction."""
    with ground.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        connection.exec_driver_sql("SELECT 1")
        yield driver


def test_no_session_alters_the_table_until_the_transaction_ends(ground: Ground, driver: Any) -> None:
    path = ground.create("v text")
    locked: dict[Any, Any] = {}
    assert types_locked(driver, path, locked).columns["v"].named == "text"
    with pytest.raises(OperationalError, match="lock timeout"):
        ground.sql("SET LOCAL lock_timeout = '50ms'; ALTER TABLE t ALTER v TYPE jsonb USING to_jsonb(v)")
    assert list(locked) == [path]


def test_a_name_without_a_schema_may_become_another_table(ground: Ground, driver: Any) -> None:
    other = f"{ground.schema}_first"
    ground.create("v text")
    ground.sql(f'CREATE SCHEMA "{other}"')
    try:
        driver.execute(f'SET LOCAL search_path = "{other}", "{ground.schema}"')
        locked: dict[Any, Any] = {}
        assert types_locked(driver, ["t"], locked).columns["v"].named == "text"
        ground.sql(f'CREATE TABLE "{other}".t (v jsonb)')
        assert types_locked(driver, ["t"], locked).columns["v"].named == "jsonb"
    finally:
        driver.rollback()
        ground.sql(f'DROP SCHEMA "{other}" CASCADE')


def test_a_view_is_not_locked_and_is_asked_again(ground: Ground, driver: Any) -> None:
    ground.create("v text", "base")
    ground.sql("CREATE VIEW t AS SELECT * FROM base")
    locked: dict[Any, Any] = {}
    assert types_locked(driver, (ground.schema, "t"), locked).columns["v"].named == "text"
    ground.sql("DROP VIEW t; CREATE VIEW t AS SELECT to_jsonb(v) AS v FROM base")
    assert types_locked(driver, (ground.schema, "t"), locked).columns["v"].named == "jsonb"
