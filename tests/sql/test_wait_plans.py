"""How the server finds what became of a record: by an index, however much was done to the group before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from seekpoint.ledger import wait
from support.plans import filled_ledger, plan_of, prepared_plan, rows_read, scans

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
    tables = ("admin_action", "partition_offset")
    with filled_ledger(seekpoint_dsn, tables, FILL, request.param) as (engine, name), engine.connect() as connection:
        yield connection, name


@pytest.mark.parametrize("offset", [500, 501], ids=["moved over", "read"])
def test_the_moves_of_one_partition_are_looked_at(busy: tuple[Connection, str], offset: int) -> None:
    """I5: whoever waits for a record asks whether somebody moved over it; replays and discards are not in the way."""
    tx, name = busy
    given = {"group": "g", "topic": "t", "partition": 7, "asked_offset": offset}
    plan = plan_of(tx, name, wait.BECAME, given)
    tx.rollback()
    (scan,) = scans(plan, "admin_action")
    assert scan["Index Name"] == "admin_action_reset_idx", plan
    assert rows_read(plan, "admin_action") == (1 if offset == 500 else MOVES), plan


def test_the_prepared_statement_is_planned_the_same(busy: tuple[Connection, str]) -> None:
    """I5: psycopg prepares what is repeated; the partial index fits without the values, too."""
    plan = prepared_plan(busy[0], busy[1], wait.BECAME)
    busy[0].rollback()
    assert [scan["Index Name"] for scan in scans(plan, "admin_action")] == ["admin_action_reset_idx"], plan
