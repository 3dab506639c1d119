"""Replays beside workers, operators that are killed, and COMMITs whose answer is lost: each is applied once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from seekpoint import events
from seekpoint.admin import Replayed
from seekpoint.errors import Fenced
from seekpoint.pipeline.policy import Limits
from seekpoint.records import State
from support.dead_letter_group import Depot, Halt, orders
from support.events import Run
from support.fixtures import NewEngine
from support.ledger_desk import wait_until_blocked
from support.postgres_proxy import PostgresProxy, When

ROOT = Path(__file__).resolve().parents[1]


# -- beside a worker --------------------------------------------------------------------------------------------


BESIDE = ("seekpoint_engine", "seekpoint_schema", "topic", "produce", "run_worker")


class Beside:
    """A depot whose group has a real worker, which has dead-lettered one record."""

    def __init__(self, depot: Depot, produce: Callable[..., object], run_worker: Callable[..., Run]) -> None:
        self.depot, self._produce = depot, produce
        depot.bad = {b"bad"}
        self.run = run_worker(depot.pipeline(), limits=Limits(idle_check=0.1))
        self.produce(b"a", b"bad", b"c")
        self.run.reached(depot.topic, 3)
        depot.bad.clear()
        (self.letter,) = depot.open()

    def produce(self, *values: bytes) -> None:
        self._produce(self.depot.topic, values, partition=0)


@pytest.fixture
def beside(request: pytest.FixtureRequest, group: str) -> Beside:
    engine, schema, topic, produce, run_worker = map(request.getfixturevalue, BESIDE)
    depot = Depot(engine, schema, group, topic()).create()
    return Beside(depot, produce, run_worker)


def test_a_replay_waits_for_the_workers_batch(beside: Beside, elsewhere: ThreadPoolExecutor) -> None:
    """I1, I2: the partition's row is locked first: one comes before the other, and the claim stays the worker's."""
    depot = beside.depot
    depot.on_record = halt = Halt()
    beside.produce(b"d")
    halt.wait()
    replay = elsewhere.submit(depot.redrive().replay, beside.letter.id)
    wait_until_blocked(depot.engine, by=halt.pid)
    halt.open()
    assert replay.result(30).is_applied
    beside.produce(b"e")
    beside.run.reached(depot.topic, 5)
    assert depot.applied() == [0, 2, 3, 1, 4]
    assert beside.run.seen.all(events.Refused) == []


def test_a_workers_batch_waits_for_a_replay(beside: Beside, elsewhere: ThreadPoolExecutor) -> None:
    """I1, I2: and then commits, not refused: its position has not moved."""
    depot = beside.depot
    depot.on_record = halt = Halt()
    replay = elsewhere.submit(depot.redrive().replay, beside.letter.id)
    halt.wait()
    beside.produce(b"d")
    wait_until_blocked(depot.engine, by=halt.pid)
    halt.open()
    assert replay.result(30).is_applied
    beside.run.reached(depot.topic, 4)
    assert depot.applied() == [0, 2, 1, 3]
    assert beside.run.seen.all(events.Refused) == []


def test_a_replay_does_not_wait_for_ever(beside: Beside) -> None:
    """I1: a batch that takes longer than anybody waits: nothing is written, and it is said why."""
    depot = beside.depot
    depot.on_record = halt = Halt()
    beside.produce(b"d")
    halt.wait()
    impatient = depot.redrive(transaction_age=0.3)
    with pytest.raises(OperationalError, match="lock timeout") as late:
        impatient.replay(beside.letter.id)
    assert late.value.__notes__ == [
        "a batch of this partition is being written, or another session has locked it: try again"
    ]
    halt.open()
    beside.run.reached(depot.topic, 4)
    assert depot.redrive().replay(beside.letter.id).is_applied
    assert depot.applied() == [0, 2, 3, 1]


# -- killed -----------------------------------------------------------------------------------------------------

OPERATOR = """
import json, sys, threading
from sqlalchemy import create_engine
from support.dead_letter_group import Depot
from seekpoint.ledger.dead_letters import DeadLetters

what = json.loads(sys.argv[1])
depot = Depot(create_engine(what["dsn"]), what["schema"])
close = DeadLetters.close

def stop(*_):
    print("here", flush=True)
    threading.Event().wait()

def close_and_stop(*given, **options):
    close(*given, **options)
    stop()

if what["at"] == "handler":
    depot.on_record = stop
else:
    DeadLetters.close = close_and_stop
depot.redrive("killed").replay(what["id"])
"""


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", ["handler", "closed"])
def test_an_operator_killed_in_mid_replay(depot: Depot, at: str) -> None:
    """I1: nothing of it remains, and the next one applies it once."""
    letter = depot.dead_lettered(b"b")
    dsn = depot.engine.url.render_as_string(hide_password=False)
    what = {"dsn": dsn, "schema": depot.schema, "id": letter.id, "at": at}
    with subprocess.Popen(
        [sys.executable, "-c", OPERATOR, json.dumps(what)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as operator:
        assert operator.stdout is not None
        try:
            assert operator.stdout.readline() == b"here\n"
            assert (depot.applied(), depot.states()) == ([], {0: "dead_lettered"})
        finally:
            operator.kill()
    assert depot.redrive().replay(letter.id).is_applied
    now = depot.redrive().get(letter.id)
    assert (now.closed_by, now.replays, depot.applied()) == ("ada", 1, [0])
    assert [action[2] for action in depot.actions()] == ["ada"]


# -- COMMIT without an answer -----------------------------------------------------------------------------------


class Wire:
    """An operator whose COMMIT meets a fault."""

    def __init__(self, depot: Depot, proxy: PostgresProxy, elsewhere: ThreadPoolExecutor, engine: Engine) -> None:
        self.depot, self.proxy, self._elsewhere, self._engine = depot, proxy, elsewhere, engine
        self.letter = depot.dead_lettered(b"b")
        depot.batches.clear()
        depot.on_record = self.halt = Halt()

    def replay(self, when: When) -> Future[Replayed]:
        """Begin; the handler stands still, and the fault is armed."""
        future = self._elsewhere.submit(self.depot.redrive(engine=self._engine).replay, self.letter.id)
        self.halt.wait()
        self.proxy.arm(when)
        return future

    def holds(self, by: str, calls: int) -> None:
        """Applied once, closed once, by this one; the handler was called so often."""
        now = self.depot.redrive().get(self.letter.id)
        assert (now.state, now.closed_by, now.replays) == (State.REPLAYED, by, 1)
        assert (self.depot.applied(), len(self.depot.batches)) == ([0], calls)
        assert [action[2] for action in self.depot.actions()] == [by]


@pytest.fixture
def wire(depot: Depot, proxy: PostgresProxy, elsewhere: ThreadPoolExecutor, new_engine: NewEngine) -> Wire:
    return Wire(depot, proxy, elsewhere, new_engine(proxy.dsn))


@pytest.mark.parametrize(("when", "calls"), [("after_commit", 1), ("before_commit", 2)])
def test_a_commit_without_an_answer_is_asked_for(wire: Wire, when: When, calls: int) -> None:
    """I1: the dead letter shows it: closed by this very transaction, or open, and only then tried again."""
    replay = wire.replay(when)
    wire.halt.open()
    assert replay.result(30).is_applied
    assert wire.proxy.fired.is_set()
    wire.holds("ada", calls)


def test_a_commit_in_doubt_is_waited_for(wire: Wire) -> None:
    """I1: it arrives while the operator asks: the question waits under the lock until it has taken effect."""
    replay = wire.replay("after_commit_delayed")
    wire.halt.open()
    assert wire.proxy.fired.wait(20)
    wait_until_blocked(wire.depot.engine, by=wire.halt.pid)
    assert wire.depot.applied() == []
    assert wire.proxy.deliver() == "COMMIT"
    assert replay.result(30).is_applied
    wire.holds("ada", 1)


def test_a_commit_that_never_arrived_and_another_operator(wire: Wire, elsewhere: ThreadPoolExecutor) -> None:
    """I1: the error of the first says that the other operator has replayed it."""
    replay = wire.replay("before_commit")
    other = elsewhere.submit(wire.depot.redrive("bob").replay, wire.letter.id)
    wait_until_blocked(wire.depot.engine, by=wire.halt.pid)
    wire.halt.open()
    assert other.result(30).is_applied
    with pytest.raises(Fenced, match="was replayed by bob"):
        replay.result(30)
    wire.holds("bob", 2)


@pytest.mark.long
def test_a_server_that_never_comes_back(wire: Wire) -> None:
    """I1: the server cannot be asked: the error says how to find out, and that to try again is safe."""
    replay = wire.replay("after_commit")
    wire.proxy.refuse()
    wire.halt.open()
    with pytest.raises(OperationalError) as lost:
        replay.result(60)
    assert f"`show {wire.letter.id}` says whether" in lost.value.__notes__[0]
    with pytest.raises(Fenced, match="was replayed by ada"):
        wire.depot.redrive("bob").replay(wire.letter.id)
    wire.holds("ada", 1)


def arm_after_the_close(engine: Engine, proxy: PostgresProxy, faults: Iterable[When]) -> None:
    """The COMMIT of each transaction that closes a dead letter, and no other, meets the next fault."""
    left = iter(faults)

    @event.listens_for(engine, "after_cursor_execute")
    def arm(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and "dead_letter" in statement and (when := next(left, None)) is not None:
            proxy.arm(when)


def test_a_discard_without_an_answer_is_asked_for(depot: Depot, proxy: PostgresProxy, new_engine: NewEngine) -> None:
    """I4: closed once, and reported so, whichever side of COMMIT the connection broke on."""
    depot.bad = {b"b"}
    letters, engine = depot.park(*orders(b"b", b"b")), new_engine(proxy.dsn)
    arm_after_the_close(engine, proxy, ["after_commit", "before_commit"])
    for letter in letters:
        desk = depot.redrive(engine=engine)
        desk.get(letter.id)
        assert [d.refusal for d in desk.discard(letter.id, reason="no order")] == [None]
        assert proxy.fired.is_set()
    assert (proxy.counts["after_commit"], proxy.counts["before_commit"]) == (1, 1)
    assert depot.states() == {0: "discarded", 1: "discarded"}
    assert [action[0] for action in depot.actions()] == ["discard", "discard"]
    with pytest.raises(Fenced, match=r"was discarded by ada at 20.*: no order"):
        depot.redrive().replay(letters[0].id)
    (again,) = depot.redrive("bob").discard(letters[0].id, reason="no order")
    assert again.refusal is not None
    assert "was discarded by ada" in again.refusal
