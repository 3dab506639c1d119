"""COMMIT whose answer is lost: taken effect, not taken effect, in doubt; and a wire that is cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from seekpoint import Partition, events
from seekpoint.pipeline.policy import Limits
from seekpoint.worker.failed import TRIES
from support.events import Gate, Run
from support.ledger_worker import scalar, wait_until_blocked
from support.manual_worker import actions
from support.postgres_proxy import MOVES, PostgresProxy, When
from support.waiting import until
from support.worker_group import WorkerGroup

pytestmark = pytest.mark.usefixtures("short_backoff")


def commit_through(worker_group: WorkerGroup, proxy: PostgresProxy, name: str, when: Any, **options: Any) -> Run:
    """A worker whose first batch meets the fault at its COMMIT."""
    gate = Gate(events.Advanced)
    run = worker_group.worker(name, observe=[gate], engine=proxy.dsn, **options)
    gate.wait()
    proxy.arm(when, MOVES)
    gate.open()
    proxy.wait_until_fired()
    return run


def goes_on(worker_group: WorkerGroup, run: Run, name: str, stored: list[tuple[int, int]]) -> None:
    """More records come, and all of them are there once."""
    stored = stored + worker_group.produce(name, 5)
    run.finish(name, len(stored))
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.positions() == {Partition(name, 0): len(stored)}
    assert run.seen.all(events.CommitUnknown)


def test_a_commit_that_took_effect_and_was_not_answered(worker_group: WorkerGroup, proxy: PostgresProxy) -> None:
    """I1, I3: the ledger is ahead of the reader: the batch is dropped, not written again."""
    name, stored = worker_group.log(10)
    run = commit_through(worker_group, proxy, name, "after_commit")
    resynced = run.seen.wait_for(events.Resynced)
    assert (resynced.expected, resynced.cause) == (0, "reply lost")
    assert resynced.found == worker_group.positions()[Partition(name, 0)] > 0
    run.seen.wait_for(events.CommitUnknown)
    goes_on(worker_group, run, name, stored)


def test_a_commit_that_never_arrived(worker_group: WorkerGroup, proxy: PostgresProxy) -> None:
    """I1, I3: the ledger is where reading began: the same records are tried again, by the same code."""
    name, stored = worker_group.log(10)
    run = commit_through(worker_group, proxy, name, "before_commit")
    run.seen.wait_for(events.CommitUnknown)
    again = run.seen.wait_for(events.BatchOpened, lambda e: e.attempt > 1)
    assert again.attempt == 2
    goes_on(worker_group, run, name, stored)
    assert run.seen.all(events.Resynced) == []


def test_a_commit_that_never_arrives_however_often_it_is_tried(worker_group: WorkerGroup, proxy: PostgresProxy) -> None:
    """I1, I3: positions are taken over after COMMIT only: the next claim finds no position that went back."""

    def cut(event: events.Event) -> None:
        if isinstance(event, events.Advanced) and proxy.counts["before_commit"] < TRIES:
            proxy.arm("before_commit", MOVES)

    name, stored = worker_group.log(10)
    run = worker_group.worker(name, engine=proxy.dsn, observe=[cut])
    run.reached(name, 10)
    assert proxy.counts["before_commit"] == TRIES
    goes_on(worker_group, run, name, stored)
    assert run.seen.all(events.Resynced) == []
    assert actions(worker_group) == []


def in_doubt(engine: Engine, schema: str) -> int:
    """The session at the server whose client is gone before its COMMIT arrived."""
    query = f"""
        SELECT coalesce(min(a.pid), 0) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
        WHERE a.state = 'idle in transaction' AND l.relation = '{schema}.partition_offset'::regclass"""
    return int(until(lambda: scalar(engine, query), "a transaction in doubt"))


def test_a_commit_that_arrives_while_the_worker_asks(worker_group: WorkerGroup, proxy: PostgresProxy) -> None:
    """I1, I3: in doubt: the question waits under the row's lock until the COMMIT has taken effect."""
    name, stored = worker_group.log(10)
    run = commit_through(worker_group, proxy, name, "after_commit_delayed", limits=Limits(claim_wait=20.0))
    run.seen.wait_for(events.CommitUnknown)
    wait_until_blocked(worker_group.engine, by=in_doubt(worker_group.engine, worker_group.schema))
    assert worker_group.record_table.written(name) == []
    assert proxy.deliver() == "COMMIT"
    assert run.seen.wait_for(events.Resynced).cause == "reply lost"
    goes_on(worker_group, run, name, stored)


def test_a_commit_that_is_in_doubt_for_longer_than_anybody_waits(
    worker_group: WorkerGroup, proxy: PostgresProxy
) -> None:
    """I1, I3: the worker backs off, its claim is stalled, and it resumes by itself when the doubt has ended."""
    name, stored = worker_group.log(10)
    run = commit_through(
        worker_group, proxy, name, "after_commit_delayed", limits=Limits(claim_wait=0.2, idle_check=0.1)
    )
    run.seen.wait_for(events.Stalled)
    assert run.health().ready is False
    assert proxy.deliver() == "COMMIT"
    run.seen.wait_for(events.Recovered)
    goes_on(worker_group, run, name, stored)


def test_a_transaction_in_doubt_that_the_server_rolls_back(worker_group: WorkerGroup, proxy: PostgresProxy) -> None:
    """I1, I3: while the worker asks, the server ends the session: the records are applied again."""
    name, stored = worker_group.log(10)
    run = commit_through(worker_group, proxy, name, "after_commit_delayed", limits=Limits(claim_wait=20.0))
    run.seen.wait_for(events.CommitUnknown)
    pid = in_doubt(worker_group.engine, worker_group.schema)
    wait_until_blocked(worker_group.engine, by=pid)
    assert scalar(worker_group.engine, "SELECT pg_terminate_backend(:pid)", pid=pid)
    assert proxy.deliver() in {"ERROR 57P01", "CLOSED"}
    run.seen.wait_for(events.BatchOpened, lambda e: e.attempt == 2)
    goes_on(worker_group, run, name, stored)


# The statements of one batch in their order, each by words that no other statement of a worker has; a COMMIT by those
# of its transaction, since the worker's status is committed, too. Few rows leave with the offset; more go by COPY.
STATEMENTS: dict[str, tuple[When, str]] = {
    "BEGIN": ("at_statement", "BEGIN"),
    "hold": ("at_statement", "locked"),
    "rows": ("at_statement", "book"),
    "advance": ("at_statement", MOVES),
    "COMMIT": ("before_commit", MOVES),
}


@pytest.mark.repeats("how")
@pytest.mark.parametrize("how", ["few rows", "COPY", "handler"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_connection_is_cut_at_each_statement(
    worker_group: WorkerGroup, proxy: PostgresProxy, statement: str, how: str
) -> None:
    """I1: whatever the last statement was that arrived, rows and offset are there together or not at all."""
    records = 10 if how == "few rows" else 100
    name, stored = worker_group.log(1)
    gate = Gate(events.Committed)
    pipeline = worker_group.pipeline(name, **({"handle": worker_group.record_table.enter} if how == "handler" else {}))
    run = worker_group.worker(pipeline, engine=proxy.dsn, observe=[gate])
    gate.wait()  # its session has moved an offset: the status has another session
    stored += worker_group.produce(name, records)
    when, text = STATEMENTS[statement]
    proxy.arm(when, text, session=MOVES)
    gate.open()
    proxy.wait_until_fired()
    run.seen.wait_for((events.DatabaseTrouble, events.CommitUnknown))
    run.finish(name, 1 + records)
    assert proxy.counts[when] == 1
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.positions() == {Partition(name, 0): 1 + records}
