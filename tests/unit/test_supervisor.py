"""The parent of ``run --workers``: what it does with children that end, hang, join or cannot be started."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint.cli import child_process, supervisor
from seekpoint.cli.child_process import ChildCommand, WorkerProcess
from seekpoint.cli.errors import USAGE
from seekpoint.cli.supervisor import Supervisor
from seekpoint.metrics.processes import ProcessTotals

READY = {"live": True, "ready": True, "stale": False}


class Child:
    """A worker process as the test wants it."""

    def __init__(self, pid: int, generation: int, clock: Clock) -> None:
        self.pid, self.generation, self._clock, self._since = pid, generation, clock, clock.now
        self.state: Mapping[str, Any] = {}
        self.has_joined = self.is_final = False
        self.groups: list[str] = []
        self.joining_for = 0.0
        self.killed_at: float | None = None
        self.hangs: str | None = None
        self.code: int | None = None
        self.heard: list[int] = []

    @property
    def age(self) -> float:
        return self._clock.now - self._since

    def joins(self) -> None:
        self.state, self.has_joined, self.groups = READY, True, ["shop"]

    def ends(self, code: int, *, final: bool = False) -> None:
        self.code, self.is_final = code, final

    def poll(self) -> int | None:
        return self.code

    def why_replace(self) -> str | None:
        return self.hangs

    def why_ended(self, code: int) -> str:
        return f"the reason of {self.pid}"

    def send(self, number: int) -> None:
        self.heard.append(number)

    def kill(self) -> None:
        self.killed_at = self._clock.now
        self.send(signal.SIGKILL)

    def close(self) -> None:
        pass


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Parent:
    """A supervisor of children that the test ends."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.all, self.refusing = clock, list[Child](), False
        self.supervisor = Supervisor(self._start, count)  # type: ignore[arg-type]
        self.step()
        for child in self.all:
            child.joins()
        self.step()

    def _start(self, generation: int) -> Child:
        if self.refusing:
            raise BlockingIOError("no more processes")
        self.all.append(Child(100 + len(self.all), generation, self.clock))
        return self.all[-1]

    def step(self, seconds: float = 0.0, numbers: bytes = b"") -> None:
        self.clock.now += seconds
        self.supervisor.step(numbers)

    def hang_up(self) -> None:
        self.step(numbers=bytes([signal.SIGHUP]))

    def is_live(self) -> bool:
        return self.supervisor.state().live

    @property
    def pids(self) -> list[int]:
        return [one["pid"] for one in self.supervisor.state().details["workers"]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(supervisor, "monotonic", made)
    return made


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_a_child_that_ends_starts_again_and_the_log_says_why(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    parent = Parent(clock, 2)
    parent.all[0].ends(1)
    parent.step()
    assert errors(caplog) == ["worker 1 ended: the reason of 100; it starts again in 0.5 s"]
    parent.step(0.4)
    assert parent.pids == [None, 101]
    parent.step(0.2)
    assert parent.pids == [102, 101]


def test_waits_grow_and_begin_again_after_a_steady_run(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    parent = Parent(clock, 1)
    for _ in range(8):
        parent.all[-1].ends(1)
        parent.step()
        parent.step(30.1)
    clock.now += supervisor.STEADY + 1
    parent.all[-1].ends(1)
    parent.step()
    assert [text.split()[-2] for text in errors(caplog)] == [
        *("0.5", "1.0", "2.0", "4.0", "8.0", "16.0", "30.0", "30.0"), "0.5",
    ]  # fmt: skip


def test_what_a_restart_does_not_change_ends_all(clock: Clock) -> None:
    parent = Parent(clock, 2)
    parent.all[0].ends(USAGE)
    parent.step()
    assert parent.all[1].heard == [signal.SIGTERM]


def test_in_a_roll_the_new_one_joins_before_the_old_one_leaves(clock: Clock) -> None:
    parent = Parent(clock, 2)
    parent.hang_up()
    old, new = parent.all[:2], parent.all[2:]
    assert [child.generation for child in new] == [1]
    parent.step(5)
    assert old[0].heard == [], "it has not joined"
    new[0].joins()
    parent.step()
    assert (old[0].heard, len(parent.all)) == ([signal.SIGTERM], 3), "the next one begins when this one has left"
    old[0].ends(0)
    parent.step()
    parent.all[3].joins()
    parent.step()
    old[1].ends(0)
    parent.step()
    assert parent.pids == [102, 103]
    parent.step(100)
    assert len(parent.all) == 4


@pytest.mark.parametrize(("code", "ends"), [(USAGE, 1), (1, supervisor.TRIES)])
def test_a_roll_onto_code_that_does_not_start_is_abandoned(
    clock: Clock, caplog: pytest.LogCaptureFixture, code: int, ends: int
) -> None:
    parent = Parent(clock, 2)
    parent.hang_up()
    for _ in range(ends):
        parent.all[-1].ends(code)
        parent.step()
        parent.step(10)
    parent.step(1000)
    assert (parent.pids, len(parent.all)) == ([100, 101], 2 + ends)
    assert not any(child.heard for child in parent.all[:2]), "the old workers stay"
    wanted = f"SIGHUP: abandoned, old workers continue, for the new worker 1 fails: the reason of {101 + ends}"
    assert errors(caplog)[-1] == wanted
    assert parent.is_live()
    parent.hang_up()
    assert len(parent.all) == 3 + ends, "the next SIGHUP tries again"


def test_a_new_child_that_hangs_is_killed_and_the_roll_abandoned(clock: Clock) -> None:
    parent = Parent(clock, 1)
    parent.hang_up()
    parent.all[1].joining_for = supervisor.JOIN + 1
    parent.step()
    assert (parent.all[0].heard, parent.all[1].heard) == ([], [signal.SIGKILL])
    parent.all[1].ends(-9)
    parent.step(100)
    assert parent.pids == [100]


def test_a_new_child_has_its_time_to_join_after_imports_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' modules may take minutes to import, and a server or a reload may be waited for as long."""
    clock, pipes = Clock(), list[int]()
    monkeypatch.setattr(child_process, "monotonic", clock)

    class Process(SimpleNamespace):
        def __init__(self, *_: object, pass_fds: list[int], **__: object) -> None:
            pipes.append(os.dup(pass_fds[0]))
            super().__init__(stdin=io.BytesIO(), poll=lambda: None)

    monkeypatch.setattr(subprocess, "Popen", Process)
    child = WorkerProcess(ChildCommand([]), 0, ProcessTotals())

    def passes(seconds: float, *, waiting: bool | None = None) -> float:
        clock.now += seconds
        if waiting is not None:
            report = {"state": {"live": True}, "joined": False, "waiting": waiting, "groups": ["g"]}
            os.write(pipes[0], json.dumps(report).encode() + b"\n")
        assert child.poll() is None
        return child.joining_for

    assert passes(200) == 0, "it imports"
    assert passes(0, waiting=False) == 0
    assert passes(20, waiting=False) == 20
    assert passes(100, waiting=True) == 0, "it waits for a server"
    assert passes(100, waiting=True) == 0
    assert passes(5, waiting=False) == 0
    assert passes(30, waiting=False) == 30
    os.close(pipes[0])


def test_a_roll_waits_as_long_as_the_new_child_imports_or_waits(clock: Clock) -> None:
    parent = Parent(clock, 1)
    parent.hang_up()
    parent.step(10 * supervisor.JOIN)
    assert (parent.all[0].heard, parent.all[1].heard) == ([], [])
    parent.all[1].joins()
    parent.step()
    assert parent.all[0].heard == [signal.SIGTERM]


def test_a_roll_that_is_abandoned_ends_the_next_workers_new_child(clock: Clock) -> None:
    parent = Parent(clock, 2)
    parent.hang_up()
    parent.all[2].joins()
    parent.step()
    parent.all[0].ends(0)
    parent.step()
    (new,) = parent.all[3:]
    parent.all[2].ends(1, final=True)
    parent.step()
    assert (parent.all[1].heard, new.heard) == ([], [signal.SIGTERM]), "else there were three in place of two"
    new.joins()
    new.ends(0)
    parent.step(1)
    assert parent.pids == [104, 101]
    parent.step(100)
    assert len(parent.all) == 5


def test_the_first_signal_after_a_drain_by_itself_aborts_nothing(clock: Clock) -> None:
    parent = Parent(clock, 2)
    parent.all[0].ends(USAGE)
    parent.step()
    for wanted in ([signal.SIGTERM], [signal.SIGTERM] * 2, [signal.SIGTERM] * 2 + [signal.SIGKILL]):
        parent.step(numbers=bytes([signal.SIGTERM]))
        assert parent.all[1].heard == wanted


def test_a_child_of_before_sighup_that_exits_as_outdated_is_replaced(clock: Clock) -> None:
    parent = Parent(clock, 3)
    parent.hang_up()
    parent.all[3].joins()
    parent.all[2].ends(1, final=True)  # the new version fences it
    parent.step()
    assert len(parent.all) == 5
    assert parent.pids == [103, 101, 104]
    assert parent.all[1].heard == []


def test_old_workers_survive_new_ones_that_end_for_good(clock: Clock) -> None:
    """The code that is there now joins, and fails at its first claim: those that run still do their work."""
    parent = Parent(clock, 2)
    parent.hang_up()
    parent.all[2].joins()
    parent.step()
    parent.all[0].ends(0)
    parent.all[2].ends(1, final=True)
    parent.step()
    parent.step(1)
    assert parent.pids == [103, 101]
    assert parent.all[1].heard == []
    parent.all[3].ends(USAGE)
    parent.all[1].ends(1)
    parent.step()
    assert parent.pids == [None, None]


def test_lines_have_the_worker_its_pid_its_exit_code_and_the_group(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    parent = Parent(clock, 2)
    parent.all[0].ends(1)
    parent.step()
    (line,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    found = {name: getattr(line, name) for name in ("worker", "pid", "code", "group")}
    assert found == {"worker": 1, "pid": 100, "code": 1, "group": "shop"}


def test_it_has_started_once_each_worker_has_been_live(clock: Clock) -> None:
    made = list[Child]()

    def start(generation: int) -> Child:
        made.append(Child(len(made), generation, clock))
        return made[-1]

    parent = Supervisor(start, 2)  # type: ignore[arg-type]
    parent.step()
    assert not parent.has_started
    made[0].joins()
    parent.step()
    assert not parent.has_started
    made[0].ends(1)
    made[1].joins()
    parent.step()
    assert parent.has_started


def test_a_child_that_hangs_is_killed_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    parent = Parent(clock, 1)
    parent.all[0].hangs = "is not live"
    parent.step()
    parent.step()
    assert parent.all[0].heard == [signal.SIGKILL]
    assert errors(caplog) == ["pid 100 is not live: killed"]
    parent.all[0].ends(-9)
    parent.step()
    parent.step(1)
    assert parent.pids == [101]


def test_the_parent_is_not_live_only_where_it_cannot_replace_a_child(clock: Clock) -> None:
    parent = Parent(clock, 1)
    parent.all[0].hangs = "is not live"
    parent.step()
    for _ in range(29):
        parent.step(1)
    assert parent.is_live()
    parent.step(2)
    assert not parent.is_live(), "SIGKILL does not end it"
    parent.all[0].ends(-9)
    parent.refusing = True
    parent.step()
    assert parent.is_live(), "it may start another one"
    for _ in range(40):
        parent.step(1)
    assert not parent.is_live(), "the system starts no process"
    parent.refusing = False
    parent.step(31)
    assert (parent.is_live(), parent.pids) == (True, [101])
    clock.now += 31
    assert not parent.is_live(), "it does not look at its children"


def test_one_that_drains_in_a_roll_is_not_aborted_when_all_drain(clock: Clock) -> None:
    parent = Parent(clock, 1)
    parent.hang_up()
    old, new = parent.all
    new.joins()
    parent.step()
    parent.step(numbers=bytes([signal.SIGTERM]))
    assert (old.heard, new.heard) == ([signal.SIGTERM], [signal.SIGTERM])
    parent.step(numbers=bytes([signal.SIGTERM]))
    assert (old.heard, new.heard) == ([signal.SIGTERM] * 2, [signal.SIGTERM] * 2), "the second time aborts both"


def test_signals_drain_abort_and_kill(clock: Clock) -> None:
    parent = Parent(clock, 1)
    parent.hang_up()
    for _ in range(3):
        parent.step(numbers=bytes([signal.SIGTERM]))
    wanted = [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
    assert [child.heard for child in parent.all] == [wanted, wanted]
