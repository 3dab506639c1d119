"""How the server finds dead letters: per batch and per redrive by an index, however many of them there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from seekpoint.ledger import Ledger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.sql import admin as administration
from seekpoint.ledger.sql import dead_letters as deadletters
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from support.plans import (
    Filled,
    Plan,
    filled_ledger,
    flush_counts,
    plan_of,
    prepared_plan,
    rows_read,
    scans,
    sequential_scans,
)

PARTITIONS = 100
TOPIC = UUID(int=1)
FILL = """
    INSERT INTO {schema}.consumer_group (name, cluster_id) VALUES ('g', 'c');
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


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def pile(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[Filled]:
    """A ledger with 10,000 dead letters in 100 partitions, a third of them open."""
    tables = ("dead_letter", "partition_offset")
    with filled_ledger(seekpoint_dsn, tables, FILL, request.param, topic_id=TOPIC) as filled:
        yield filled


def assert_found_by_an_index(plan: Plan) -> None:
    found = {node["Node Type"] for node in scans(plan, "dead_letter")}
    assert found, plan
    assert found <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, plan


@pytest.mark.parametrize("name", GIVEN)
def test_letters_are_found_by_an_index(pile: Filled, name: str) -> None:
    """I1, I4: what a batch or a redrive asks costs what it answers, not what lies there."""
    with pile.engine.connect() as tx:
        plan = plan_of(tx, pile.schema, STATEMENTS[name], {"group": "g", **GIVEN[name]})
        tx.rollback()
    assert_found_by_an_index(plan)


def test_the_first_of_a_key_is_found_by_the_key(pile: Filled) -> None:
    """I4: to redrive many letters of one partition costs as many lookups, not the square of them (once analyzed)."""
    with pile.engine.connect() as tx:
        tx.execute(text(f"ANALYZE {pile.schema}.dead_letter"))
        given = {"group": "g", **GIVEN["FIRST_OF_KEY"]}
        plan = plan_of(tx, pile.schema, deadletters.FIRST_OF_KEY, given, how="FORMAT JSON")
        tx.rollback()
    assert {node["Index Name"] for node in scans(plan, "dead_letter")} == {"dead_letter_key_idx"}


@pytest.mark.parametrize("name", GIVEN)
def test_the_prepared_statement_is_planned_the_same(pile: Filled, name: str) -> None:
    """I1, I4: psycopg prepares what is repeated; the partial indexes fit without the values, too."""
    with pile.engine.connect() as tx:
        assert_found_by_an_index(prepared_plan(tx, pile.schema, STATEMENTS[name]))


def test_batches_that_ask_for_keys_and_park_do_not_read_the_table(pile: Filled) -> None:
    """I1: what the server itself counts, over many batches of 100 partitions."""
    letters = DeadLetters(Ledger(pile.engine, "g", schema=pile.schema))
    partitions = [Partition("t", n) for n in range(PARTITIONS)]
    failure = Failure(Cause.POISON, "Poison: a test")
    before = sequential_scans(pile.engine, pile.schema, "dead_letter")
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
        flush_counts(tx)
    assert sequential_scans(pile.engine, pile.schema, "dead_letter") == before


ONE_KEY = """
    INSERT INTO {schema}.dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, key, value, header_names, header_values, state,
       cause, error, traceback, attempts, version)
    SELECT 'g', 'blocked', :topic_id, 0, n, convert_to(CASE WHEN n % 4000 = 7 THEN 'rare ' || n ELSE 'k' END, 'UTF8'),
           'v', '{{}}', '{{}}', CASE WHEN n = 0 THEN 'dead_lettered' ELSE 'blocked' END, 'blocked', 'Held', NULL, 0, 1
    FROM generate_series(0, 9999) n"""


@pytest.fixture
def crowded(pile: Filled) -> Iterator[tuple[Filled, Connection]]:
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
def test_a_key_is_read_once_however_many_letters_it_has(crowded: tuple[Filled, Connection], analyzed: bool) -> None:
    """I4: what each transaction of a pipeline with keep_key_order asks costs the keys that are held, not the
    letters.
    """
    pile, tx = crowded
    if analyzed:
        tx.execute(text(f"ANALYZE {pile.schema}.dead_letter"))
    given = {"group": "g", "asked_topic": ["blocked"], "asked_partition": [0]}
    plan = plan_of(tx, pile.schema, deadletters.OPEN_KEYS, given, how="ANALYZE, BUFFERS, FORMAT JSON")
    assert rows_read(plan, "dead_letter") == 5, plan  # the last one is of another partition
    letters = DeadLetters(Ledger(pile.engine, "g", schema=pile.schema))
    here = Partition("blocked", 0)
    assert letters.open_keys(tx, [here]) == {(here, b"k"): 0} | {
        (here, f"rare {n}".encode()): n for n in (7, 4007, 8007)
    }
