"""How the server runs what is run per batch and per claim: by the primary key, however many rows the ledger has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, Row, text

from seekpoint.ledger import Expected, Ledger, Move
from seekpoint.ledger.sql import dead_letters as deadletters
from seekpoint.ledger.sql import partition_offset as statements
from seekpoint.records import Partition
from support.plans import Filled, Plan, filled_ledger, flush_counts, plan_of, prepared_plan, scans, sequential_scans

ROWS = 10_000
COUNTS = (6, 1_000)
NAMES = (
    "HOLD",
    "HOLD_17",
    "ADVANCE",
    "CLAIM",
    "POSITIONS_LOCKED",
    "POSITIONS",
    "RELEASE",
    "RECORD_ATTEMPTS",
    "RECORD_SUSPECTS",
    "KNOWN_TOPICS",
    "OPEN_KEYS",
)
STATEMENTS = {**vars(statements), "OPEN_KEYS": deadletters.OPEN_KEYS}
FILL = """
    INSERT INTO {schema}.consumer_group (name) SELECT 'other ' || n FROM generate_series(0, 8) n;
    INSERT INTO {schema}.consumer_group (name, cluster_id) VALUES ('g', 'c');
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT CASE WHEN n < :ours THEN 'g' ELSE 'other ' || n % 9 END, 't', n, gen_random_uuid(), 0, 0,
           gen_random_uuid(), 1
    FROM generate_series(0, :rows - 1) n ORDER BY random()"""


@pytest.fixture(
    scope="module",
    params=[(ROWS, True), (ROWS, False), (1_000, True), (1_000, False)],
    ids=["one group, analyzed", "one group, never analyzed", "ten groups, analyzed", "ten groups, never analyzed"],
)
def crowd(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[Filled]:
    """10,000 rows in random order, of which the group ``g`` has ``ours``; analyzed or not, and never by autovacuum."""
    ours, analyzed = request.param
    how = filled_ledger(seekpoint_dsn, ("partition_offset",), FILL, analyzed, ours=ours, rows=ROWS)
    with how as filled:
        yield filled


def ours(tx: Connection, crowd: Filled, count: int) -> list[Row[Any]]:
    query = f"SELECT partition, token, topic_id FROM {crowd.schema}.partition_offset WHERE consumer_group = 'g'"
    return list(tx.execute(text(f"{query} ORDER BY partition LIMIT {count}")))


def parameters(rows: list[Row[Any]]) -> Mapping[str, Any]:
    """What any of the statements may ask for, over these rows."""
    count = len(rows)
    columns: dict[str, list[Any]] = {
        "topic": ["t"] * count,
        "partition": [row.partition for row in rows],
        "token": [row.token for row in rows],
        "topic_id": [row.topic_id for row in rows],
        "from_offset": [0] * count,
        "to_offset": [9] * count,
        "leader_epoch": [None] * count,
        "record_time": [None] * count,
        "offset": [0] * count,
        "number": [1] * count,
        "error": ["ValueError"] * count,
        "wait": [1.0] * count,
        "allowed": [5] * count,
        "policy": ["stop"] * count,
        "end_offset": [99] * count,
        "part_end": [9] * count,
    }
    arrays = {
        f"{alias}_{name}": values
        for alias in ("held", "moving", "wanted", "asked", "released", "noted", "suspected")
        for name, values in columns.items()
    }
    return {
        **arrays,
        "named_topic": ["t"],
        "group": "g",
        "owner": uuid4(),
        "expected": count,
        "transaction": None,
        "age": timedelta(seconds=9),
        "application_name": "seekpoint test",
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "60000ms",
        "transaction_timeout": "60000ms",
    }


def assert_by_key_alone(plan: Plan, name: str) -> None:
    found = [node["Node Type"] for node in scans(plan, "partition_offset")]
    # CLAIM finds its row through ON CONFLICT's own index lookup, which is no node of the plan.
    assert set(found) <= {"Index Scan", "Index Only Scan"}, plan
    assert (found == []) == (name == "CLAIM"), plan


def skip_unless_known(name: str, engine: Engine) -> None:
    with engine.connect() as connection:
        server = connection.dialect.server_version_info or (0,)
    if name == "HOLD_17" and server < (17,):
        pytest.skip("transaction_timeout came with Postgres 17")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_found_by_the_primary_key(crowd: Filled, name: str, count: int) -> None:
    """I2, I3: the fence costs a lookup per partition, for 6 of 10,000 rows and for 1,000 of them."""
    skip_unless_known(name, crowd.engine)
    with crowd.engine.connect() as tx:
        plan = plan_of(tx, crowd.schema, STATEMENTS[name], parameters(ours(tx, crowd, count)))
        tx.rollback()
    assert_by_key_alone(plan, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_prepared_statement_is_planned_the_same(crowd: Filled, name: str) -> None:
    """I2, I3: psycopg prepares what is repeated; the plan that no longer sees the values is by the key as well."""
    skip_unless_known(name, crowd.engine)
    with crowd.engine.connect() as tx:
        assert_by_key_alone(prepared_plan(tx, crowd.schema, STATEMENTS[name]), name)


def test_a_thousand_partitions_are_worked_without_reading_the_table(crowd: Filled) -> None:
    """I2, I3: what the server itself counts, over many rounds of everything that a worker does."""
    ledger = Ledger(crowd.engine, "g", schema=crowd.schema)
    with crowd.engine.connect() as tx:
        rows = ours(tx, crowd, 1_000)
        # Every partition has its own topic id here; one claim is about one topic, with one id.
        topic_id: UUID = rows[0].topic_id
        tx.execute(
            text(f"UPDATE {crowd.schema}.partition_offset SET topic_id = :id WHERE consumer_group = 'g'"),
            {"id": topic_id},
        )
        tx.commit()
    partitions = [Partition("t", row.partition) for row in rows]
    before = sequential_scans(crowd.engine, crowd.schema, "partition_offset")
    granted = ledger.claim(partitions, {"t": topic_id}, cluster_id="c", start=lambda _: {}).granted
    claims = [granted[p] for p in partitions]
    with crowd.engine.connect() as connection:
        for _ in range(12):  # psycopg prepares after 5, the server drops the values after 5 more
            with connection.begin():
                transaction = ledger.hold(connection, [Expected(c, c.next_offset) for c in claims])
                moves = [Move(c, c.next_offset, c.next_offset + 1) for c in claims]
                claims = ledger.advance(connection, moves, transaction)
        flush_counts(connection)
    assert len(ledger.positions_of(partitions)) == len(ledger.positions_of(partitions, locked=False)) == 1_000
    ledger.release(claims)
    assert sequential_scans(crowd.engine, crowd.schema, "partition_offset") == before
    assert {p.owner for p in ledger.positions_of(partitions).values()} == {None}
