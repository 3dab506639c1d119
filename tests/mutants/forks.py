"""Runs of pytest in forked processes: what a breakage does not change was imported once, before the fork."""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutants.breakage import ROOT

OPTIONS = ["-q", "--no-header", "--assert=plain", "-p", "no:cacheprovider", "--timeout=120"]
# What most of the time before a test's first line goes into. Nothing of seekpoint: a child imports the broken one.
STABLE = (
    "_pytest.assertion.rewrite",
    "alembic.command",
    "anyio.pytest_plugin",
    "confluent_kafka.admin",
    "google.protobuf.descriptor",
    "hypothesis.stateful",
    "msgspec.json",
    "psutil",
    "psycopg.sql",
    "psycopg.types.json",
    "psycopg_binary",
    "pytest_timeout",
    "rich.console",
    "rich.traceback",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.orm",
    "typer",
    "typer.rich_utils",
)


@dataclass
class Run:
    """Tests on a package below ``source``; ``name`` is the caller's."""

    name: str
    tests: list[str]
    source: Path
    log: Path
    code: int = -1
    """Pytest's exit code; negative: it was killed by a signal."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    has_hung: bool = False
    _pid: int = 0
    _began: float = field(default=0.0)

    @property
    def output(self) -> str:
        """What it wrote."""
        return self.log.read_text(errors="replace")

    def start(self, environment: Mapping[str, str]) -> None:
        """Fork, and run the tests in the child."""
        self._began = time.monotonic()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run_tests(self, environment)
        with contextlib.suppress(OSError):  # the child does it, too: whichever is first
            os.setpgid(self._pid, self._pid)

    def has_ended(self, most_seconds: float) -> bool:
        """Whether it has ended; one that takes longer than ``most_seconds`` is killed with its processes."""
        self.seconds = time.monotonic() - self._began
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0 and self.seconds > most_seconds:
            self.has_hung = True
            os.killpg(self._pid, signal.SIGKILL)
            pid, status, usage = os.wait4(self._pid, 0)
        if pid != 0:
            self.code, self.cpu_seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            with contextlib.suppress(ProcessLookupError):  # what a test left running ends with it
                os.killpg(pid, signal.SIGKILL)
        return pid != 0


def import_stable() -> None:
    """Import what no breakage changes, and compile what each child imports; a module that is missing is left out."""
    for folder in ("src", "tests"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    for module in STABLE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    changed = [name for name in sys.modules if name.partition(".")[0] == "seekpoint"]
    assert not changed, f"a child would not import the broken {changed[0]}"


def run_all(runs: Iterable[Run], environment: Mapping[str, str], *, jobs: int, seconds: float) -> Iterator[Run]:
    """Run ``jobs`` of them at once, each for at most ``seconds``; yields each when it has ended."""
    waiting, running = deque(runs), list[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.popleft())
                running[-1].start(environment)
            time.sleep(0.02)
            ended = [run for run in running if run.has_ended(seconds)]
            running = [run for run in running if run not in ended]
            yield from ended
    finally:
        for run in running:
            run.has_ended(0.0)


def _run_tests(run: Run, environment: Mapping[str, str]) -> Any:
    """In the child; it ends without the parent's cleanup, and servers that it started end by their reaper."""
    code = 1  # as Python's where an exception is not caught: pytest raises what a failed test has left open
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with run.log.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.update(environment, PYTHONPATH=str(run.source), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(run.source))
        sys.argv = ["pytest"]
        code = int(pytest.main([*OPTIONS, *run.tests]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
