"""Hold and advance refuse everybody but the holder of the current claim, and every position but the exact one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, text

from seekpoint.errors import Fenced, HandlerMisuse
from seekpoint.ledger import Expected, Move
from seekpoint.ledger.sql import WORKER
from support.databases import libpq
from support.ledger_worker import LedgerWorker, backend, wait_until_blocked

NewLedgerWorker = Callable[..., LedgerWorker]


def test_rows_and_offsets_appear_together(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: no session sees the one without the other, at any moment."""
    worker = new_worker(positions={0: 0, 1: 0})
    with seekpoint_engine.begin() as tx:
        moved = worker.work(tx, {0: 3, 1: 5})
        worker.exactly({0: 0, 1: 0})  # as seen from another connection
    worker.exactly({0: 3, 1: 5})
    assert [(c.partition.number, c.next_offset, c.leader_epoch) for c in moved] == [(0, 3, 7), (1, 5, 7)]


def test_an_abort_leaves_neither(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: what is rolled back is gone, rows and offsets, and the same claim continues from there."""
    worker = new_worker(positions={0: 0})
    with seekpoint_engine.connect() as tx:
        worker.work(tx, {0: 3})
        tx.rollback()
    worker.exactly({0: 0})
    worker.commit({0: 4})
    worker.exactly({0: 4})


def test_a_zombie_is_refused_at_hold(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: after a new claim the old one writes nothing, although the position is still what it read."""
    zombie, successor = new_worker(positions={0: 0}), new_worker(positions={0: 0})
    with pytest.raises(Fenced, match="rows held: 0"), seekpoint_engine.begin() as tx:
        zombie.hold(tx)
    successor.commit({0: 2})
    successor.exactly({0: 2})


def test_a_zombie_is_refused_at_advance(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2, I1: without hold, advance has the same fence, and takes the rows away again."""
    zombie, successor = new_worker(positions={0: 0}), new_worker(positions={0: 0})
    with seekpoint_engine.connect() as tx:
        zombie.write(tx, 0, 0, 3)
        with pytest.raises(Fenced, match="rows advanced: 0"):
            zombie.ledger.advance(tx, [zombie.move(0, 3)])
        tx.commit()  # of a transaction that the refusal broke
    successor.exactly({0: 0})


def test_a_zombie_that_waited_is_refused(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I2: hold reads the row as it is after the wait, not as it was when it began to wait."""
    zombie, successor = new_worker(positions={0: 0}), new_worker()

    def late() -> None:
        with seekpoint_engine.begin() as tx:
            zombie.hold(tx)

    with seekpoint_engine.begin() as tx:
        # A claim whose COMMIT has not been sent yet: what `successor.claim(0)` does, stopped before its end.
        tx.execute(
            text(f"UPDATE {successor.ledger.schema}.partition_offset SET token = gen_random_uuid(), epoch = epoch + 1")
        )
        waiting = threads.submit(late)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
    with pytest.raises(Fenced, match="rows held: 0"):
        waiting.result()


@pytest.mark.parametrize("position", [9, 11], ids=["behind", "ahead"])
def test_another_position_is_refused(new_worker: NewLedgerWorker, seekpoint_engine: Engine, position: int) -> None:
    """I3: with the right claim, and a position that is not the ledger's: neither a gap nor a repetition."""
    worker = new_worker(positions={0: 10})
    claim = worker.claims[0]
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        worker.ledger.hold(tx, [Expected(claim, position)])
    with seekpoint_engine.connect() as tx:
        worker.write(tx, 0, position, 20)
        with pytest.raises(Fenced):
            worker.ledger.advance(tx, [Move(claim, position, 20)])
        tx.commit()
    with seekpoint_engine.connect() as tx:  # the right hold does not excuse a wrong step
        transaction = worker.hold(tx)
        with pytest.raises(Fenced):
            worker.ledger.advance(tx, [Move(claim, position, 20)], transaction)
        tx.commit()
    worker.exactly({0: 10})


def test_one_refused_partition_refuses_the_whole_statement(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I1, I2: of six partitions one was claimed by another: none of the six is advanced, nothing is written."""
    worker, other = new_worker(), new_worker()
    worker.claim(*range(6))
    other.claim(4)
    with pytest.raises(Fenced, match="rows held: 5"), seekpoint_engine.begin() as tx:
        worker.work(tx, dict.fromkeys(range(6), 2))
    with seekpoint_engine.connect() as tx:
        worker.write(tx, 0, 0, 2)
        moves = [worker.move(n, 2) for n in range(6)]
        with pytest.raises(Fenced, match="rows advanced: 5"):
            worker.ledger.advance(tx, moves)
        tx.commit()
    worker.exactly(dict.fromkeys(range(6), 0))
    del worker.claims[4]
    worker.commit(dict.fromkeys((0, 1, 2, 3, 5), 2))
    worker.exactly({**dict.fromkeys(range(6), 2), 4: 0})


def test_a_refusal_comes_before_a_commit_that_is_already_on_its_way(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I1: in a pipeline COMMIT is sent before any answer is read; the fence must be shut by the server itself."""
    worker = new_worker(positions={0: 0})
    parameters = {f"moving_{name}": [value] for name, value in asdict(worker.move(0, 3)).items() if name != "claim"}
    where = {"moving_topic": ["t"], "moving_partition": [0], "moving_token": [uuid4()]}
    bound = {"group": "g", "expected": 1, "transaction": None, **parameters, **where}
    advance = WORKER["advance"].in_schema(worker.ledger.schema)
    dsn = libpq(seekpoint_engine.url)

    def without_looking(raw: psycopg.Connection[Any]) -> None:
        with raw.pipeline():
            raw.execute("BEGIN")
            raw.execute(f"INSERT INTO {worker.ledger.schema}.applied VALUES (0, 0)")
            raw.execute(advance, bound)
            raw.execute("COMMIT")

    refused = pytest.raises(psycopg.errors.InvalidTextRepresentation, match="rows advanced: 0")
    with psycopg.connect(dsn, autocommit=True) as raw, refused:
        without_looking(raw)
    worker.exactly({0: 0})


def test_advance_belongs_to_the_transaction_of_hold(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: after a literal COMMIT between the two, rows and offset would part: advance refuses."""
    worker = new_worker(positions={0: 0})
    with seekpoint_engine.connect() as tx:
        transaction = worker.hold(tx)
        tx.exec_driver_sql("COMMIT")
        tx.exec_driver_sql("BEGIN")
        with pytest.raises(HandlerMisuse, match="ended the transaction between hold and advance"):
            worker.ledger.advance(tx, [worker.move(0, 3)], transaction)
    worker.exactly({0: 0})


def test_a_savepoint_between_the_two_does_no_harm(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: savepoints have transaction ids of their own; the comparison is of the outermost one."""
    worker = new_worker(positions={0: 0})
    with seekpoint_engine.begin() as tx:
        transaction = worker.hold(tx)
        with tx.begin_nested():
            worker.write(tx, 0, 0, 3)
            moved = worker.ledger.advance(tx, [worker.move(0, 3)], transaction)
    assert moved[0].next_offset == 3
    worker.exactly({0: 3})


def test_a_row_that_is_missing_is_refused(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: no row, no right: a claim of a partition that the ledger does not know moves nothing."""
    worker = new_worker(positions={0: 0})
    stranger = replace(worker.claims[0], partition=worker.topic_partition(5))
    with pytest.raises(Fenced, match="rows held: 0"), seekpoint_engine.begin() as tx:
        worker.ledger.hold(tx, [Expected(stranger, 0)])
    assert worker.positions() == {0: 0}


def test_the_same_names_in_another_group_are_other_rows(new_worker: NewLedgerWorker) -> None:
    """I2: groups do not see each other: a claim in one fences no worker of the other."""
    here, there = new_worker("g", positions={0: 0}), new_worker("h", positions={0: 0})
    here.commit({0: 3})
    assert here.positions() == {0: 3}
    assert there.positions() == {0: 0}
    there.commit({0: 1})


def test_an_end_without_records_is_advanced_alone(new_worker: NewLedgerWorker) -> None:
    """I2, I3: the step over trailing control records has the same fence."""
    worker, other = new_worker(positions={0: 3}), new_worker()
    assert worker.row().leader_epoch == 7
    [moved] = worker.ledger.advance_alone([Move(worker.claims[0], 3, 5)])
    assert (moved.next_offset, moved.leader_epoch) == (5, None)
    assert (worker.row().next_offset, worker.row().leader_epoch) == (5, None)  # no record: no epoch that is sure
    with pytest.raises(Fenced):
        worker.ledger.advance_alone([Move(worker.claims[0], 3, 6)])
    other.claim(0)
    with pytest.raises(Fenced):
        worker.ledger.advance_alone([Move(moved, 5, 6)])
    assert worker.positions() == {0: 5}
