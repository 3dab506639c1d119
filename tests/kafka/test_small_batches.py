"""Small batches, which take two round trips: killed at each step, cut in each trip, refused, and without their topic.

The first batch of a connection goes step by step; what is tested here is a later one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from seekpoint import Partition, events
from seekpoint.errors import HandlerOutdated, TopicRecreated
from seekpoint.pipeline.policy import Limits
from seekpoint.testing.servers.postgres import PostgresServer
from support.events import Gate
from support.ledger_worker import scalar
from support.manual_worker import rival, seize
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import until
from support.worker_group import PROTOCOLS, WorkerGroup

pytestmark = [
    pytest.mark.usefixtures("short_backoff"),
    pytest.mark.pins("batch", "small_batch", "pool"),
]

SENT = "bool_and(c.relkind"  # in the last statement that leaves with the rows; step by step, advance is the last one


class SmallBatch:
    """A worker that has applied ten records, and waits at an event of a small batch of five more."""

    def __init__(self, worker_group: WorkerGroup, event: type[events.Event], **options: Any) -> None:
        later = threading.Event()
        self.worker_group, self.gate = worker_group, Gate(event, lambda _: later.is_set())
        self.name, self.stored = worker_group.log(10)
        self.run = worker_group.worker(self.name, observe=[self.gate], **options)
        self.run.reached(self.name, 10)
        later.set()
        self.stored += worker_group.produce(self.name, 5)
        self.gate.wait()
        self.mark = self.run.seen.mark()

    def finish(self) -> None:
        """Five more records come; each of all is there once."""
        self.gate.open()
        self.stored += self.worker_group.produce(self.name, 5)
        self.run.finish(self.name, 20)
        self.worker_group.record_table.assert_holds(self.name, self.stored)
        assert self.worker_group.positions() == {Partition(self.name, 0): 20}


def backend(worker_group: WorkerGroup) -> int:
    """The session that has sent a small batch, and waits with it in its transaction."""
    query = (
        "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE state = 'idle in transaction' "
        f"AND application_name LIKE 'seekpoint %{worker_group.group[:20]}%' AND strpos(query, '{SENT}') > 0"
    )
    return int(until(lambda: scalar(worker_group.engine, query), "a small batch in its transaction"))


# -- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["BatchOpened", "Held", "Applied", "Advanced", "Committed"])
def test_a_worker_killed_at_each_step(worker_group: WorkerGroup, step: str) -> None:
    """I1: rows and offset are there together or not at all; from Held on, both are in the open transaction."""
    name, stored = worker_group.log(10)
    own: dict[str, Any] = {"partitions": [(name, 0)]}  # no group, which would wait for the dead
    process = worker_group.worker_process(name, stop_at=(step, 2), **own)
    process.wait_for("Committed")
    stored += worker_group.produce(name, 5)
    process.wait_until_stopped()
    if step in {"Held", "Applied", "Advanced"}:
        backend(worker_group)
    process.kill()
    heir = worker_group.worker(name, **own)
    stored += worker_group.produce(name, 5)
    heir.finish(name, 20)
    worker_group.record_table.assert_holds(name, stored)
    assert worker_group.positions() == {Partition(name, 0): 20}


# -- the connection ----------------------------------------------------------------------------------------------


@pytest.mark.repeats("statement")
@pytest.mark.parametrize("statement", ["BEGIN", "locked", "book", SENT, "COMMIT"])
def test_the_connection_is_cut_at_each_statement(
    worker_group: WorkerGroup, proxy: PostgresProxy, statement: str
) -> None:
    """I1: whichever statement was the last to arrive."""
    small_batch = SmallBatch(worker_group, events.BatchOpened, engine=proxy.dsn)
    proxy.arm("at_statement", statement, session=MOVES)  # the worker's: its status has another one
    small_batch.gate.open()
    proxy.wait_until_fired()
    small_batch.run.seen.wait_for((events.DatabaseTrouble, events.CommitUnknown), since=small_batch.mark)
    small_batch.finish()
    assert proxy.counts["at_statement"] == 1


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_commit_delayed"])
def test_a_commit_without_an_answer(worker_group: WorkerGroup, proxy: PostgresProxy, when: Any) -> None:
    """I1, I3: taken effect, not taken effect, in doubt: the ledger says which."""
    small_batch = SmallBatch(worker_group, events.Advanced, engine=proxy.dsn, limits=Limits(claim_wait=20.0))
    pid = backend(worker_group)
    proxy.arm(when, MOVES)
    small_batch.gate.open()
    proxy.wait_until_fired()
    small_batch.run.seen.wait_for(events.CommitUnknown, since=small_batch.mark)
    if when == "after_commit_delayed":
        until(lambda: blocked_by(worker_group, pid), "the worker to ask the ledger")
        assert proxy.deliver() == "COMMIT"
    if when == "before_commit":
        assert small_batch.run.seen.wait_for(events.BatchOpened, since=small_batch.mark).attempt == 2
    else:
        assert small_batch.run.seen.wait_for(events.Resynced, since=small_batch.mark).cause == "reply lost"
    small_batch.finish()


def blocked_by(worker_group: WorkerGroup, pid: int) -> bool:
    return bool(
        scalar(worker_group.engine, f"SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))")
    )


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", [events.Held, events.Applied, events.Advanced])
def test_a_backend_that_is_terminated_is_replaced(worker_group: WorkerGroup, step: type[events.Event]) -> None:
    small_batch = SmallBatch(worker_group, step)
    assert scalar(worker_group.engine, "SELECT pg_terminate_backend(:pid)", pid=backend(worker_group))
    small_batch.gate.open()
    small_batch.run.seen.wait_for(events.DatabaseTrouble, since=small_batch.mark)
    small_batch.finish()


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", [events.BatchOpened, events.Advanced])
def test_postgres_is_away(worker_group_on: Callable[..., WorkerGroup], own_postgres: PostgresServer, step: Any) -> None:
    """I1: before the first trip, and while COMMIT is sent."""
    small_batch = SmallBatch(worker_group_on(postgres=own_postgres), step)
    own_postgres.kill()
    small_batch.gate.open()
    small_batch.run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0, since=small_batch.mark)
    assert bool(small_batch.run.seen.all(events.CommitUnknown)) == (step is events.Advanced)
    own_postgres.start()
    small_batch.run.seen.wait_for(events.Recovered, since=small_batch.mark)
    small_batch.finish()


# -- refusals ----------------------------------------------------------------------------------------------------


def test_another_claim_refuses_it(worker_group: WorkerGroup) -> None:
    """I2: the rows have left with the statement that is refused, and none of them is written."""
    small_batch = SmallBatch(worker_group, events.BatchOpened)
    seize(worker_group, rival(worker_group), small_batch.name, 0)
    small_batch.gate.open()
    assert "rows held: 0" in small_batch.run.seen.wait_for(events.Refused, since=small_batch.mark).reason
    small_batch.run.seen.wait_for(events.ClaimLost, since=small_batch.mark)
    small_batch.finish()


def test_a_skip_refuses_it(worker_group: WorkerGroup) -> None:
    """I4, I5: what is skipped is not applied, though it was read already."""
    small_batch = SmallBatch(worker_group, events.BatchOpened)
    worker_group.ledger.reset_offset(small_batch.name, 0, 15, log=None, reason="known to be bad", lost="skipped")
    small_batch.gate.open()
    small_batch.run.seen.wait_for(events.Refused, since=small_batch.mark)
    del small_batch.stored[10:]
    small_batch.finish()


def test_a_reset_of_a_quiet_partition_is_obeyed_while_another_is_busy(worker_group: WorkerGroup) -> None:
    """I5: a small batch holds its own partitions alone; the idle checks see the others."""
    name, stored = worker_group.log(10, 2)
    run = worker_group.worker(name)
    with worker_group.stream(name, 1, rate=1000) as stream:
        worker_group.wait_for_position(name, 10, partition=1)
        run.seen.wait_for(events.Committed, count=5)
        mark = run.seen.mark()
        worker_group.ledger.reset_offset(name, 1, 10, log=None, reason="to where it is: the claim is another one")
        run.seen.wait_for(events.Activated, lambda e: e.partition == Partition(name, 1), since=mark)
    stored += [*stream.stored, *worker_group.produce(name, 10, partition=1)]
    worker_group.wait_until_caught_up(name, stored)
    run.stop()
    worker_group.record_table.assert_holds(name, stored)


def test_a_pause_refuses_it(worker_group: WorkerGroup) -> None:
    """I5: nothing is written from then on until the group is resumed."""
    small_batch = SmallBatch(worker_group, events.BatchOpened)
    worker_group.ledger.pause(reason="a migration")
    small_batch.gate.open()
    small_batch.run.seen.wait_for(events.Paused, since=small_batch.mark)
    worker_group.record_table.assert_holds(small_batch.name, small_batch.stored[:10])
    worker_group.ledger.resume()
    small_batch.finish()


def test_a_newer_handler_refuses_it(worker_group: WorkerGroup) -> None:
    small_batch = SmallBatch(worker_group, events.BatchOpened)
    seize(worker_group, rival(worker_group, version=2), small_batch.name, 0)
    small_batch.gate.open()
    small_batch.run.ends_with(HandlerOutdated, "version 2, but this process runs version 1")
    worker_group.record_table.assert_holds(small_batch.name, small_batch.stored[:10])


def test_i4_a_topic_recreated_after_the_read_rolls_it_back(worker_group: WorkerGroup) -> None:
    """I4: the id is asked for after the last read; COMMIT waits for the answer."""
    small_batch = SmallBatch(worker_group, events.ChunkRead)
    worker_group.delete_topic(small_batch.name)
    worker_group.topic(name=small_batch.name)
    new = worker_group.produce(small_batch.name, (f"new {n}" for n in range(50)))
    small_batch.gate.open()
    stopped = small_batch.run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, TopicRecreated))
    assert stopped.partition == Partition(small_batch.name, 0)
    worker_group.record_table.assert_holds(small_batch.name, small_batch.stored[:10])
    topic_id = worker_group.topic_id(small_batch.name)
    worker_group.ledger.reset_offset(
        small_batch.name, 0, 0, topic_id=topic_id, log=None, reason="restart", lost="topic recreated"
    )
    small_batch.run.finish(small_batch.name, 50)
    assert worker_group.record_table.written(small_batch.name) == [*small_batch.stored[:10], *new]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partition_that_is_taken_meanwhile(worker_group: WorkerGroup, protocol: str) -> None:
    """I2, I3: the next owner's claim waits for the rows, or refuses them."""
    kafka = PROTOCOLS[protocol]
    name = worker_group.topic(2)
    with worker_group.stream(name, 2, rate=200) as stream:
        later = threading.Event()
        gate = Gate(events.Held, lambda _: later.is_set())
        first = worker_group.worker(name, kafka=kafka, observe=[gate])
        first.seen.wait_for(events.Committed, count=5)
        later.set()
        gate.wait()
        second = worker_group.worker(name, kafka=kafka)
        gate.open()
        second.seen.wait_for(events.Committed, count=5)
        first.seen.wait_for(events.Revoked)
    worker_group.wait_until_caught_up(name, stream.stored)
    first.stop()
    second.stop()
    worker_group.record_table.assert_holds(name, stream.stored)
