"""How the server finds what became of a record: by an index, however much was done to the group before."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.ledger import wait

FILL = """
    INSERT INTO {schema}.consumer_group (name) VALUES ('g');
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT 'g', 't', n, gen_random_uuid(), 0, 1000, gen_random_uuid(), 1 FROM generate_series(0, 99) n;
    INSERT INTO {schema}.admin_action (consumer_group, action, topic, partition, from_offset, to_offset, actor, reason)
    SELECT 'g', CASE WHEN n % 1000 < 100 THEN 'reset' ELSE 'replay' END, 't', n % 100, 500, 501, 'a', 'r'
    FROM generate_series(0, 9999) n ORDER BY random()"""
MOVES = 10  # of each partition, among 100 actions


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def busy(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[tuple[Connection, str]]:
    """A group to which 10,000 things were done, a tenth of them moves."""
    name = f"actions_{secrets.token_hex(6)}"
    engine = create_engine(seekpoint_dsn)
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {name}.admin_action SET (autovacuum_enabled = off)"))
        tx.execute(text(FILL.format(schema=name)))
        if request.param:
            tx.execute(text(f"ANALYZE {name}.admin_action, {name}.partition_offset"))
    with engine.connect() as connection:
        yield connection, name
    with engine.begin() as tx:
        tx.execute(DropSchema(name, cascade=True))
    engine.dispose()


def scans(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """How the plan finds actions."""
    if plan.get("Relation Name") == "admin_action":
        yield plan
    for inner in plan.get("Plans", []):
        yield from scans(inner)


@pytest.mark.parametrize("offset", [500, 501], ids=["moved over", "read"])
def test_the_moves_of_one_partition_are_looked_at(busy: tuple[Connection, str], offset: int) -> None:
    """I5: whoever waits for a record asks whether somebody moved over it; replays and discards are not in the way."""
    tx, name = busy
    compiled = wait.BECAME.compile(dialect=tx.dialect)
    given = compiled.construct_params({"group": "g", "topic": "t", "partition": 7, "asked_offset": offset})
    query = str(compiled).replace("seekpoint.", f"{name}.")
    plan = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", given).scalar_one()[0]
    tx.rollback()
    (scan,) = scans(plan["Plan"])
    assert scan["Index Name"] == "admin_action_reset_idx", plan
    looked = round((scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"])
    assert looked == (1 if offset == 500 else MOVES), plan


def test_the_prepared_statement_is_planned_the_same(busy: tuple[Connection, str]) -> None:
    """I5: psycopg prepares what is repeated; the partial index fits without the values, too."""
    tx, name = busy
    if (tx.dialect.server_version_info or (0,)) < (16,):
        pytest.skip("EXPLAIN (GENERIC_PLAN) came with Postgres 16")
    dialect = psycopg.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    query = str(wait.BECAME.compile(dialect=dialect)).replace("seekpoint.", f"{name}.")
    plan = tx.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {query}").scalar_one()[0]
    tx.rollback()
    assert [scan["Index Name"] for scan in scans(plan["Plan"])] == ["admin_action_reset_idx"], plan
