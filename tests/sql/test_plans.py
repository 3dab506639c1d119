"""How the server runs statements of each batch, claim, replay and wait: by an index, however many rows there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Row, text

from seekpoint.ledger import Expected, GroupLedger, Move
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetters, Where
from seekpoint.ledger.sql import DEAD_LETTERS, GROUPS, WAIT, WORKER
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from support.every_row import for_each
from support.plans import (
    FilledLedger,
    Plan,
    filled_ledger,
    flush_counts,
    plan_of,
    prepared_plan,
    rows_fetched,
    rows_read,
    scans,
    sequential_scans,
)

ROWS = 10_000
COUNTS = (6, 1_000)
_OTHER_STATISTICS = pytest.mark.long("other statistics of the same table")
# What batches, claims and waits run.
NAMES = (
    *("hold", "advance", "end_trouble", "lock_wanted", "note_crashes", "claim", "claimed", "settle", "positions"),
    *("release", "cancel_attempts", "lock_claimed", "record_attempts", "record_suspects", "known_topics", "open_keys"),
)
TABLES = ("partition_offset", "partition_trouble")
STATEMENTS = {**DEAD_LETTERS, "supersede": GROUPS["supersede"], **WORKER}
FILL = """
    INSERT INTO {schema}.consumer_group (name) SELECT 'other ' || n FROM generate_series(0, 8) n;
    INSERT INTO {schema}.consumer_group (name, cluster_id) VALUES ('g', 'c');
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT CASE WHEN n < :ours THEN 'g' ELSE 'other ' || n % 9 END, 't', n, gen_random_uuid(), 0, 0,
           gen_random_uuid(), 1
    FROM generate_series(0, :rows - 1) n ORDER BY random();
    INSERT INTO {schema}.partition_trouble (consumer_group, topic, partition, unreleased_claims)
    SELECT consumer_group, topic, partition, 1 FROM {schema}.partition_offset ORDER BY random()"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((ROWS, True), id="one group, analyzed"),
        pytest.param((ROWS, False), id="one group, never analyzed", marks=_OTHER_STATISTICS),
        pytest.param((1_000, True), id="ten groups, analyzed", marks=_OTHER_STATISTICS),
        pytest.param((1_000, False), id="ten groups, never analyzed"),
    ],
)
def large_ledger(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[FilledLedger]:
    """10,000 rows in random order, of which the group ``g`` has ``ours``; analyzed or not, and never by autovacuum."""
    ours, analyzed = request.param
    how = filled_ledger(seekpoint_dsn, TABLES, FILL, analyzed, ours=ours, rows=ROWS)
    with how as filled:
        yield filled


def ours(tx: Connection, large_ledger: FilledLedger, count: int) -> list[Row[Any]]:
    query = f"SELECT partition, token, topic_id FROM {large_ledger.schema}.partition_offset WHERE consumer_group = 'g'"
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
        for alias in ("held", "moving", "passed", "wanted", "asked", "released", "claimed", "noted", "suspected")
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
        "transaction_age": 60000,
    }


def assert_by_key_alone(plan: Plan, name: str) -> None:
    read = [node["Node Type"] for table in TABLES for node in scans(plan, table)]
    assert set(read) <= {"Index Scan", "Index Only Scan"}, plan
    # These find their rows through ON CONFLICT's own index lookup, which is no node of the plan.
    assert (read == []) == (name in {"claim", "record_attempts"}), plan


@for_each([(name, count) for name in NAMES for count in COUNTS])
def test_rows_are_found_by_the_primary_key(case: tuple[str, int], large_ledger: FilledLedger) -> None:
    """I2, I3: the fence costs a lookup per partition, for 6 of 10,000 rows and for 1,000 of them."""
    name, count = case
    with large_ledger.engine.connect() as tx:
        plan = plan_of(tx, large_ledger.schema, STATEMENTS[name], parameters(ours(tx, large_ledger, count)))
        assert_by_key_alone(plan, name)
        tx.rollback()


@for_each(NAMES)
def test_the_prepared_statement_is_planned_the_same(name: str, large_ledger: FilledLedger) -> None:
    """I2, I3: psycopg prepares what is repeated; the plan that no longer sees the values is by the key as well."""
    with large_ledger.engine.connect() as tx:
        assert_by_key_alone(prepared_plan(tx, large_ledger.schema, STATEMENTS[name]), name)


def test_a_thousand_partitions_are_worked_without_reading_the_table(large_ledger: FilledLedger) -> None:
    """I2, I3: what the server itself counts, over everything that a worker does, many times."""
    ledger = GroupLedger(large_ledger.engine, "g", schema=large_ledger.schema)
    with large_ledger.engine.connect() as tx:
        rows = ours(tx, large_ledger, 1_000)
        # Every partition has its own topic id here; one claim is about one topic, with one id.
        topic_id: UUID = rows[0].topic_id
        tx.execute(
            text(f"UPDATE {large_ledger.schema}.partition_offset SET topic_id = :id WHERE consumer_group = 'g'"),
            {"id": topic_id},
        )
        tx.commit()
    partitions = [Partition("t", row.partition) for row in rows]
    before = sequential_scans(large_ledger.engine, large_ledger.schema, "partition_offset")
    granted = ledger.claim(partitions, {"t": topic_id}, cluster_id="c", start=lambda _: {}).granted
    claims = [granted[p] for p in partitions]
    with large_ledger.engine.connect() as connection:
        for _ in range(12):  # psycopg prepares after 5, the server drops the values after 5 more
            with connection.begin():
                transaction = ledger.hold(connection, [Expected(c, c.next_offset) for c in claims])
                moves = [Move(c, c.next_offset, c.next_offset + 1) for c in claims]
                claims = ledger.advance(connection, moves, transaction)
        flush_counts(connection)
    assert len(ledger.positions_of(partitions)) == len(ledger.positions_of(partitions, locked=False)) == 1_000
    ledger.release(claims)
    assert sequential_scans(large_ledger.engine, large_ledger.schema, "partition_offset") == before
    assert {p.owner for p in ledger.positions_of(partitions).values()} == {None}


# -- dead letters ---------------------------------------------------------------------------------------------

TOPIC_ID = UUID(int=1)
PILE = """
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

# The statements of batches, replays and resets, with their values. (count_open and list are for people: what
# they ask for may be most of the table.)
ASKED: Mapping[str, Mapping[str, Any]] = {
    "open_keys": {"asked_topic": ["t"] * 6, "asked_partition": [3, 9, 27, 50, 77, 99]},
    "count_waiting": {"asked_topic": ["t"] * 6, "asked_partition": [3, 9, 27, 50, 77, 99]},
    "waiting": {"asked_topic": ["t"] * 6, "asked_partition": [3, 9, 27, 50, 77, 99], "keeps_order": True, "most": 9},
    "begin_retry": {"id": 77, "is_again": False},
    "block_waiting": {"topic_id": TOPIC_ID, "partition": 7, "key": b"key 7", "from_offset": 3},
    "first_of_key": {"topic_id": TOPIC_ID, "partition": 7, "key": b"key 7"},
    "get": {"id": 77},
    "lock": {"id": 77},
    "find": {"id": 77},
    "close": {"id": 77, "state": "replayed", "actor": "a", "reason": "r", "replayed": True},
    "failed_again": {"id": 77, "error": "e", "traceback": None},
    "supersede": {"topic_id": TOPIC_ID, "partition": 7, "to_offset": 90, "actor": "a", "reason": "r"},
}


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def dead_letter_ledger(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[FilledLedger]:
    """A ledger with 10,000 dead letters in 100 partitions, a third of them open."""
    tables = ("dead_letter", "partition_offset")
    with filled_ledger(seekpoint_dsn, tables, PILE, request.param, topic_id=TOPIC_ID) as filled:
        yield filled


def assert_dead_letters_by_an_index(plan: Plan) -> None:
    kinds = {node["Node Type"] for node in scans(plan, "dead_letter")}
    assert kinds, plan
    assert kinds <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, plan


@for_each(ASKED)
def test_dead_letters_are_found_by_an_index(name: str, dead_letter_ledger: FilledLedger) -> None:
    """I1, I4: the cost of a query of a batch or a replay grows with its result, not with the table."""
    with dead_letter_ledger.engine.connect() as tx:
        plan = plan_of(tx, dead_letter_ledger.schema, STATEMENTS[name], {"group": "g", **ASKED[name]})
        tx.rollback()
    assert_dead_letters_by_an_index(plan)


def test_the_first_of_a_key_is_found_by_the_key(dead_letter_ledger: FilledLedger) -> None:
    """I4: replaying many dead letters of one partition costs as many lookups, not their square (once analyzed)."""
    with dead_letter_ledger.engine.connect() as tx:
        tx.execute(text(f"ANALYZE {dead_letter_ledger.schema}.dead_letter"))
        options = {"group": "g", **ASKED["first_of_key"]}
        plan = plan_of(tx, dead_letter_ledger.schema, DEAD_LETTERS["first_of_key"], options, how="FORMAT JSON")
        tx.rollback()
    assert {node["Index Name"] for node in scans(plan, "dead_letter")} == {"dead_letter_key_idx"}


@for_each(ASKED)
def test_a_prepared_statement_finds_dead_letters_by_an_index_too(name: str, dead_letter_ledger: FilledLedger) -> None:
    """I1, I4: psycopg prepares what is repeated; the partial indexes fit without the values, too."""
    with dead_letter_ledger.engine.connect() as tx:
        assert_dead_letters_by_an_index(prepared_plan(tx, dead_letter_ledger.schema, STATEMENTS[name]))


def test_batches_that_ask_for_keys_and_dead_letter_do_not_read_the_table(dead_letter_ledger: FilledLedger) -> None:
    """I1: what the server itself counts, over many batches of 100 partitions."""
    dead_letters = DeadLetters(GroupLedger(dead_letter_ledger.engine, "g", schema=dead_letter_ledger.schema))
    partitions = [Partition("t", n) for n in range(100)]
    failure = Failure(Cause.POISON, "Poison: a test")
    before = sequential_scans(dead_letter_ledger.engine, dead_letter_ledger.schema, "dead_letter")
    with dead_letter_ledger.engine.connect() as tx:
        for batch in range(12):  # psycopg prepares after 5, the server drops the values after 5 more
            keys = dead_letters.open_keys(tx, partitions)
            assert len(keys) > 100
            offset = 10_000 + batch
            asides = [
                NewDeadLetter(RawRecord("t", n, offset, None, b"k", b"v"), failure, State.DEAD_LETTERED)
                for n in range(100)
            ]
            dead_letters.insert(tx, asides, {"t": TOPIC_ID}, 1)
        tx.rollback()
        flush_counts(tx)
    assert sequential_scans(dead_letter_ledger.engine, dead_letter_ledger.schema, "dead_letter") == before


def test_pages_of_dead_letters_read_only_their_own_rows(dead_letter_ledger: FilledLedger) -> None:
    """Reading all pages costs as many rows as there are, not their square, also once the driver has prepared them."""
    with dead_letter_ledger.engine.connect() as tx:
        tx.execute(text(f"ANALYZE {dead_letter_ledger.schema}.dead_letter"))
        tx.commit()
    dead_letters = DeadLetters(GroupLedger(dead_letter_ledger.engine, "g", schema=dead_letter_ledger.schema))
    before = rows_fetched(dead_letter_ledger.engine, dead_letter_ledger.schema, "dead_letter")
    listed: list[DeadLetter] = []
    page = dead_letters.list(Where(), limit=100)
    while page:
        listed += page
        page = dead_letters.list(Where(), limit=100, after=page[-1])
    fetched = rows_fetched(dead_letter_ledger.engine, dead_letter_ledger.schema, "dead_letter") - before
    assert len({dead_letter.id for dead_letter in listed}) == len(listed) > 3_000
    # The first page may be found by a scan of the table; each page begins with the last row of the one before it.
    assert fetched < 1.1 * len(listed) + 10_000, f"{fetched:,} rows for {len(listed):,} in pages of 100"


ONE_KEY = """
    INSERT INTO {schema}.dead_letter
      (consumer_group, topic, topic_id, partition, record_offset, key, value, header_names, header_values, state,
       cause, error, traceback, attempts, version)
    SELECT 'g', 'blocked', :topic_id, 0, n, convert_to(CASE WHEN n % 4000 = 7 THEN 'rare ' || n ELSE 'k' END, 'UTF8'),
           'v', '{{}}', '{{}}', CASE WHEN n = 0 THEN 'dead_lettered' ELSE 'blocked' END, 'blocked', 'Held', NULL, 0, 1
    FROM generate_series(0, 9999) n"""


@pytest.fixture
def blocked_key_ledger(dead_letter_ledger: FilledLedger) -> Iterator[tuple[FilledLedger, Connection]]:
    """10,000 open dead letters of one key, and three of others; as many of an earlier topic. Rolled back."""
    with dead_letter_ledger.engine.connect() as tx:
        tx.execute(
            text(
                f"INSERT INTO {dead_letter_ledger.schema}.partition_offset"
                " (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)"
                " VALUES ('g', 'blocked', 0, :topic_id, 0, 10000, gen_random_uuid(), 1)"
            ),
            {"topic_id": UUID(int=2)},
        )
        for life in (2, 3):
            tx.execute(text(ONE_KEY.format(schema=dead_letter_ledger.schema)), {"topic_id": UUID(int=life)})
        yield dead_letter_ledger, tx
        tx.rollback()


@pytest.mark.parametrize("analyzed", [True, False], ids=["statistics of now", "statistics of before"])
def test_a_key_is_read_once_however_many_dead_letters_it_has(
    blocked_key_ledger: tuple[FilledLedger, Connection], analyzed: bool
) -> None:
    """I4: what each transaction of a pipeline with keep_key_order asks grows with the blocked keys, not with
    their dead letters.
    """
    dead_letter_ledger, tx = blocked_key_ledger
    if analyzed:
        tx.execute(text(f"ANALYZE {dead_letter_ledger.schema}.dead_letter"))
    options = {"group": "g", "asked_topic": ["blocked"], "asked_partition": [0]}
    plan = plan_of(
        tx, dead_letter_ledger.schema, DEAD_LETTERS["open_keys"], options, how="ANALYZE, BUFFERS, FORMAT JSON"
    )
    assert rows_read(plan, "dead_letter") == 5, plan  # the last one is of another partition
    dead_letters = DeadLetters(GroupLedger(dead_letter_ledger.engine, "g", schema=dead_letter_ledger.schema))
    here = Partition("blocked", 0)
    assert dead_letters.open_keys(tx, [here]) == {(here, b"k"): (0, State.DEAD_LETTERED)} | {
        (here, f"rare {n}".encode()): (n, State.BLOCKED) for n in (7, 4007, 8007)
    }


# -- waiting for a record ---------------------------------------------------------------------------------------

ACTIONS = """
    INSERT INTO {schema}.consumer_group (name) VALUES ('g');
    INSERT INTO {schema}.partition_offset
      (consumer_group, topic, partition, topic_id, first_offset, next_offset, token, epoch)
    SELECT 'g', 't', n, gen_random_uuid(), 0, 1000, gen_random_uuid(), 1 FROM generate_series(0, 99) n;
    INSERT INTO {schema}.admin_action (consumer_group, action, topic, partition, from_offset, to_offset, actor, reason)
    SELECT 'g', CASE WHEN n % 1000 < 100 THEN 'reset' ELSE 'replay' END, 't', n % 100, 500, 501, 'a', 'r'
    FROM generate_series(0, 9999) n ORDER BY random()"""
RESETS = 10  # of each partition, among 100 actions


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def busy_group(request: pytest.FixtureRequest, seekpoint_dsn: str) -> Iterator[tuple[Connection, str]]:
    """A group to which 10,000 things were done, a tenth of them resets."""
    tables = ("admin_action", "partition_offset")
    with filled_ledger(seekpoint_dsn, tables, ACTIONS, request.param) as (engine, name), engine.connect() as connection:
        yield connection, name


@pytest.mark.parametrize("offset", [500, 501], ids=["reset over", "read"])
def test_the_resets_of_one_partition_are_found_by_an_index(busy_group: tuple[Connection, str], offset: int) -> None:
    """I5: a wait for a record asks whether a reset passed it; replays and discards are not in the way."""
    tx, name = busy_group
    options = {"group": "g", "topic": "t", "partition": 7, "asked_offset": offset}
    plan = plan_of(tx, name, WAIT["became"], options)
    tx.rollback()
    (scan,) = scans(plan, "admin_action")
    assert scan["Index Name"] == "admin_action_reset_idx", plan
    assert rows_read(plan, "admin_action") == (1 if offset == 500 else RESETS), plan


def test_a_prepared_statement_finds_the_resets_of_a_partition_too(busy_group: tuple[Connection, str]) -> None:
    """I5: psycopg prepares what is repeated; the partial index fits without the values, too."""
    plan = prepared_plan(busy_group[0], busy_group[1], WAIT["became"])
    busy_group[0].rollback()
    assert [scan["Index Name"] for scan in scans(plan, "admin_action")] == ["admin_action_reset_idx"], plan
