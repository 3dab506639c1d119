"""A transaction that is not ended by its owner costs one partition, for a bounded time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from seekpoint.ledger.sql import GROUPS
from seekpoint.pipeline.policy import Limits
from support.ledger_worker import LedgerWorker, backend, scalar
from support.waiting import until

NewLedgerWorker = Callable[..., LedgerWorker]
QUICK = Limits(claim_wait=0.2)
STRICT = Limits(claim_wait=0.2, transaction_age=0.01)


def alive(engine: Engine, pid: int) -> bool:
    return bool(scalar(engine, "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid", pid=pid))


def stall(worker: LedgerWorker, tx: Connection, number: int) -> int:
    """Hold one partition and write, and then do nothing; returns the backend."""
    transaction = worker.hold(tx, number)
    worker.write(tx, number, 0, 5)
    worker.ledger.advance(tx, [worker.move(number, 5)], transaction)
    return backend(tx)


def test_only_the_stalled_partition_waits(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: three of four are claimed at once; the fourth is left to its holder, who may still commit."""
    worker, successor = new_worker(positions={0: 0, 1: 0, 2: 0, 3: 0}), new_worker(limits=QUICK)
    with seekpoint_engine.begin() as tx:
        pid = stall(worker, tx, 1)
        claimed = successor.claim(0, 1, 2, 3)
        assert claimed.stalled == (successor.topic_partition(1),)
        assert set(claimed.granted) == {successor.topic_partition(n) for n in (0, 2, 3)}
        assert claimed.terminated == ()
        assert alive(seekpoint_engine, pid)
    again = successor.claim(1)
    assert again.stalled == ()
    assert successor.claims[1].next_offset == 5
    successor.commit(dict.fromkeys((0, 2, 3), 1))
    successor.exactly({0: 1, 1: 5, 2: 1, 3: 1})


def test_an_abandoned_transaction_is_ended(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1, I2: older than `transaction_age`: the server ends the session, and nothing of it remains."""
    worker, strict, successor = new_worker(positions={0: 0, 1: 0}), new_worker(limits=STRICT), new_worker()
    with seekpoint_engine.connect() as tx:
        pid = stall(worker, tx, 1)
        claimed = strict.claim(0, 1)
        assert claimed.stalled == (strict.topic_partition(1),)
        assert claimed.terminated == (pid,)
        until(lambda: not alive(seekpoint_engine, pid), "the end of the abandoned session")
        assert successor.claim(0, 1).stalled == ()
        assert successor.claims[1].next_offset == 0
        successor.commit({0: 2, 1: 2})
        with pytest.raises(OperationalError):  # the zombie wakes up and sends its COMMIT
            tx.execute(text("COMMIT"))
        tx.invalidate()
    successor.exactly({0: 2, 1: 2})


def test_an_abandoned_transaction_that_wrote_under_a_savepoint_is_ended(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I1, I2: a row locked before the savepoint and written after it names two transaction ids at once."""
    worker, strict = new_worker(positions={0: 0, 1: 0}), new_worker(limits=STRICT)
    with seekpoint_engine.connect() as tx:
        transaction = worker.hold(tx, 1)
        with tx.begin_nested():
            worker.write(tx, 1, 0, 5)
            worker.ledger.advance(tx, [worker.move(1, 5)], transaction)
        pid = backend(tx)
        claimed = strict.claim(0, 1)
        assert claimed.terminated == (pid,)
        until(lambda: not alive(seekpoint_engine, pid), "the end of the abandoned session")
        tx.invalidate()
    successor = new_worker()  # a transaction of the strict one may take no longer than 10 ms
    assert successor.claim(0, 1).stalled == ()
    successor.commit({0: 2, 1: 2})
    successor.exactly({0: 2, 1: 2})


def test_another_session_that_locks_the_row_is_not_ended(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I2: only sessions of ours are ended: a session of psql is waited for."""
    worker, strict = new_worker(positions={0: 0, 1: 0}), new_worker(limits=STRICT)
    with seekpoint_engine.begin() as tx:
        tx.execute(text("SET LOCAL application_name = 'psql'"))
        tx.execute(text(f"UPDATE {worker.ledger.schema}.partition_offset SET owner = owner WHERE partition = 1"))
        claimed = strict.claim(0, 1)
        assert claimed.stalled == (strict.topic_partition(1),)
        assert claimed.terminated == ()
        assert alive(seekpoint_engine, backend(tx))
    assert strict.claim(1).stalled == ()


def test_the_server_ends_a_transaction_that_is_too_old(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: the server's own limit needs no successor; what the transaction wrote is gone."""
    worker = new_worker(limits=Limits(transaction_age=4.0), positions={0: 0})
    with seekpoint_engine.connect() as tx:
        pid = stall(worker, tx, 0)
        until(lambda: not alive(seekpoint_engine, pid), "the end of the session that is idle in its transaction")
        with pytest.raises(DBAPIError):
            tx.execute(text("COMMIT"))
        tx.invalidate()
    worker.exactly({0: 0})


def test_the_server_ends_a_transaction_that_stands_still_after_an_error(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I1: any error, even one rolled back to a savepoint, ends the transaction's timer; the idle one stays."""
    worker = new_worker(limits=Limits(transaction_age=2.0), positions={0: 0})

    def refused(tx: Connection) -> None:
        with tx.begin_nested():
            tx.execute(text("SELECT 1 / 0"))

    with seekpoint_engine.connect() as tx:
        transaction = worker.hold(tx, 0)
        with pytest.raises(DBAPIError, match="division"):
            refused(tx)
        worker.write(tx, 0, 0, 5)
        worker.ledger.advance(tx, [worker.move(0, 5)], transaction)
        pid = backend(tx)
        until(lambda: not alive(seekpoint_engine, pid), "the end of the session that stands still")
        tx.invalidate()
    worker.exactly({0: 0})


def test_the_server_ends_a_session_that_stands_still_with_the_groups_lock(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine
) -> None:
    """I2: as the first worker of a topic does while it asks the brokers; no claim finds it by a partition's row."""
    worker, successor = new_worker(limits=Limits(transaction_age=1.0, kafka_timeout=0.5)), new_worker(limits=QUICK)
    successor.claim(0)

    def stand_still() -> None:
        with worker.ledger.begin() as tx:
            tx.execute(GROUPS["lock"]).one()
            pid = backend(tx.connection)
            assert successor.claim(0).stalled == (successor.topic_partition(0),)
            until(lambda: not alive(seekpoint_engine, pid), "the end of the session that stands still")

    with pytest.raises(DBAPIError):
        stand_still()
    assert successor.claim(0).stalled == ()


def test_the_server_ends_a_busy_transaction_too(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """I1: busy in the database past its age, where the server has transaction_timeout (17)."""
    if (seekpoint_engine.dialect.server_version_info or (17,)) < (17,):
        pytest.skip("transaction_timeout came with Postgres 17")
    worker = new_worker(limits=Limits(transaction_age=0.3), positions={0: 0})

    def work_on(tx: Connection) -> None:
        stall(worker, tx, 0)
        tx.execute(text("SELECT pg_sleep(30)"))

    with seekpoint_engine.connect() as tx:
        with pytest.raises(DBAPIError, match="transaction timeout"):
            work_on(tx)
        tx.invalidate()
    worker.exactly({0: 0})
