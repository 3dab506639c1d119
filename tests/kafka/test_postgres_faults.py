"""What can happen to the database in mid-batch: cut, killed, frozen, without its last commits. Work resumes by itself.

Everywhere the table is compared with what Kafka acknowledged, and the fault is shown to have happened.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from seekpoint import Batch, Limits, Partition, Pipeline, Text, Worker, events
from seekpoint.backoff import Backoff
from seekpoint.errors import SchemaMismatch
from seekpoint.testing.child_process import NotReached
from seekpoint.testing.servers.postgres import PostgresServer
from seekpoint.worker.reader import Reader
from support.events import Gate
from support.fixtures import NewEngine
from support.manual_worker import actions
from support.postgres_proxy import PostgresProxy
from support.worker_group import PROTOCOLS, QUICK, WorkerGroup, WorkerOptions

pytestmark = pytest.mark.usefixtures("short_backoff")

Protocol = Mapping[str, Any]
WorkerGroupOn = Callable[..., WorkerGroup]


@pytest.fixture
def proxied_engine(proxy: PostgresProxy, new_engine: NewEngine) -> Engine:
    """An engine that goes through the proxy."""
    return new_engine(proxy.dsn, pool_pre_ping=True)


# -- the connection ------------------------------------------------------------------------------------------------


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", [events.Held, events.Applied, events.Advanced])
def test_a_backend_terminated_in_mid_batch_is_replaced(worker_group: WorkerGroup, step: type[events.Event]) -> None:
    name, stored = worker_group.log(1_000)
    gate = Gate(step)
    run = worker_group.worker(name, observe=[gate], limits=Limits(batch_records=300))
    gate.wait()
    (pid,) = transactions_of(worker_group)
    with worker_group.engine.begin() as tx:
        assert tx.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid}).scalar_one()
    gate.open()
    run.seen.wait_for(events.DatabaseTrouble)
    run.reached(name, 1_000)
    run.ready()
    run.stop()
    worker_group.record_table.assert_holds(name, stored)


def transactions_of(worker_group: WorkerGroup) -> list[int]:
    """The sessions that hold a row of this schema's ledger."""
    table = f"'{worker_group.schema}.partition_offset'::regclass"
    rows = worker_group.sql(f"SELECT DISTINCT pid FROM pg_locks WHERE relation = {table} AND mode = 'RowShareLock'")
    return [row.pid for row in rows]


def test_a_pool_that_the_host_keeps_busy_delays_no_batch(worker_group: WorkerGroup, new_engine: NewEngine) -> None:
    """The worker has a separate pool, and takes none of the host's connections."""
    name, stored = worker_group.log(0)
    engine = new_engine(worker_group.dsn, pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.connect() as busy:
        run = worker_group.worker(name, engine=engine)
        stored += worker_group.produce(name, 100)
        run.reached(name, 100)
        run.ready()
        run.stop()
        assert busy.scalar(text("SELECT 1")) == 1
    assert run.seen.all(events.DatabaseTrouble) == []
    worker_group.record_table.assert_holds(name, stored)


@pytest.mark.pins("batch")
def test_a_connection_cut_in_mid_copy_writes_nothing_of_it(
    worker_group: WorkerGroup, proxy: PostgresProxy, proxied_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every chunk is read by the transaction that writes it, and not while an answer of the server is awaited.
    monkeypatch.setattr(Reader, "read_ahead", lambda reader: False)
    name, stored = worker_group.log(
        ["x" * 100] * 5_000
    )  # one fetch has them all: no transaction waits for the next one
    # COPY is open, and rows of an earlier chunk are on their way.
    gate = Gate((events.Held, events.ChunkRead, events.Applied), where=second_draw())
    run = worker_group.worker(name, engine=proxied_engine, observe=[gate])
    gate.wait()
    assert proxy.cut() > 0
    gate.open()
    run.seen.wait_for(events.DatabaseTrouble)
    run.finish(name, 5_000)
    worker_group.record_table.assert_holds(name, stored)


def second_draw() -> Callable[[Any], bool]:
    """The second chunk that a transaction draws while it is open."""
    drawn: int | None = None

    def where(event: Any) -> bool:
        nonlocal drawn
        if isinstance(event, events.ChunkRead):
            drawn = None if drawn is None else drawn + 1
        else:
            drawn = 0 if isinstance(event, events.Held) else None
        return drawn == 2

    return where


def test_a_database_that_refuses_each_batch_is_in_trouble_until_it_takes_one(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims succeed and brokers answer before each attempt: neither shows that the next batch will be committed."""
    monkeypatch.setattr("seekpoint.worker.loop.Backoff", partial(Backoff, initial=0.1))
    name, begun = worker_group.topic(), threading.Event()

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        begun.wait()
        if len(waits()) < 3:
            tx.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no space yet' USING ERRCODE = '53100'; END $$")

    def waits() -> list[float]:
        return [event.wait for event in run.seen.all(events.DatabaseTrouble) if event.wait > 0]

    run = worker_group.worker(Pipeline(worker_group.group, topics=name, value=Text(), handle=handle))
    begun.set()
    worker_group.produce(name, 3)
    run.seen.wait_for(events.Recovered)
    shown = (events.DatabaseTrouble, events.Committed, events.Recovered)
    kinds = [type(event) for event in run.seen.events if isinstance(event, shown)]
    assert kinds[-2:] == [events.Committed, events.Recovered]
    assert set(kinds[:-2]) == {events.DatabaseTrouble}
    assert waits()[0] <= 0.1 < waits()[2], "they grow"
    run.stop()


def test_a_database_that_refuses_connections_is_waited_for_with_announced_waits(
    worker_group: WorkerGroup, proxy: PostgresProxy, proxied_engine: Engine, protocol: Protocol
) -> None:
    name = worker_group.topic(2)
    worker_group.expire_sessions_after()
    stored = worker_group.produce(name, 100, partition=0) + worker_group.produce(name, 100, partition=1)
    run = worker_group.worker(name, engine=proxied_engine, kafka=protocol)
    worker_group.wait_until_caught_up(name, stored)
    proxy.refuse()
    proxy.cut()
    stored += worker_group.produce(name, 100, partition=0) + worker_group.produce(name, 100, partition=1)
    waits = [run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0, count=n).wait for n in (1, 2, 3)]
    assert 0 < waits[0] <= 1
    assert waits[2] > waits[0], "the waits grow"
    health = run.health()
    assert (health.live, health.ready) == (True, False)
    assert health.trouble is not None

    # Another member joins meanwhile: the rebalance is served, and it gets its part.
    heir = worker_group.worker(name, kafka=protocol)
    heir.seen.wait_for(events.Activated)
    heir.seen.wait_for(events.Committed)
    assert not run.seen.all(events.Recovered)
    proxy.accept()
    run.seen.wait_for(events.Recovered)
    worker_group.wait_until_caught_up(name, stored)
    run.ready()
    run.stop()
    heir.stop()
    worker_group.record_table.assert_holds(name, stored)


def test_a_worker_drains_while_the_database_is_away(
    worker_group: WorkerGroup, proxy: PostgresProxy, proxied_engine: Engine
) -> None:
    name, stored = worker_group.log(10)
    run = worker_group.worker(name, engine=proxied_engine)
    run.reached(name, 10)
    proxy.refuse()
    proxy.cut()
    run.seen.wait_for(events.DatabaseTrouble)
    run.stop()
    heir = worker_group.worker(name)
    stored += worker_group.produce(name, 10)
    heir.finish(name, 20)
    worker_group.record_table.assert_holds(name, stored)


# -- the server ----------------------------------------------------------------------------------------------------


def test_a_restarted_postgres_costs_only_time(
    worker_group_on: WorkerGroupOn, own_postgres: PostgresServer, worker_options: WorkerOptions
) -> None:
    worker_group = worker_group_on(postgres=own_postgres)
    name = worker_group.topic(2)
    with worker_group.stream(name, 2, rate=300) as stream:
        run = worker_group.worker(name, **worker_options(name, 2))
        run.seen.wait_for(events.Committed, count=5)
        mark = run.seen.mark()  # an earlier trouble, such as a lock timeout on a busy machine, may have ended since
        own_postgres.kill()
        run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0, since=mark)
        assert (run.health().live, run.health().ready) == (True, False)
        mark = run.seen.mark()
        own_postgres.start()
        run.seen.wait_for(events.Recovered, since=mark)
        run.seen.wait_for(events.Committed, count=3, since=mark)
    worker_group.wait_until_caught_up(name, stream.stored)
    run.ready()
    run.stop()
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_frozen_postgres_is_waited_for(worker_group_on: WorkerGroupOn, own_postgres: PostgresServer) -> None:
    worker_group = worker_group_on(postgres=own_postgres)
    name = worker_group.topic()
    with worker_group.stream(name, 1, rate=300) as stream:
        run = worker_group.worker(name, kafka={**PROTOCOLS["eager"], "max.poll.interval.ms": 3_500})
        run.seen.wait_for(events.Committed, count=5)
        own_postgres.freeze()
        mark = run.seen.mark()
        run.seen.wait_for(events.MembershipRenewed, since=mark, count=4)  # past max.poll.interval, and still a member
        own_postgres.thaw()
        mark = run.seen.mark()
        run.seen.wait_for(events.Committed, count=5, since=mark)
    worker_group.finish(run, name, stream.stored)
    assert not [e for e in run.seen.all(events.Revoked) if e.lost]
    worker_group.record_table.assert_holds(name, stream.stored)


@pytest.mark.long
def test_a_third_signal_ends_a_worker_of_a_silent_database(
    worker_group_on: WorkerGroupOn, own_postgres: PostgresServer
) -> None:
    worker_group = worker_group_on(postgres=own_postgres)
    name, stored = worker_group.log(10)
    process = worker_group.worker_process(name, kafka=PROTOCOLS["eager"], stop_at=("Held", 2))
    process.wait_for("Committed")
    stored += worker_group.produce(name, 10)
    process.wait_until_stopped()  # inside its transaction
    own_postgres.freeze()
    for _ in range(3):
        process.signal(signal.SIGTERM)
        process.thaw()
        with contextlib.suppress(NotReached):
            process.ended(2)
    assert process.ended() == -signal.SIGTERM
    own_postgres.thaw()
    heir = worker_group.worker(name, kafka=PROTOCOLS["eager"], limits=Limits(claim_wait=0.5))
    worker_group.finish(heir, name, stored)
    worker_group.record_table.assert_holds(name, stored)


def test_i1_a_crash_takes_unsynced_rows_and_offsets_together(
    worker_group_on: WorkerGroupOn, own_postgres: PostgresServer
) -> None:
    """I1: the tail that was not synced is gone from both, and Kafka replays it."""
    worker_group = worker_group_on(postgres=own_postgres)
    with worker_group.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("ALTER SYSTEM SET wal_writer_delay = '10s'"))  # what is not synced stays unsynced
        connection.execute(text("ALTER SYSTEM SET wal_writer_flush_after = '1GB'"))
        connection.execute(text("SELECT pg_reload_conf()"))
    name = worker_group.topic(2)
    run = worker_group.worker(name, synchronous_commit=False)
    run.placed(2)
    stored = worker_group.produce(name, 100, partition=0)
    run.reached(name, 100, 0)
    worker_group.sql("CREATE TABLE public.flushed ()", "SELECT pg_reload_conf()")
    stored += worker_group.produce(name, 50, partition=1)  # only this partition moves after the flush
    run.reached(name, 50, 1)
    before = worker_group.record_table.written(name)
    own_postgres.kill()
    own_postgres.start()
    after = worker_group.record_table.written(name)
    run.seen.wait_for(events.DatabaseTrouble)
    rolled_back = run.seen.wait_for(events.Resynced, lambda e: e.cause == "rolled back")
    assert len(before) == 150
    assert len(after) < 150, "the crash took the tail"
    assert rolled_back.partition == Partition(name, 1)
    worker_group.finish(run, name, stored)
    worker_group.record_table.assert_holds(name, stored)
    assert [(a.action, a.topic, a.from_offset) for a in actions(worker_group)] == [("rolled back", name, 50)]


def test_i3_a_rolled_back_partition_alone_is_read_again(
    worker_group_on: WorkerGroupOn, own_postgres: PostgresServer
) -> None:
    """I3: the refusal is met inside a batch that has records of both: none of them may be passed over."""
    worker_group = worker_group_on(postgres=own_postgres)
    name = worker_group.topic(2)
    run = worker_group.worker(name)
    stored = worker_group.produce(name, 50, partition=0) + worker_group.produce(name, 50, partition=1)
    worker_group.wait_until_caught_up(name, stored)
    gate = Gate(events.BatchOpened)
    run.stop()
    # No idle check: without a refusal, it would notice a position that went back in a partition that was quiet.
    run = worker_group.worker(name, observe=[gate], limits=Limits(idle_check=60))
    run.placed(2)  # a partition that is claimed after the position went back begins there
    stored += worker_group.produce(name, 50, partition=0)
    gate.wait()
    worker_group.sql(
        f'UPDATE "{worker_group.schema}".partition_offset SET next_offset = 20 WHERE partition = 1',
        f'DELETE FROM "{worker_group.schema}".book WHERE partition = 1 AND "offset" >= 20',
    )
    stored += worker_group.produce(name, 50, partition=1)
    gate.open()
    worker_group.wait_until_caught_up(name, stored)
    run.seen.wait_for(events.Resynced, lambda e: (e.cause, e.expected, e.found) == ("rolled back", 50, 20))
    run.stop()
    assert run.seen.all(events.Refused)
    assert sorted(worker_group.record_table.written(name)) == sorted(stored)


def test_a_wrong_database_is_said_on_entering(worker_group: WorkerGroup) -> None:
    kafka = {"bootstrap.servers": worker_group.broker, **QUICK}
    worker = Worker(
        worker_group.pipeline(worker_group.topic()), engine=worker_group.dsn, kafka=kafka, schema="not_here"
    )
    with pytest.raises(SchemaMismatch, match="seekpoint db upgrade"), worker.running():
        raise AssertionError("it must not have started")
