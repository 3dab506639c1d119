"""The parent of ``run --workers``: what it does with children that end, hang or cannot be started."""

from __future__ import annotations

import logging
import signal

import pytest

from seekpoint.cli import supervisor
from seekpoint.cli.exit_codes import USAGE
from seekpoint.cli.options import address_of_worker
from seekpoint.cli.supervisor import Supervisor
from seekpoint.errors import ConfigError


class Child:
    """A worker process that ends when the test says so."""

    def __init__(self, pid: int, started_at: float) -> None:
        self.pid, self.started_at = pid, started_at
        self.was_live = self.hangs = False
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def kill_if_hanging(self) -> bool:
        return self.hangs

    def send(self, number: int) -> None:
        self.signals.append(number)


class Parent:
    """A supervisor of such children, on a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.now, self.children, self.refuses = 1000.0, list[Child](), False
        monkeypatch.setattr(supervisor, "monotonic", lambda: self.now)
        self.supervisor = Supervisor(self._start, count)  # type: ignore[arg-type]
        self.step()

    def _start(self, number: int) -> Child:
        if self.refuses:
            raise BlockingIOError("no more processes")
        self.children.append(Child(100 + len(self.children), self.now))
        return self.children[-1]

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.supervisor.step()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_waits_grow_and_begin_again_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = Parent(monkeypatch, 1)
    for _ in range(8):
        parent.children[-1].code = 1
        parent.step()
        parent.step(30.1)
    parent.now += supervisor.STEADY + 1
    parent.children[-1].code = 1
    parent.step()
    assert [text.split()[-2] for text in errors(caplog)] == [
        *("0.5", "1.0", "2.0", "4.0", "8.0", "16.0", "30.0", "30.0"), "0.5",
    ]  # fmt: skip


def test_a_worker_that_ends_starts_again_after_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Parent(monkeypatch, 2)
    parent.children[0].code = -9
    parent.step()
    parent.step(0.4)
    assert len(parent.children) == 2
    parent.step(0.2)
    assert len(parent.children) == 3
    assert not any(child.signals for child in parent.children)


def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = Parent(monkeypatch, 1)
    parent.refuses = True
    parent.children[0].code = 1
    parent.step()
    parent.step(0.6)
    assert errors(caplog)[1:] == ["worker 1 cannot be started: no more processes; next attempt in 1.0 s"]
    parent.refuses = False
    parent.step(1.1)
    assert len(parent.children) == 2


def test_a_wrong_command_line_ends_all_and_the_first_signal_then_aborts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = Parent(monkeypatch, 2)
    parent.children[0].code = USAGE
    parent.step()
    parent.step(100)
    assert [child.signals for child in parent.children] == [[], [signal.SIGTERM]]
    parent.supervisor.end()
    assert parent.children[1].signals == [signal.SIGTERM]
    parent.supervisor.end()
    assert parent.children[1].signals == [signal.SIGTERM] * 2


def test_signals_drain_then_abort_and_nothing_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Parent(monkeypatch, 2)
    parent.supervisor.end()
    parent.children[0].code = 0
    parent.step(100)
    parent.supervisor.end()
    assert [child.signals for child in parent.children] == [[signal.SIGTERM], [signal.SIGTERM] * 2]


def test_lines_have_the_worker_its_pid_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = Parent(monkeypatch, 2)
    parent.children[0].code = 1
    parent.step()
    (line,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert line.getMessage() == "worker 1 ended with exit code 1; it starts again in 0.5 s"
    assert {name: getattr(line, name) for name in ("worker", "pid", "code")} == {"worker": 1, "pid": 100, "code": 1}


def test_workers_listen_on_ports_that_follow_one_another() -> None:
    addresses = [address_of_worker("127.0.0.1:8080", number) for number in (1, 2, 10)]
    assert addresses == ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8089"]
    assert address_of_worker("[::1]:8080", 2) == "[::1]:8081"
    with pytest.raises(ConfigError, match="worker 2 of --workers cannot listen on port 65536; choose a port from 1 to"):
        address_of_worker("127.0.0.1:65535", 2)
    with pytest.raises(ConfigError, match="choose a port from 1 to 65534"):
        address_of_worker("127.0.0.1:0", 2)
