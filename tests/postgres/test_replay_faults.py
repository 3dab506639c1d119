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
from support.dead_letter_group import DeadLetterGroup, Halt
from support.events import Run
from support.fixtures import NewEngine
from support.ledger_worker import wait_until_blocked
from support.postgres_proxy import PostgresProxy, When
from support.sink_tables import orders

ROOT = Path(__file__).resolve().parents[1]


# -- beside a worker --------------------------------------------------------------------------------------------


FIXTURES = ("seekpoint_engine", "seekpoint_schema", "topic", "produce", "run_worker")


class RunningGroup:
    """A group that has a real worker, which has dead-lettered one record."""

    def __init__(
        self, dead_letter_group: DeadLetterGroup, produce: Callable[..., object], run_worker: Callable[..., Run]
    ) -> None:
        self.dead_letter_group, self._produce = dead_letter_group, produce
        dead_letter_group.bad = {b"bad"}
        self.run = run_worker(dead_letter_group.pipeline(), limits=Limits(idle_check=0.1))
        self.produce(b"a", b"bad", b"c")
        self.run.reached(dead_letter_group.topic, 3)
        dead_letter_group.bad.clear()
        (self.dead_letter,) = dead_letter_group.open()

    def produce(self, *values: bytes) -> None:
        self._produce(self.dead_letter_group.topic, values, partition=0)


@pytest.fixture
def running_group(request: pytest.FixtureRequest, group: str) -> RunningGroup:
    engine, schema, topic, produce, run_worker = map(request.getfixturevalue, FIXTURES)
    dead_letter_group = DeadLetterGroup(engine, schema, group, topic()).create()
    return RunningGroup(dead_letter_group, produce, run_worker)


def test_a_replay_waits_for_the_workers_batch(running_group: RunningGroup, threads: ThreadPoolExecutor) -> None:
    """I1, I2: the partition's row is locked first: one comes before the other, and the claim stays the worker's."""
    dead_letter_group = running_group.dead_letter_group
    dead_letter_group.on_record = halt = Halt()
    running_group.produce(b"d")
    halt.wait()
    replay = threads.submit(dead_letter_group.new_replay().replay, running_group.dead_letter.id)
    wait_until_blocked(dead_letter_group.engine, by=halt.pid)
    halt.open()
    assert replay.result(30).is_applied
    running_group.produce(b"e")
    running_group.run.reached(dead_letter_group.topic, 5)
    assert dead_letter_group.applied() == [0, 2, 3, 1, 4]
    assert running_group.run.seen.all(events.Refused) == []


def test_a_workers_batch_waits_for_a_replay(running_group: RunningGroup, threads: ThreadPoolExecutor) -> None:
    """I1, I2: and then commits, not refused: its position has not moved."""
    dead_letter_group = running_group.dead_letter_group
    dead_letter_group.on_record = halt = Halt()
    replay = threads.submit(dead_letter_group.new_replay().replay, running_group.dead_letter.id)
    halt.wait()
    running_group.produce(b"d")
    wait_until_blocked(dead_letter_group.engine, by=halt.pid)
    halt.open()
    assert replay.result(30).is_applied
    running_group.run.reached(dead_letter_group.topic, 4)
    assert dead_letter_group.applied() == [0, 2, 1, 3]
    assert running_group.run.seen.all(events.Refused) == []


def test_a_replay_does_not_wait_for_ever(running_group: RunningGroup) -> None:
    """I1: a batch that takes longer than anybody waits: nothing is written, and it is said why."""
    dead_letter_group = running_group.dead_letter_group
    dead_letter_group.on_record = halt = Halt()
    running_group.produce(b"d")
    halt.wait()
    impatient = dead_letter_group.new_replay(transaction_age=0.3)
    with pytest.raises(OperationalError, match="lock timeout") as late:
        impatient.replay(running_group.dead_letter.id)
    assert late.value.__notes__ == [
        "a worker is writing a batch of this partition, or another session has locked it: try again"
    ]
    halt.open()
    running_group.run.reached(dead_letter_group.topic, 4)
    assert dead_letter_group.new_replay().replay(running_group.dead_letter.id).is_applied
    assert dead_letter_group.applied() == [0, 2, 3, 1]


# -- killed -----------------------------------------------------------------------------------------------------

OPERATOR = """
import json, sys, threading
from sqlalchemy import create_engine
from support.dead_letter_group import DeadLetterGroup
from seekpoint.ledger.dead_letters import DeadLetters

what = json.loads(sys.argv[1])
dead_letter_group = DeadLetterGroup(create_engine(what["dsn"]), what["schema"])
close = DeadLetters.close

def stop(*_):
    print("here", flush=True)
    threading.Event().wait()

def close_and_stop(*given, **options):
    close(*given, **options)
    stop()

if what["step"] == "handler":
    dead_letter_group.on_record = stop
else:
    DeadLetters.close = close_and_stop
dead_letter_group.new_replay("killed").replay(what["id"])
"""


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["handler", "closed"])
def test_an_operator_killed_in_mid_replay(dead_letter_group: DeadLetterGroup, step: str) -> None:
    """I1: nothing of it remains, and the next one applies it once."""
    dead_letter = dead_letter_group.dead_lettered(b"b")
    dsn = dead_letter_group.engine.url.render_as_string(hide_password=False)
    what = {"dsn": dsn, "schema": dead_letter_group.schema, "id": dead_letter.id, "step": step}
    with subprocess.Popen(
        [sys.executable, "-c", OPERATOR, json.dumps(what)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as operator:
        assert operator.stdout is not None
        try:
            assert operator.stdout.readline() == b"here\n"
            assert (dead_letter_group.applied(), dead_letter_group.states()) == ([], {0: "dead_lettered"})
        finally:
            operator.kill()
    assert dead_letter_group.new_replay().replay(dead_letter.id).is_applied
    now = dead_letter_group.new_replay().get(dead_letter.id)
    assert (now.closed_by, now.replays, dead_letter_group.applied()) == ("ada", 1, [0])
    assert [action[2] for action in dead_letter_group.actions()] == ["ada"]


# -- COMMIT without an answer -----------------------------------------------------------------------------------


class FaultyReplay:
    """An operator whose COMMIT meets a fault."""

    def __init__(
        self, dead_letter_group: DeadLetterGroup, proxy: PostgresProxy, threads: ThreadPoolExecutor, engine: Engine
    ) -> None:
        self.dead_letter_group, self.proxy, self._threads, self._engine = dead_letter_group, proxy, threads, engine
        self.dead_letter = dead_letter_group.dead_lettered(b"b")
        dead_letter_group.batches.clear()
        dead_letter_group.on_record = self.halt = Halt()

    def replay(self, when: When) -> Future[Replayed]:
        """Begin; the handler stands still, and the fault is armed."""
        future = self._threads.submit(
            self.dead_letter_group.new_replay(engine=self._engine).replay, self.dead_letter.id
        )
        self.halt.wait()
        self.proxy.arm(when)
        return future

    def holds(self, by: str, calls: int) -> None:
        """Applied once, closed once, by this one; the handler was called so often."""
        now = self.dead_letter_group.new_replay().get(self.dead_letter.id)
        assert (now.state, now.closed_by, now.replays) == (State.REPLAYED, by, 1)
        assert (self.dead_letter_group.applied(), len(self.dead_letter_group.batches)) == ([0], calls)
        assert [action[2] for action in self.dead_letter_group.actions()] == [by]


@pytest.fixture
def faulty_replay(
    dead_letter_group: DeadLetterGroup, proxy: PostgresProxy, threads: ThreadPoolExecutor, new_engine: NewEngine
) -> FaultyReplay:
    return FaultyReplay(dead_letter_group, proxy, threads, new_engine(proxy.dsn))


@pytest.mark.parametrize(("when", "calls"), [("after_commit", 1), ("before_commit", 2)])
def test_a_commit_without_an_answer_is_asked_for(faulty_replay: FaultyReplay, when: When, calls: int) -> None:
    """I1: the dead letter shows it: closed by this very transaction, or open, and only then tried again."""
    replay = faulty_replay.replay(when)
    faulty_replay.halt.open()
    assert replay.result(30).is_applied
    assert faulty_replay.proxy.fired.is_set()
    faulty_replay.holds("ada", calls)


def test_a_commit_in_doubt_is_waited_for(faulty_replay: FaultyReplay) -> None:
    """I1: it arrives while the operator asks: the question waits under the lock until it has taken effect."""
    replay = faulty_replay.replay("after_commit_delayed")
    faulty_replay.halt.open()
    faulty_replay.proxy.wait_until_fired()
    wait_until_blocked(faulty_replay.dead_letter_group.engine, by=faulty_replay.halt.pid)
    assert faulty_replay.dead_letter_group.applied() == []
    assert faulty_replay.proxy.deliver() == "COMMIT"
    assert replay.result(30).is_applied
    faulty_replay.holds("ada", 1)


def test_a_commit_that_never_arrived_and_another_operator(
    faulty_replay: FaultyReplay, threads: ThreadPoolExecutor
) -> None:
    """I1: the error of the first says that the other operator has replayed it."""
    replay = faulty_replay.replay("before_commit")
    other = threads.submit(faulty_replay.dead_letter_group.new_replay("bob").replay, faulty_replay.dead_letter.id)
    wait_until_blocked(faulty_replay.dead_letter_group.engine, by=faulty_replay.halt.pid)
    faulty_replay.halt.open()
    assert other.result(30).is_applied
    with pytest.raises(Fenced, match="was replayed by bob"):
        replay.result(30)
    faulty_replay.holds("bob", 2)


@pytest.mark.long
def test_a_server_that_never_comes_back(faulty_replay: FaultyReplay) -> None:
    """I1: the server cannot be asked: the error says how to find out, and that to try again is safe."""
    replay = faulty_replay.replay("after_commit")
    faulty_replay.proxy.refuse()
    faulty_replay.halt.open()
    with pytest.raises(OperationalError) as lost:
        replay.result(60)
    assert f"`seekpoint dead-letters show {faulty_replay.dead_letter.id}` shows it" in lost.value.__notes__[0]
    with pytest.raises(Fenced, match="was replayed by ada"):
        faulty_replay.dead_letter_group.new_replay("bob").replay(faulty_replay.dead_letter.id)
    faulty_replay.holds("ada", 1)


def arm_after_the_close(engine: Engine, proxy: PostgresProxy, faults: Iterable[When]) -> None:
    """The COMMIT of each transaction that changes a dead letter, and no other, meets the next fault."""
    left = iter(faults)

    @event.listens_for(engine, "after_cursor_execute")
    def arm(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE") and "dead_letter" in statement and (when := next(left, None)) is not None:
            proxy.arm(when)


def test_a_discard_without_an_answer_is_asked_for(
    dead_letter_group: DeadLetterGroup, proxy: PostgresProxy, new_engine: NewEngine
) -> None:
    """I4: closed once, and reported so, whichever side of COMMIT the connection broke on."""
    dead_letter_group.bad = {b"b"}
    dead_letters, engine = dead_letter_group.park(*orders(b"b", b"b")), new_engine(proxy.dsn)
    arm_after_the_close(engine, proxy, ["after_commit", "before_commit"])
    for dead_letter in dead_letters:
        replay = dead_letter_group.new_replay(engine=engine)
        replay.get(dead_letter.id)
        assert [d.refusal for d in replay.discard(dead_letter.id, reason="no order")] == [None]
        assert proxy.fired.is_set()
    assert (proxy.counts["after_commit"], proxy.counts["before_commit"]) == (1, 1)
    assert dead_letter_group.states() == {0: "discarded", 1: "discarded"}
    assert [action[0] for action in dead_letter_group.actions()] == ["discard", "discard"]
    with pytest.raises(Fenced, match=r"was discarded by ada at 20.*: no order"):
        dead_letter_group.new_replay().replay(dead_letters[0].id)
    (again,) = dead_letter_group.new_replay("bob").discard(dead_letters[0].id, reason="no order")
    assert again.refusal is not None
    assert "was discarded by ada" in again.refusal


def test_a_replay_that_failed_again_counts_once_without_an_answer(
    dead_letter_group: DeadLetterGroup, proxy: PostgresProxy, new_engine: NewEngine
) -> None:
    """Its error is stored once, whichever side of COMMIT the connection broke on."""
    dead_letter, engine = dead_letter_group.dead_lettered(b"b"), new_engine(proxy.dsn)
    dead_letter_group.bad = {b"b"}
    arm_after_the_close(engine, proxy, ["after_commit", "before_commit"])
    for replays in (1, 2):
        replay = dead_letter_group.new_replay(engine=engine)
        assert replay.replay(dead_letter.id).failure is not None
        assert replay.get(dead_letter.id).replays == replays
    assert (proxy.counts["after_commit"], proxy.counts["before_commit"]) == (1, 1)
    assert dead_letter_group.states() == {0: "dead_lettered"}
