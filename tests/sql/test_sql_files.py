"""The ledger's statements in files: the server accepts each, each is used, and what they repeat is what tables say."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.schema import DropSchema

from seekpoint import Bytes, Pipeline, schema
from seekpoint.admin import Admin
from seekpoint.errors import Fenced, NotApplied, OffsetLost
from seekpoint.ledger import Attempt, Expected, GroupLedger, Move, SuspectNote, sql
from seekpoint.ledger.claim import end_abandoned
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.ledger.sql import Query, arrays
from seekpoint.ledger.tables import RELOAD_CLOSED
from seekpoint.postgres.round_trip import positional
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from support.every_row import for_each
from support.round_trips import overheard

FOLDER = Path(sql.__file__).parent
SOURCE = Path(sql.__file__).parents[2]
FILES = {file.stem: sql.load(file.name) for file in FOLDER.glob("*.sql")}
QUERIES = [(stem, query) for stem, queries in FILES.items() for query in queries.values()]


@for_each(QUERIES)
def test_the_server_accepts_each_statement(
    case: tuple[str, Query], seekpoint_engine: Engine, seekpoint_schema: str
) -> None:
    """Its syntax, its tables and columns, and the types of its parameters."""
    with seekpoint_engine.connect() as tx:
        query, names = positional(case[1].in_schema(seekpoint_schema))
        tx.connection.cursor().execute(f"PREPARE of_file AS {query}".encode())
        types = tx.execute(text("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'of_file'"))
        assert len(types.scalar_one()) == len(names)
        tx.connection.cursor().execute(b"DEALLOCATE of_file")


def test_each_statement_is_used_and_each_that_is_used_is_there() -> None:
    used = {
        (match[1], match[2])
        for file in SOURCE.rglob("*.py")
        for match in re.finditer(r'\b([A-Z_]+)\["([a-z_]+)"\]', file.read_text(encoding="utf-8"))
        if match[1].lower() in FILES
    }
    assert used == {(stem.upper(), query.name) for stem, query in QUERIES}


def test_lines_are_as_long_as_those_of_code() -> None:
    lines = [line for file in FOLDER.glob("*.sql") for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if len(line) > 120] == []


def test_a_file_lists_the_states_of_a_closed_run_as_the_tables_do() -> None:
    closed = ", ".join(f"'{state}'" for state in RELOAD_CLOSED)
    lists = [
        (query.name, match[1])
        for _, query in QUERIES
        for match in re.finditer(r"state NOT IN \(([^)]*'cut_over'[^)]*)\)", query.text)
    ]
    assert lists
    assert [name for name, states in lists if states != closed] == []


def test_rows_are_locked_in_an_order_that_does_not_depend_on_the_databases_collation() -> None:
    """Python sorts the partitions of a worker by code points; in another order two transactions could deadlock."""
    orders = [
        (stem, query.name, match[1])
        for stem, query in QUERIES
        for match in re.finditer(r"ORDER BY ([^;()]+?)\s+FOR (?:NO KEY UPDATE|UPDATE|SHARE)", query.text)
    ]
    orders += [
        (stem, query.name, match[1])
        for stem, query in QUERIES
        if "INSERT INTO seekpoint.partition_offset" in query.text
        for match in re.finditer(r"ORDER BY ([^;()]+?)\s*(?:;|ON CONFLICT|$)", query.text)
    ]
    texts = re.compile(r'\b(?:name|consumer_group|topic)\b(?! COLLATE "C")')
    assert len(orders) == 9, orders
    assert [order for order in orders if texts.search(order[2])] == []


def test_two_ledgers_of_one_process_are_in_schemas_whose_names_are_quoted(seekpoint_engine: Engine) -> None:
    names = [f"{name} {secrets.token_hex(6)}" for name in ('two "words" and 100%', "Seekpoint.other")]
    for number, name in enumerate(names):
        schema.upgrade(seekpoint_engine, schema=name)
        with seekpoint_engine.begin() as tx:
            quoted = '"' + name.replace('"', '""') + '"'
            tx.execute(text(f"INSERT INTO {quoted}.consumer_group (name) VALUES ('of {number}')"))
    for number, name in enumerate(names):
        groups, _ = Admin(seekpoint_engine, schema=name).groups()
        assert [group.name for group in groups] == [f"of {number}"]
        with seekpoint_engine.begin() as tx:
            tx.execute(DropSchema(name, cascade=True))


def test_rows_become_an_array_for_each_column() -> None:
    assert arrays([("t", 0), ("u", 1)], "topic", "partition") == {"topic": ["t", "u"], "partition": [0, 1]}
    assert arrays([], "topic", "partition") == {"topic": [], "partition": []}


# -- what runs ----------------------------------------------------------------------------------------------------


def everything_a_ledger_does(ledger: GroupLedger, topic: str, count: int) -> None:
    """Every method once, over ``count`` partitions."""
    partitions = [Partition(topic, n) for n in range(count)]
    ids = {topic: uuid4()}

    def claim(by: GroupLedger) -> list[Any]:
        start = dict.fromkeys(partitions, 0)
        granted = by.claim(partitions, ids, cluster_id="c", start=lambda _: start).granted
        return [granted[p] for p in partitions]

    claims = claim(ledger)
    assert ledger.standby() is None
    assert ledger.outcome_of(uuid4()) is None
    with ledger.engine.begin() as tx:
        transaction = ledger.hold(tx, [Expected(claim, 0) for claim in claims])
        claims = ledger.advance(tx, [Move(claim, 0, 10, 3) for claim in claims], transaction)
    claims = ledger.advance_alone([Move(claim, 10, 11) for claim in claims])
    ledger.positions_of(partitions)
    ledger.positions_of(partitions, locked=False)
    ledger.read()
    with ledger.begin() as scope:
        end_abandoned(scope, partitions, 60.0)
    assert ledger.wait_until_applied(topic, 0, 0).applied
    with pytest.raises(NotApplied):
        ledger.wait_until_applied(topic, 0, 11, timeout=0)
    ledger.record_action("found", partitions[0], 0, 1, reason="a test")
    stop = OffsetLost(partitions[0], 11, "a test", ["a choice"], log_end=20)
    stop.token = claims[0].token
    ledger.record_stops([stop])
    ledger.reset_offset(topic, 0, 15, log=None, reason="a test", lost="a test")
    assert ledger.last_reset(Partition(topic, 0)) is not None
    with pytest.raises(Fenced):
        ledger.reset_offset(topic, 0, 5, log=None, reason="a test", expected=4)
    ledger.pause(reason="a test")
    ledger.resume()
    newer = GroupLedger(ledger.engine, ledger.group, schema=ledger.schema, version=2)
    claims = newer.record_attempts_alone([(claimed, Attempt(0, 1)) for claimed in claim(newer)])
    newer.record_suspects_alone([SuspectNote(claim, 9, 5) for claim in claims])
    everything_that_is_done_to_dead_letters(DeadLetters(newer), claims, ids)
    newer.release(claims)


def everything_that_is_done_to_dead_letters(dead_letters: DeadLetters, claims: list[Any], ids: dict[str, UUID]) -> None:
    """Every method once, over one dead letter per partition."""
    partitions = [claim.partition for claim in claims]
    failure = Failure(Cause.POISON, "Poison: a test")
    asides = [
        NewDeadLetter(RawRecord(p.topic, p.number, 0, None, b"k", b"v"), failure, State.DEAD_LETTERED)
        for p in partitions
    ]
    engine = dead_letters.ledger.engine
    with engine.begin() as tx:
        assert dead_letters.open_keys(tx, partitions) == {}
        dead_letters.insert(tx, asides, ids, version=2)
    parked = dead_letters.list(Where())
    assert sum(cause.count for cause in dead_letters.by_cause(Where())) == len(parked)
    assert sum(dead_letters.count_open().values()) == len(parked) == len(claims)
    chosen = dead_letters.chosen([dead_letter.id for dead_letter in reversed(parked)])
    assert [dead_letter.id for dead_letter in chosen] == [dead_letter.id for dead_letter in parked]
    with engine.begin() as tx:
        locked = dead_letters.lock(tx, dead_letters.get(parked[0].id).id)
        assert dead_letters.first_open_of_key(tx, locked) == 0
        dead_letters.edit(tx, locked, b"edited", "alice", "a test")
        dead_letters.failed_again(tx, locked, failure)
        dead_letters.close(tx, locked, State.DISCARDED, "alice", "a test")
    with engine.begin() as tx:
        dead_letters.insert(tx, asides, ids, version=2)
    ledger = dead_letters.ledger
    assert Admin(engine, schema=ledger.schema).group_of_dead_letter(locked.id) == ledger.group
    pipeline = Pipeline(ledger.group, topics=locked.topic, value=Bytes(), handle=lambda tx, batch: None, version=2)
    assert Admin(engine, schema=ledger.schema).dead_letters(pipeline).replay(locked.id).is_applied
    everything_that_is_done_to_waiting_records(dead_letters, claims, asides, ids)


def everything_that_is_done_to_waiting_records(
    dead_letters: DeadLetters, claims: list[Any], asides: list[NewDeadLetter], ids: dict[str, UUID]
) -> None:
    """Every method once; the records were dead letters before."""
    partitions, failure = [claim.partition for claim in claims], asides[0].failure
    ledger, engine = dead_letters.ledger, dead_letters.ledger.engine
    with engine.begin() as tx:
        waiting = [replace(aside, state=State.WAITING, wait=0.0) for aside in asides]
        dead_letters.insert(tx, waiting, ids, version=2)
        assert dead_letters.count_waiting(tx, partitions) == dict.fromkeys(partitions, 1)
    stored = dead_letters.waiting(partitions, 9, keeps_order=True)
    assert {record.partition for record in stored} == set(partitions)
    with pytest.raises(NotApplied, match="waits for its retry"):
        ledger.wait_until_applied(*stored[0].partition, 0, timeout=0)
    claim = next(claim for claim in claims if claim.partition == stored[0].partition)
    with engine.begin() as tx:
        locked = dead_letters.lock_waiting(tx, stored[0].id, claim)
        assert locked is not None
        dead_letters.begin_retry(tx, locked, is_again=False)
        assert dead_letters.get(locked.id).crashes == 0, "not committed yet"
        dead_letters.postpone_retry(tx, locked, failure, 1.0)
        dead_letters.end_retry(tx, locked, failure, 1.0, version=2)
        dead_letters.block_waiting(tx, locked)
    assert dead_letters.get(locked.id).state is State.BLOCKED
    with engine.begin() as tx, pytest.raises(Fenced):
        dead_letters.lock_waiting(tx, stored[0].id, replace(claim, token=uuid4()))


def test_what_runs_is_what_the_files_have(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    """I1..I3: no statement beside the files, and no text that varies with the number of partitions."""
    ledger = GroupLedger(seekpoint_engine, "g", schema=seekpoint_schema, tables=["orders"])
    with overheard(seekpoint_engine) as texts:
        everything_a_ledger_does(ledger, "one", 1)
        ledger = GroupLedger(seekpoint_engine, "g2", schema=seekpoint_schema, tables=["orders", "lines"])
        everything_a_ledger_does(ledger, "seven", 7)
    names = {
        text: query.name
        for _, query in QUERIES
        for text in (query.text + ";\n", query.in_schema(seekpoint_schema) + ";\n")
    }
    assert texts <= names.keys()
    whole = ("worker", "groups", "dead_letters", "replay", "wait")
    never = {query.name for stem, query in QUERIES if stem in whole} - {names[text] for text in texts}
    # For a transaction that was abandoned, and a COMMIT whose answer was lost: none is here. And what openings of runs
    # and exports begin with.
    assert never == {"alone", "terminate", "transaction_status"}


def test_a_name_that_no_file_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        sql.STATUS["nothing"]
