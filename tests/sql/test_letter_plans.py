"""How the server finds dead letters: per batch and per redrive by an index, however many of them there are."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.schema import DropSchema

from seekpoint import schema
from seekpoint.ledger import Ledger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.dead_letters import statements as deadletters
from seekpoint.ledger.sql import admin as administration
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State

LETTERS = 10_000
PARTITIONS = 100
TOPIC = UUID(int=1)
FILL = """
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT 'g', 't', n, :topic_id, 0, 1000, gen_random_uuid(), 1 FROM generate_series(0, 99) n;
    INSERT INTO {schema}.dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, key, value, header_names, header_values, state,
       cause, error, traceback, attempts, version)
    SELECT 'g', 't', :topic_id, n % 100, n / 100, convert_to('key ' || n % 700, 'UTF8'),
           convert_to(repeat('v', 200), 'UTF8'), '{{}}', '{{}}',
           (ARRAY['dead_lettered', 'blocked', 'replayed', 'skipped', 'discarded', 'replayed'])[n / 7 % 6 + 1],
           'handler', 'ValueError', repeat('t', 500), 1, 1
    FROM generate_series(0, 9999) n ORDER BY random()"""

# What runs per batch, redrive and move, and with what. (COUNT_OPEN and LIST_LETTERS are for people: what they ask for
# may be most of the table.)
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "OPEN_KEYS": {"asked_topic": ["t"] * 6, "asked_partition": [3, 9, 27, 50, 77, 99]},
    "FIRST_OF_KEY": {"topic_id": TOPIC, "partition": 7, "key": b"key 7"},
    "GET_DEAD_LETTER": {"id": 77},
    "LOCK_DEAD_LETTER": {"id": 77},
    "FIND_DEAD_LETTER": {"id": 77},
    "CLOSE_DEAD_LETTER": {"closing": 77, "to_state": "replayed", "actor": "a", "reason": "r", "replayed": True},
    "FAILED_AGAIN": {"failing": 77, "its_error": "e", "its_traceback": None},
    "SUPERSEDE": {"at_topic_id": TOPIC, "at_partition": 7, "to_offset": 90, "actor": "a", "reason": "r"},
}
STATEMENTS = {**vars(administration), **vars(deadletters)}


@dataclass(frozen=True)
class Pile:
    """A ledger with 10,000 dead letters in 100 partitions, a third of them open."""

    engine: Engine
    schema: str


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def pile(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[Pile]:
    name = f"letters_{secrets.token_hex(6)}"
    engine = create_engine(seekpoint_dsn)
    schema.upgrade(engine, schema=name)
    with engine.begin() as tx:
        for table in ("dead_letter", "partition_offset"):
            tx.execute(text(f"ALTER TABLE {name}.{table} SET (autovacuum_enabled = off)"))
        tx.execute(text(f"INSERT INTO {name}.consumer_group (name, cluster_id) VALUES ('g', 'c')"))
        for statement in FILL.format(schema=name).split(";"):
            tx.execute(text(statement), {"topic_id": TOPIC})
        if request.param:
            tx.execute(text(f"ANALYZE {name}.dead_letter, {name}.partition_offset"))
    yield Pile(engine, name)
    with engine.begin() as tx:
        tx.execute(DropSchema(name, cascade=True))
    engine.dispose()


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def scans_of_letters(plan: Mapping[str, Any]) -> set[str]:
    found = [node for node in nodes(plan["Plan"]) if node.get("Relation Name") == "dead_letter"]
    return {node["Node Type"] for node in found} - {"ModifyTable"}


BY_INDEX = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}


@pytest.mark.parametrize("name", GIVEN)
def test_letters_are_found_by_an_index(pile: Pile, name: str) -> None:
    """I1, I4: what a batch or a redrive asks costs what it answers, not what lies there."""
    with pile.engine.connect() as tx:
        compiled = STATEMENTS[name].compile(dialect=tx.dialect)
        given = compiled.construct_params({"group": "g", **GIVEN[name]})
        query = str(compiled).replace("seekpoint.", f"{pile.schema}.")
        plan = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", given).scalar_one()[0]
        tx.rollback()
    found = scans_of_letters(plan)
    assert found, plan
    assert found <= BY_INDEX, plan


def test_the_first_of_a_key_is_found_by_the_key(pile: Pile) -> None:
    """I4: to redrive many letters of one partition costs as many lookups, not the square of them (once analyzed)."""
    with pile.engine.connect() as tx:
        tx.execute(text(f"ANALYZE {pile.schema}.dead_letter"))
        compiled = deadletters.FIRST_OF_KEY.compile(dialect=tx.dialect)
        given = compiled.construct_params({"group": "g", **GIVEN["FIRST_OF_KEY"]})
        query = str(compiled).replace("seekpoint.", f"{pile.schema}.")
        plan = tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", given).scalar_one()[0]
        tx.rollback()
    assert {node["Index Name"] for node in nodes(plan["Plan"]) if "Index Name" in node} == {"dead_letter_key_idx"}


@pytest.mark.parametrize("name", GIVEN)
def test_the_prepared_statement_is_planned_the_same(pile: Pile, name: str) -> None:
    """I1, I4: psycopg prepares what is repeated; the partial indexes fit without the values, too."""
    dialect = psycopg.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    query = str(STATEMENTS[name].compile(dialect=dialect)).replace("seekpoint.", f"{pile.schema}.")
    with pile.engine.connect() as tx:
        if (tx.dialect.server_version_info or (0,)) < (16,):
            pytest.skip("EXPLAIN (GENERIC_PLAN) came with Postgres 16")
        plan = tx.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {query}").scalar_one()[0]
    found = scans_of_letters(plan)
    assert found, plan
    assert found <= BY_INDEX, plan


def sequential_scans(pile: Pile) -> int:
    query = "SELECT seq_scan FROM pg_stat_user_tables WHERE schemaname = :s AND relname = 'dead_letter'"
    with pile.engine.connect() as tx:
        tx.execute(text("SELECT pg_stat_force_next_flush()"))
        tx.commit()
        return int(tx.execute(text(query), {"s": pile.schema}).scalar_one())


def test_batches_that_ask_for_keys_and_park_do_not_read_the_table(pile: Pile) -> None:
    """I1: what the server itself counts, over many batches of 100 partitions."""
    letters = DeadLetters(Ledger(pile.engine, "g", schema=pile.schema))
    partitions = [Partition("t", n) for n in range(PARTITIONS)]
    failure = Failure(Cause.POISON, "Poison: a test")
    before = sequential_scans(pile)
    with pile.engine.connect() as tx:
        for batch in range(12):  # psycopg prepares after 5, the server drops the values after 5 more
            keys = letters.open_keys(tx, partitions)
            assert len(keys) > PARTITIONS
            offset = 10_000 + batch
            asides = [
                NewDeadLetter(RawRecord("t", n, offset, None, b"k", b"v"), failure, State.DEAD_LETTERED)
                for n in range(PARTITIONS)
            ]
            letters.insert(tx, asides, {"t": TOPIC}, 1)
        tx.rollback()
        tx.execute(text("SELECT pg_stat_force_next_flush()"))
        tx.commit()
    assert sequential_scans(pile) == before


ONE_KEY = """
    INSERT INTO {schema}.dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, key, value, header_names, header_values, state,
       cause, error, traceback, attempts, version)
    SELECT 'g', 'blocked', :topic_id, 0, n, convert_to(CASE WHEN n % 4000 = 7 THEN 'rare ' || n ELSE 'k' END, 'UTF8'),
           'v', '{{}}', '{{}}', CASE WHEN n = 0 THEN 'dead_lettered' ELSE 'blocked' END, 'blocked', 'Held', NULL, 0, 1
    FROM generate_series(0, 9999) n"""


@pytest.fixture
def crowded(pile: Pile) -> Iterator[tuple[Pile, Connection]]:
    """10,000 open letters of one key, and three of others; as many of an earlier topic. Rolled back."""
    with pile.engine.connect() as tx:
        tx.execute(
            text(
                f"INSERT INTO {pile.schema}.partition_offset"
                " (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)"
                " VALUES ('g', 'blocked', 0, :topic_id, 0, 10000, gen_random_uuid(), 1)"
            ),
            {"topic_id": UUID(int=2)},
        )
        for life in (2, 3):
            tx.execute(text(ONE_KEY.format(schema=pile.schema)), {"topic_id": UUID(int=life)})
        yield pile, tx
        tx.rollback()


@pytest.mark.parametrize("analyzed", [True, False], ids=["statistics of now", "statistics of before"])
def test_a_key_is_read_once_however_many_letters_it_has(crowded: tuple[Pile, Connection], analyzed: bool) -> None:
    """I4: what each transaction of a pipeline with keep_key_order asks costs the keys that are held, not the
    letters.
    """
    pile, tx = crowded
    if analyzed:
        tx.execute(text(f"ANALYZE {pile.schema}.dead_letter"))
    compiled = deadletters.OPEN_KEYS.compile(dialect=tx.dialect)
    given = compiled.construct_params({"group": "g", "asked_topic": ["blocked"], "asked_partition": [0]})
    query = str(compiled).replace("seekpoint.", f"{pile.schema}.")
    plan = tx.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", given).scalar_one()[0]
    assert touched(plan) == 5, plan  # the last one is of somebody else
    letters = DeadLetters(Ledger(pile.engine, "g", schema=pile.schema))
    here = Partition("blocked", 0)
    assert letters.open_keys(tx, [here]) == {(here, b"k"): 0} | {
        (here, f"rare {n}".encode()): n for n in (7, 4007, 8007)
    }


def touched(plan: Mapping[str, Any]) -> int:
    """Rows of dead letters that were looked at, those that did not fit counted."""
    found = [node for node in nodes(plan["Plan"]) if node.get("Relation Name") == "dead_letter"]
    assert found, plan
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in found
    )
