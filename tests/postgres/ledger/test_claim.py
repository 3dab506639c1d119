"""A claim draws a new token, waits for what is in flight, and answers the committed position; one claim at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from postgres.ledger.test_stop import stop_of
from seekpoint.errors import Fenced
from seekpoint.ledger import Attempt
from seekpoint.ledger.claim import record_stop
from seekpoint.ledger.sql import WORKER, arrays
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition
from support.ledger_worker import CLUSTER, LedgerWorker, backend, wait_until_blocked, waits_for_lock
from support.round_trips import trips
from support.waiting import until

NewLedgerWorker = Callable[..., LedgerWorker]
ENDED = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :name AND pid <> pg_backend_pid()
    AND pg_terminate_backend(pid)
"""
PATIENT = Limits(claim_wait=20.0)


def test_every_claim_draws_a_token_and_raises_the_epoch(new_worker: NewLedgerWorker) -> None:
    """I2, I5: also the same process, also without any work between: no token comes twice."""
    worker, other = new_worker(), new_worker()
    tokens, epochs = [], []
    for claiming in (worker, worker, other, worker):
        claiming.claim(0)
        tokens.append(claiming.claims[0].token)
        epochs.append(claiming.claims[0].epoch)
    assert len(set(tokens)) == 4
    assert epochs == sorted(set(epochs))
    assert (worker.row().token, worker.row().epoch) == (tokens[-1], epochs[-1])
    assert worker.row().owner == worker.ledger.owner


def test_a_claim_waits_for_a_commit(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I2, I3: the successor begins after what the transaction in flight commits, not before it."""
    worker, successor = new_worker(positions={0: 3, 1: 0}), new_worker(limits=PATIENT)
    with seekpoint_engine.begin() as tx:
        worker.work(tx, {0: 8})
        claiming = threads.submit(successor.claim, 0, 1)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        assert not claiming.done()
    assert set(claiming.result().granted) == {successor.topic_partition(0), successor.topic_partition(1)}
    assert (successor.claims[0].next_offset, successor.claims[0].leader_epoch) == (8, 7)
    successor.commit({0: 9, 1: 1})
    successor.exactly({0: 9, 1: 1})
    with pytest.raises(Fenced), seekpoint_engine.begin() as tx:
        worker.hold(tx)


def test_a_claim_sees_the_attempt_that_it_waited_for(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """A statement that waits for the position's row would read the trouble as it was before it waited."""
    worker, successor = new_worker(positions={0: 3}), new_worker(limits=PATIENT)
    with seekpoint_engine.begin() as tx:
        worker.accept(worker.work(tx, {0: 8}))
        worker.ledger.record_attempts(tx, [(worker.claims[0], Attempt(8, 1))])
        claiming = threads.submit(successor.claim, 0)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
    claiming.result()
    claim = successor.claims[0]
    assert claim.attempt is not None
    assert (claim.next_offset, claim.attempt.number, claim.attempt.crashes) == (8, 1, 1)
    assert successor.row().unreleased_claims == 1


def test_a_claim_counts_no_crash_for_a_release_that_it_waited_for(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """A statement that did not wait would find the owner who has just given the partition back."""
    worker, successor = new_worker(positions={0: 3}), new_worker(limits=PATIENT)
    claim = worker.claims[0]
    released = arrays([(*claim.partition, claim.token)], "released_topic", "released_partition", "released_token")
    with seekpoint_engine.begin() as tx:
        worker.ledger.group_connection(tx).execute(WORKER["release"], owner=worker.ledger.owner, **released)
        claiming = threads.submit(successor.claim, 0)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
    claiming.result()
    assert successor.claims[0].unreleased == 0
    assert not successor.row().unreleased_claims


def test_a_claim_ends_the_stop_that_it_waited_for(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """And keeps where the log ended: the successor finds the cause again by it."""
    worker, successor = new_worker(positions={0: 3}), new_worker(limits=PATIENT)
    with seekpoint_engine.begin() as tx:
        record_stop(worker.ledger.group_connection(tx), stop_of(worker, log_end=2))
        claiming = threads.submit(successor.claim, 0)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
    claiming.result()
    row = successor.row()
    assert (row.stop_kind, row.stop_log_end, row.unreleased_claims) == (None, 2, 1)


def test_a_claim_waits_for_an_abort(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I1, I3: the transaction in flight comes to nothing: the successor begins where the last COMMIT ended."""
    worker, successor = new_worker(positions={0: 3}), new_worker(limits=PATIENT)
    with seekpoint_engine.connect() as tx:
        worker.work(tx, {0: 8})
        claiming = threads.submit(successor.claim, 0)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        tx.rollback()
    claiming.result()
    assert successor.claims[0].next_offset == 3
    successor.commit({0: 5})
    successor.exactly({0: 5})


def test_a_claim_whose_connection_is_lost_is_made_or_not(
    new_worker: NewLedgerWorker, threads: ThreadPoolExecutor
) -> None:
    """I2: its session ends at a random moment: all tokens are new, or none; and the next claim succeeds."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, partitions = random.Random(seed), range(200)
    worker = new_worker()
    worker.claim(*partitions)
    begun = threading.Barrier(2)

    def end_session(after: float) -> bool:
        begun.wait()
        end = monotonic() + after
        with worker.ledger.engine.connect() as tx:
            ended = False
            while not ended and monotonic() < end + 0.05:
                if monotonic() > end:
                    ended = bool(tx.execute(text(ENDED), {"name": f"%{worker.ledger.owner.hex[:8]}%"}).scalar())
                    tx.rollback()
        return ended

    def claims() -> bool:
        try:
            worker.claim(*partitions)
        except DBAPIError as error:
            if not is_transient(error):
                raise
            return False
        assert len({claim.epoch for claim in worker.claims.values()}) == 1
        return True

    lost = 0
    for _ in range(30):
        ending = threads.submit(end_session, rng.uniform(0, 0.01))
        begun.wait()
        lost += not claims()
        ending.result()
        assert claims() or claims(), "the first one's connection may have ended when the pool had it"
    print(f"{lost} lost")
    worker.commit(dict.fromkeys(partitions, 1))


def test_round_trips_of_a_claim(new_worker: NewLedgerWorker, seekpoint_engine: Engine) -> None:
    """The group and its topics; BEGIN, the group's row and the tokens in one; COMMIT: however many the partitions."""
    engine = create_engine(seekpoint_engine.url, pool_size=1, max_overflow=0)
    worker = new_worker(engine=engine)
    try:
        for _ in range(2):
            worker.claim(*range(100))
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
        with trips(driver) as counted:
            worker.claim(*range(100))
        assert counted.count == 4
    finally:
        engine.dispose()


def test_a_new_topic_is_started_once(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor
) -> None:
    """I4: two workers start at what is `latest` for each: the second takes the first one's numbers."""
    first, second = new_worker(limits=PATIENT), new_worker(limits=PATIENT)
    asked: list[str] = []

    def start(by: LedgerWorker, latest: int, other: LedgerWorker | None) -> Callable[[str], Mapping[Partition, int]]:
        def resolve(topic: str) -> Mapping[Partition, int]:
            asked.append(by.ledger.owner.hex)
            if other is not None:  # inside the lock: the other one has come, and waits
                began = threads.submit(claim, other, start(other, 200, None))
                name = f"%{other.ledger.owner.hex[:8]}%"
                until(lambda: began.running() and waits_for_lock(seekpoint_engine, name), "the other at the lock")
                claims.append(began)
            return {by.topic_partition(n): latest for n in range(2)}

        return resolve

    def claim(by: LedgerWorker, resolve: Callable[[str], Mapping[Partition, int]]) -> None:
        ids = {by.topic: by.topic_id}
        granted = by.ledger.claim(
            [by.topic_partition(0), by.topic_partition(1)], ids, cluster_id=CLUSTER, start=resolve
        ).granted
        by.claims |= {p.number: c for p, c in granted.items()}

    claims = [threads.submit(claim, first, start(first, 100, second))]
    claims[0].result()
    claims[1].result()
    assert asked == [first.ledger.owner.hex]
    assert {c.next_offset for c in second.claims.values()} == {100}
    assert (first.row().first_offset, first.row(1).first_offset) == (100, 100)


def test_a_start_that_fails_leaves_nothing(new_worker: NewLedgerWorker) -> None:
    """I4: the brokers did not answer: no row is guessed, and the next claim asks again."""
    worker = new_worker()

    def away(topic: str) -> Mapping[Partition, int]:
        raise ConnectionError(topic)

    with pytest.raises(ConnectionError):
        worker.ledger.claim([worker.topic_partition(0)], {"t": worker.topic_id}, cluster_id=CLUSTER, start=away)
    assert worker.ledger.read() == []
    worker.claim(0, start={0: 42, 1: 43})
    assert worker.positions() == {0: 42, 1: 43}


def test_an_added_partition_begins_at_its_first_record(new_worker: NewLedgerWorker) -> None:
    """I4: a row that is missing beside others is no new topic: whatever StartAt says, nothing of it is skipped."""
    worker = new_worker()
    worker.claim(0, 1, start={0: 50, 1: 60})
    worker.claim(2, start={2: 99})
    assert worker.claims[2].next_offset == 0
    assert worker.positions() == {0: 50, 1: 60, 2: 0}


def test_another_owners_claim_is_not_released(new_worker: NewLedgerWorker) -> None:
    """I2: a worker that lost its partition long ago releases; the new owner's row does not change."""
    worker, successor = new_worker(positions={0: 0, 1: 0}), new_worker(positions={0: 0})
    before = successor.row()
    worker.ledger.release(worker.claims.values())
    assert successor.row() == before
    assert worker.row(1).owner is None
    successor.commit({0: 1})
    successor.ledger.release(successor.claims.values())
    assert (successor.row().owner, successor.row().next_offset) == (None, 1)
    worker.claim(0)  # and nothing of the release is in the way of the next owner
    worker.commit({0: 2})
    worker.exactly({0: 2, 1: 0})


def test_a_claim_is_released_whatever_token_a_move_has_drawn_since(new_worker: NewLedgerWorker) -> None:
    """I5: a move keeps the owner, who leaves without a crash; what another process has claimed since is its own."""
    worker, successor = new_worker(positions={0: 0, 1: 0, 2: 0}), new_worker()
    worker.ledger.pause(reason="a test")
    worker.ledger.resume()
    successor.claim(1)
    before = successor.row(1)
    worker.ledger.release(worker.claims.values())
    assert [worker.row(n).owner for n in (0, 2)] == [None, None]
    assert successor.row(1) == before
    successor.claim(0, 2)
    assert [successor.row(n).unreleased_claims for n in (0, 1, 2)] == [0, 1, 0]


def test_claims_over_owners_that_did_not_release_are_counted(new_worker: NewLedgerWorker) -> None:
    """I4: a record that kills its worker shows as claims without release; progress in a batch begins again."""
    first, two, three = new_worker(), new_worker(), new_worker()

    def counted() -> int:
        return int(first.row().unreleased_claims)

    first.claim(0)
    first.claim(0)
    assert counted() == 0  # over itself: no crash
    two.claim(0)
    three.claim(0)
    assert counted() == 2
    three.commit({0: 1})
    assert counted() == 0
    first.claim(0)
    assert counted() == 1
    first.ledger.release(first.claims.values())
    two.claim(0)
    assert counted() == 1  # released: there was no crash, and what is suspected stays so
    two.ledger.record_attempts_alone([(two.claims[0], Attempt(1, 1))])
    two.commit({0: 2})
    assert counted() == 1  # a single-record attempt: the next record may crash
    two.commit({0: 3})
    assert counted() == 0


OPERATIONS: Mapping[str, Callable[[LedgerWorker], object]] = {
    "claim": lambda d: d.claim(*reversed(range(6))),
    "hold": lambda d: d.commit(dict.fromkeys(reversed(range(6)), 9)),
    "look": lambda d: d.ledger.positions_of(map(d.topic_partition, reversed(range(6)))),
    "note": lambda d: d.ledger.record_attempts_alone([(claim, Attempt(9, 1)) for claim in reversed(d.claims.values())]),
    "release": lambda d: d.ledger.release(reversed(d.claims.values())),
    "pause": lambda d: d.ledger.pause(reason="a test"),
    "new version": lambda d: LedgerWorker(
        type(d.ledger)(d.ledger.engine, "g", schema=d.ledger.schema, version=2, limits=PATIENT), topic_id=d.topic_id
    ).claim(0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_are_locked_in_one_order(
    new_worker: NewLedgerWorker, seekpoint_engine: Engine, threads: ThreadPoolExecutor, name: str
) -> None:
    """I2: who waits for the first row has none of the later ones: no two of them can wait for each other."""
    worker = new_worker(limits=PATIENT)
    worker.claim(*range(6))
    for n in (3, 0, 5, 2, 4, 1):  # each new version is after the others: the heap has an order of its own
        worker.commit({n: 4})
    table = f"{worker.ledger.schema}.partition_offset"
    with seekpoint_engine.connect() as tx:
        tx.execute(text(f"SELECT FROM {table} WHERE partition = 0 FOR UPDATE"))
        working = threads.submit(OPERATIONS[name], worker)
        wait_until_blocked(seekpoint_engine, by=backend(tx))
        free = tx.execute(text(f"SELECT partition FROM {table} ORDER BY partition FOR UPDATE SKIP LOCKED")).scalars()
        assert list(free) == [0, 1, 2, 3, 4, 5]
        tx.rollback()
    working.result()
