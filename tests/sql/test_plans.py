"""How the server runs what is run per batch and per claim: by the primary key, however many rows the ledger has."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, Row, create_engine, text
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.ledger import Expected, Ledger, Move
from seekpoint.ledger.dead_letters import statements as deadletters
from seekpoint.ledger.sql import worker as statements
from seekpoint.records import Partition

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
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT CASE WHEN n < :ours THEN 'g' ELSE 'other ' || n % 9 END, 't', n, gen_random_uuid(), 0, 0,
           gen_random_uuid(), 1
    FROM generate_series(0, :rows - 1) n ORDER BY random()"""


@dataclass(frozen=True)
class Crowd:
    """A ledger of 10,000 rows in which the group ``g`` has ``ours`` of them."""

    engine: Engine
    schema: str


@pytest.fixture(
    scope="module",
    params=[(ROWS, True), (ROWS, False), (1_000, True), (1_000, False)],
    ids=["one group, analyzed", "one group, never analyzed", "ten groups, analyzed", "ten groups, never analyzed"],
)
def crowd(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[Crowd]:
    """Rows in random order, with the planner's statistics or none, and no autovacuum to change that."""
    ours, analyzed = request.param
    name = f"plans_{secrets.token_hex(6)}"
    engine = create_engine(seekpoint_dsn)
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {name}.partition_offset SET (autovacuum_enabled = off)"))
        tx.execute(text(f"INSERT INTO {name}.consumer_group (name) SELECT 'other ' || n FROM generate_series(0, 8) n"))
        tx.execute(text(f"INSERT INTO {name}.consumer_group (name, cluster_id) VALUES ('g', 'c')"))
        tx.execute(text(FILL.format(schema=name)), {"ours": ours, "rows": ROWS})
        if analyzed:
            tx.execute(text(f"ANALYZE {name}.partition_offset"))
    yield Crowd(engine, name)
    with engine.begin() as tx:
        tx.execute(DropSchema(name, cascade=True))
    engine.dispose()


def ours(tx: Connection, crowd: Crowd, count: int) -> list[Row[Any]]:
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


def plan_nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from plan_nodes(inner)


def scans(plan: Mapping[str, Any]) -> list[str]:
    """How the plan finds rows of the ledger."""
    found = [node for node in plan_nodes(plan["Plan"]) if node.get("Relation Name") == "partition_offset"]
    return [node["Node Type"] for node in found if node["Node Type"] != "ModifyTable"]


def by_key_alone(found: list[str], name: str) -> bool:
    # CLAIM finds its row through ON CONFLICT's own index lookup, which is no node of the plan.
    return (found == []) if name == "CLAIM" else set(found) <= {"Index Scan", "Index Only Scan"} and found != []


def skip_unless_known(name: str, engine: Engine) -> None:
    with engine.connect() as connection:
        server = connection.dialect.server_version_info or (0,)
    if name == "HOLD_17" and server < (17,):
        pytest.skip("transaction_timeout came with Postgres 17")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_found_by_the_primary_key(crowd: Crowd, name: str, count: int) -> None:
    """I2, I3: the fence costs a lookup per partition, for 6 of 10,000 rows and for 1,000 of them."""
    skip_unless_known(name, crowd.engine)
    with crowd.engine.connect() as tx:
        compiled = STATEMENTS[name].compile(dialect=tx.dialect)
        given = compiled.construct_params(
            {k: v for k, v in parameters(ours(tx, crowd, count)).items() if k in compiled.binds}
        )
        query = str(compiled).replace("seekpoint.", f"{crowd.schema}.")
        plan = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", given).scalar_one()[0]
        tx.rollback()
    assert by_key_alone(scans(plan), name), plan


@pytest.mark.parametrize("name", NAMES)
def test_the_prepared_statement_is_planned_the_same(crowd: Crowd, name: str) -> None:
    """I2, I3: psycopg prepares what is repeated; the plan that no longer sees the values is by the key as well."""
    skip_unless_known(name, crowd.engine)
    dialect = psycopg.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    query = str(STATEMENTS[name].compile(dialect=dialect)).replace("seekpoint.", f"{crowd.schema}.")
    with crowd.engine.connect() as tx:
        if (tx.dialect.server_version_info or (0,)) < (16,):
            pytest.skip("EXPLAIN (GENERIC_PLAN) came with Postgres 16")
        plan = tx.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {query}").scalar_one()[0]
    assert by_key_alone(scans(plan), name), plan


def sequential_scans(engine: Engine, name: str) -> int:
    query = "SELECT seq_scan FROM pg_stat_user_tables WHERE schemaname = :s AND relname = 'partition_offset'"
    with engine.connect() as tx:
        tx.execute(text("SELECT pg_stat_force_next_flush()"))
        tx.commit()
        return int(tx.execute(text(query), {"s": name}).scalar_one())


def test_a_thousand_partitions_are_worked_without_reading_the_table(crowd: Crowd) -> None:
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
    before = sequential_scans(crowd.engine, crowd.schema)
    granted = ledger.claim(partitions, {"t": topic_id}, cluster_id="c", start=lambda _: {}).granted
    claims = [granted[p] for p in partitions]
    with crowd.engine.connect() as connection:
        for _ in range(12):  # psycopg prepares after 5, the server drops the values after 5 more
            with connection.begin():
                transaction = ledger.hold(connection, [Expected(c, c.next_offset) for c in claims])
                moves = [Move(c, c.next_offset, c.next_offset + 1) for c in claims]
                claims = ledger.advance(connection, moves, transaction)
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.commit()
    assert len(ledger.positions_of(partitions)) == len(ledger.positions_of(partitions, locked=False)) == 1_000
    ledger.release(claims)
    assert sequential_scans(crowd.engine, crowd.schema) == before
    assert {p.owner for p in ledger.positions_of(partitions).values()} == {None}
