"""A job in a process of its own, to be killed: ``Apart`` on the test's side; on the other, what stands still there."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from seekpoint.jobs.reload import Driver
from seekpoint.jobs.run.run import Tx
from support.forked_process import Forked


class Apart:
    """One process that runs ``script`` with ``what``, and prints a word when it has come to a place."""

    def __init__(self, script: str, what: dict[str, Any]) -> None:
        self._process = Forked(script, what, errors=False)

    def wait_for(self, word: str) -> bool:
        """Until it says this (``standing``, ``done``); False if it has ended without it."""
        return any(line.strip() == word for line in iter(self._process.stdout.readline, ""))

    def ended(self, seconds: float) -> bool:
        """Whether it comes to its end within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: nobody is told."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            stream.close()


class Standing(Driver):
    """A driver that stands still for ever at one place."""

    at = ""

    def _admit(self, row: Any, states: Any) -> None:
        super()._admit(row, states)
        if self.run.state == self.at:
            stand()

    def transition(self, tx: Tx, state: str) -> None:
        super().transition(tx, state)
        if self.at == f"turn {state}":
            stand()


def stand() -> None:
    """For ever."""
    print("standing", flush=True)
    threading.Event().wait()
