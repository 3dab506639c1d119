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
from support.kafka_postgres import PROTOCOLS, Scene
from support.ledger_desk import scalar
from support.manual_worker import rival, seize
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import until

pytestmark = [
    pytest.mark.usefixtures("short_backoff"),
    pytest.mark.pins("batch", "small_batch", "pool"),
]

SENT = "bool_and(c.relkind"  # in the last statement that leaves with the rows; step by step, advance is the last one


class Small:
    """A worker that has applied ten records, and waits at an event of a small batch of five more."""

    def __init__(self, scene: Scene, at: type[events.Event], **options: Any) -> None:
        later = threading.Event()
        self.scene, self.gate = scene, Gate(at, lambda _: later.is_set())
        self.name, self.stored = scene.log(10)
        self.run = scene.worker(self.name, observe=[self.gate], **options)
        self.run.reached(self.name, 10)
        later.set()
        self.stored += scene.produce(self.name, 5)
        self.gate.wait()
        self.mark = self.run.seen.mark()

    def finish(self) -> None:
        """Five more records come; each of all is there once."""
        self.gate.open()
        self.stored += self.scene.produce(self.name, 5)
        self.run.finish(self.name, 20)
        self.scene.book.assert_holds(self.name, self.stored)
        assert self.scene.positions() == {Partition(self.name, 0): 20}


def backend(scene: Scene) -> int:
    """The session that has sent a small batch, and waits with it in its transaction."""
    query = (
        "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE state = 'idle in transaction' "
        f"AND application_name LIKE 'seekpoint %{scene.group[:20]}%' AND strpos(query, '{SENT}') > 0"
    )
    return int(until(lambda: scalar(scene.engine, query), "a small batch in its transaction"))


# -- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["BatchOpened", "Held", "Applied", "Advanced", "Committed"])
def test_a_worker_killed_at_each_step(scene: Scene, step: str) -> None:
    """I1: rows and offset are there together or not at all; from Held on, both are in the open transaction."""
    name, stored = scene.log(10)
    own: dict[str, Any] = {"partitions": [(name, 0)]}  # no group, which would wait for the dead
    process = scene.worker_process(name, stop_at=(step, 2), **own)
    process.wait_for("Committed")
    stored += scene.produce(name, 5)
    process.wait_until_stopped()
    if step in {"Held", "Applied", "Advanced"}:
        backend(scene)
    process.kill()
    heir = scene.worker(name, **own)
    stored += scene.produce(name, 5)
    heir.finish(name, 20)
    scene.book.assert_holds(name, stored)
    assert scene.positions() == {Partition(name, 0): 20}


# -- the connection ----------------------------------------------------------------------------------------------


@pytest.mark.repeats("statement")
@pytest.mark.parametrize("statement", ["BEGIN", "locked", "book", SENT, "COMMIT"])
def test_the_connection_is_cut_at_each_statement(scene: Scene, proxy: PostgresProxy, statement: str) -> None:
    """I1: whichever statement was the last to arrive."""
    small = Small(scene, events.BatchOpened, engine=proxy.dsn)
    proxy.arm("at_statement", statement, session=MOVES)  # the worker's: its status has another one
    small.gate.open()
    assert proxy.fired.wait(20), f"no statement with {statement!r} came: the cut was not made"
    small.run.seen.wait_for((events.DatabaseTrouble, events.CommitUnknown), since=small.mark)
    small.finish()
    assert proxy.counts["at_statement"] == 1


@pytest.mark.repeats("when")
@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_commit_delayed"])
def test_a_commit_without_an_answer(scene: Scene, proxy: PostgresProxy, when: Any) -> None:
    """I1, I3: taken effect, not taken effect, in doubt: the ledger says which."""
    small = Small(scene, events.Advanced, engine=proxy.dsn, limits=Limits(claim_wait=20.0))
    pid = backend(scene)
    proxy.arm(when, MOVES)
    small.gate.open()
    assert proxy.fired.wait(20)
    small.run.seen.wait_for(events.CommitUnknown, since=small.mark)
    if when == "after_commit_delayed":
        until(lambda: blocked_by(scene, pid), "the worker to ask the ledger")
        assert proxy.deliver() == "COMMIT"
    if when == "before_commit":
        assert small.run.seen.wait_for(events.BatchOpened, since=small.mark).attempt == 2
    else:
        assert small.run.seen.wait_for(events.Resynced, since=small.mark).cause == "reply lost"
    small.finish()


def blocked_by(scene: Scene, pid: int) -> bool:
    return bool(scalar(scene.engine, f"SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))"))


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", [events.Held, events.Applied, events.Advanced])
def test_a_backend_that_is_terminated_is_replaced(scene: Scene, step: type[events.Event]) -> None:
    small = Small(scene, step)
    assert scalar(scene.engine, "SELECT pg_terminate_backend(:pid)", pid=backend(scene))
    small.gate.open()
    small.run.seen.wait_for(events.DatabaseTrouble, since=small.mark)
    small.finish()


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", [events.BatchOpened, events.Advanced])
def test_postgres_is_away(scene_on: Callable[..., Scene], own_postgres: PostgresServer, step: Any) -> None:
    """I1: before the first trip, and while COMMIT is sent."""
    small = Small(scene_on(postgres=own_postgres), step)
    own_postgres.kill()
    small.gate.open()
    small.run.seen.wait_for(events.DatabaseTrouble, lambda e: e.wait > 0, since=small.mark)
    assert bool(small.run.seen.all(events.CommitUnknown)) == (step is events.Advanced)
    own_postgres.start()
    small.run.seen.wait_for(events.Recovered, since=small.mark)
    small.finish()


# -- refusals ----------------------------------------------------------------------------------------------------


def test_another_claim_refuses_it(scene: Scene) -> None:
    """I2: the rows have left with the statement that is refused, and none of them is written."""
    small = Small(scene, events.BatchOpened)
    seize(scene, rival(scene), small.name, 0)
    small.gate.open()
    assert "rows held: 0" in small.run.seen.wait_for(events.Refused, since=small.mark).reason
    small.run.seen.wait_for(events.ClaimLost, since=small.mark)
    small.finish()


def test_a_skip_refuses_it(scene: Scene) -> None:
    """I4, I5: what is skipped is not applied, though it was read already."""
    small = Small(scene, events.BatchOpened)
    scene.ledger.reset_offset(small.name, 0, 15, log=None, reason="known to be bad", lost="skipped")
    small.gate.open()
    small.run.seen.wait_for(events.Refused, since=small.mark)
    del small.stored[10:]
    small.finish()


def test_a_reset_of_a_quiet_partition_is_obeyed_while_another_is_busy(scene: Scene) -> None:
    """I5: a small batch holds its own partitions alone; the idle checks see the others."""
    name, stored = scene.log(10, 2)
    run = scene.worker(name)
    with scene.stream(name, 1, rate=1000) as stream:
        scene.wait_for_position(name, 10, partition=1)
        run.seen.wait_for(events.Committed, count=5)
        mark = run.seen.mark()
        scene.ledger.reset_offset(name, 1, 10, log=None, reason="to where it is: the claim is another one")
        run.seen.wait_for(events.Activated, lambda e: e.partition == Partition(name, 1), since=mark)
    stored += [*stream.stored, *scene.produce(name, 10, partition=1)]
    scene.wait_until_caught_up(name, stored)
    run.stop()
    scene.book.assert_holds(name, stored)


def test_a_pause_refuses_it(scene: Scene) -> None:
    """I5: nothing is written from then on until the group is resumed."""
    small = Small(scene, events.BatchOpened)
    scene.ledger.pause(reason="a migration")
    small.gate.open()
    small.run.seen.wait_for(events.Paused, since=small.mark)
    scene.book.assert_holds(small.name, small.stored[:10])
    scene.ledger.resume()
    small.finish()


def test_a_newer_handler_refuses_it(scene: Scene) -> None:
    small = Small(scene, events.BatchOpened)
    seize(scene, rival(scene, version=2), small.name, 0)
    small.gate.open()
    small.run.seen.wait_for(events.WorkerStopped)
    with pytest.raises(HandlerOutdated, match="version 2, this process runs version 1"):
        small.run.stop()
    scene.book.assert_holds(small.name, small.stored[:10])


def test_i4_a_topic_recreated_after_the_read_rolls_it_back(scene: Scene) -> None:
    """I4: the id is asked for after the last read; COMMIT waits for the answer."""
    small = Small(scene, events.ChunkRead)
    scene.delete_topic(small.name)
    scene.topic(name=small.name)
    new = scene.produce(small.name, (f"new {n}" for n in range(50)))
    small.gate.open()
    stopped = small.run.seen.wait_for(events.PartitionStopped, lambda e: isinstance(e.error, TopicRecreated))
    assert stopped.partition == Partition(small.name, 0)
    scene.book.assert_holds(small.name, small.stored[:10])
    topic_id = scene.topic_id(small.name)
    scene.ledger.reset_offset(small.name, 0, 0, topic_id=topic_id, log=None, reason="restart", lost="topic recreated")
    small.run.finish(small.name, 50)
    assert scene.book.written(small.name) == [*small.stored[:10], *new]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partition_that_is_taken_meanwhile(scene: Scene, protocol: str) -> None:
    """I2, I3: the next owner's claim waits for the rows, or refuses them."""
    kafka = PROTOCOLS[protocol]
    name = scene.topic(2)
    with scene.stream(name, 2, rate=200) as stream:
        later = threading.Event()
        gate = Gate(events.Held, lambda _: later.is_set())
        first = scene.worker(name, kafka=kafka, observe=[gate])
        first.seen.wait_for(events.Committed, count=5)
        later.set()
        gate.wait()
        second = scene.worker(name, kafka=kafka)
        gate.open()
        second.seen.wait_for(events.Committed, count=5)
        first.seen.wait_for(events.Revoked)
    scene.wait_until_caught_up(name, stream.stored)
    first.stop()
    second.stop()
    scene.book.assert_holds(name, stream.stored)
