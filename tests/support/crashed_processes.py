"""Fails the run if a test process crashes, even after its last test.

xdist 3.8 would start another process, and hang: under ``--dist loadgroup`` it distributes the crashed process's tests,
one at a time, after the others were asked to end, and a process runs a test only when it knows the next one.
``--max-worker-restart 0`` in ``pyproject.toml`` ends the run instead; tests that were not run are missing from its
count. If a process crashes after its last test, xdist only prints a line, and the exit code is 0.
"""

from __future__ import annotations

from typing import Any

import pytest

_CRASHED = pytest.StashKey[list[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    if error:
        node.config.stash.setdefault(_CRASHED, []).append(f"{node.gateway.id}: {error}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(_CRASHED, None) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if crashed := config.stash.get(_CRASHED, None):
        terminalreporter.section("test processes that crashed; tests that were left have not run", red=True)
        for line in crashed:
            terminalreporter.write_line(line)
