"""Every statement of the ledger, as the server sees it, beside this file: a change of SQL is a change to look at.

``SEEKPOINT_REWRITE_SQL=1 pytest tests/sql/test_snapshots.py`` writes the files again; the diff is for the reviewer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql.base import Executable

from seekpoint import Bytes, Pipeline
from seekpoint.admin import DeadLetterReplay, group_of
from seekpoint.errors import Fenced, NotApplied, OffsetLost
from seekpoint.ledger import Attempt, Expected, Ledger, Move, SuspectNote
from seekpoint.ledger.claim import end_abandoned
from seekpoint.ledger.dead_letters import DeadLetters, Where
from seekpoint.ledger.sql import DEAD_LETTERS, FORGET, WAIT
from seekpoint.ledger.sql import admin as administration
from seekpoint.ledger.sql import partition_offset as statements
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from seekpoint.worker.replay import replay_one as admin
from support.failures import for_each
from support.round_trips import overheard

FOLDER = Path(__file__).parent
REWRITE = os.environ.get("SEEKPOINT_REWRITE_SQL") == "1"

#: A plain INSERT names the columns that it is given: those that the ledger gives.
GIVEN = {
    "RECORD_ACTION": ["action", "topic", "partition", "from_offset", "to_offset", "actor", "reason"],
    "RECORD_LOSS": [
        *["topic", "topic_id", "partition"],
        *["from_offset", "to_offset", "reason", "decision", "actor", "operator_reason"],
    ],
}
STATEMENTS: dict[str, Any] = {
    name: value
    for module in (statements, administration, admin)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, Executable)
}


def rendered(name: str) -> str:
    """The statement's text for psycopg, in the default schema."""
    compiled = STATEMENTS[name].compile(dialect=psycopg.dialect(), column_keys=GIVEN.get(name))  # type: ignore[no-untyped-call]
    lines = [line.rstrip() for line in str(compiled).strip().splitlines()]
    return "\n".join(lines) + ";\n"


def snapshot(name: str) -> Path:
    return FOLDER / f"{name.lower()}.sql"


@for_each(sorted(STATEMENTS))
def test_statement_is_its_snapshot(name: str) -> None:
    """I1, I2, I3 hang on these texts: none changes unseen."""
    if REWRITE:
        snapshot(name).write_text(rendered(name))
    assert snapshot(name).exists(), f"{snapshot(name).name} is missing: run with SEEKPOINT_REWRITE_SQL=1"
    assert rendered(name) == snapshot(name).read_text(), "look at the change; then run with SEEKPOINT_REWRITE_SQL=1"


def test_no_snapshot_is_left_of_a_statement_that_is_gone() -> None:
    """I1..I3: the folder shows what runs, and nothing else."""
    files = {path.name for path in FOLDER.glob("*.sql")}
    gone = files - {snapshot(name).name for name in STATEMENTS}
    if REWRITE:
        for name in gone:
            (FOLDER / name).unlink()
    assert REWRITE or not gone, f"remove {', '.join(sorted(gone))}"


def everything_a_ledger_does(ledger: Ledger, topic: str, count: int) -> None:
    """Every method once, over ``count`` partitions."""
    partitions = [Partition(topic, n) for n in range(count)]
    ids = {topic: uuid4()}

    def claim(by: Ledger) -> list[Any]:
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
    newer = Ledger(ledger.engine, ledger.group, schema=ledger.schema, version=2)
    claims = newer.record_attempts_alone([(each, Attempt(0, 1)) for each in claim(newer)])
    newer.record_suspects_alone([SuspectNote(each, 9, 5) for each in claims])
    everything_that_is_done_to_dead_letters(DeadLetters(newer), claims, ids)
    newer.release(claims)


def everything_that_is_done_to_dead_letters(letters: DeadLetters, claims: list[Any], ids: dict[str, UUID]) -> None:
    """Every method once, over one dead letter per partition."""
    partitions = [claim.partition for claim in claims]
    failure = Failure(Cause.POISON, "Poison: a test")
    asides = [
        NewDeadLetter(RawRecord(p.topic, p.number, 0, None, b"k", b"v"), failure, State.DEAD_LETTERED)
        for p in partitions
    ]
    engine = letters.ledger.engine
    with engine.begin() as tx:
        assert letters.open_keys(tx, partitions) == {}
        letters.insert(tx, asides, ids, version=2)
    parked = letters.list(Where())
    assert sum(one.count for one in letters.by_cause(Where())) == len(parked)
    assert sum(letters.count_open().values()) == len(parked) == len(claims)
    assert letters.in_order([each.id for each in reversed(parked)]) == [each.id for each in parked]
    assert [each.id for each in letters.chosen([each.id for each in parked])] == [each.id for each in parked]
    with engine.begin() as tx:
        one = letters.lock(tx, letters.get(parked[0].id).id)
        assert letters.first_open_of_key(tx, one) == 0
        letters.failed_again(tx, one, failure)
        letters.close(tx, one, State.DISCARDED, "alice", "a test")
    with engine.begin() as tx:
        letters.insert(tx, asides, ids, version=2)
    ledger = letters.ledger
    assert group_of(engine, one.id, schema=ledger.schema) == ledger.group
    pipeline = Pipeline(ledger.group, topics=one.topic, value=Bytes(), handle=lambda tx, batch: None, version=2)
    assert DeadLetterReplay(pipeline, engine, schema=ledger.schema).replay(one.id).is_applied


def test_what_runs_is_what_the_snapshots_show(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    """I1..I3: no statement outside the snapshots, and no text that varies with the number of partitions."""
    ledger = Ledger(seekpoint_engine, "g", schema=seekpoint_schema, tables=["orders"])
    with overheard(seekpoint_engine) as texts:
        everything_a_ledger_does(ledger, "one", 1)
        ledger = Ledger(seekpoint_engine, "g2", schema=seekpoint_schema, tables=["orders", "lines"])
        everything_a_ledger_does(ledger, "seven", 7)
    ran = {re.sub(rf"\b{seekpoint_schema}\b", DEFAULT_SCHEMA, text) for text in texts}
    shown = {snapshot(name).read_text(): name for name in STATEMENTS}
    in_files = {
        query.in_schema(DEFAULT_SCHEMA) + ";\n"
        for queries in (DEAD_LETTERS, FORGET, WAIT)
        for query in queries.values()
    }
    assert ran <= set(shown) | in_files
    never = {name for text, name in shown.items() if text not in ran}
    # HOLD is for servers before 17, TERMINATE for a transaction that was abandoned, TRANSACTION_STATUS for a COMMIT
    # whose answer was lost: none is here. ALONE is what openings of runs and exports begin with.
    server = seekpoint_engine.dialect.server_version_info or (0,)
    by_version = ("HOLD", "HOLD_AND_ADVANCE", "AS_WORKER")
    others = set(by_version) if server >= (17,) else {f"{name}_17" for name in by_version}
    assert never == {"ALONE", "TERMINATE", "TRANSACTION_STATUS", *others}
