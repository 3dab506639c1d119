"""A job in a process of its own, to be killed: ``Apart`` on the test's side; on the other, what stands still there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from member import _given
from seekpoint.reload import Driver
from seekpoint.reload.run import Tx


class Apart:
    """One process that runs ``script`` with ``what`` as JSON, and prints a word when it has come to a place."""

    def __init__(self, script: str, what: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", script, json.dumps(what)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_given()])},
        )

    def wait_for(self, word: str) -> bool:
        """Until it says this (``standing``, ``done``); False if it has ended without it."""
        assert self._process.stdout is not None
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
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Standing(Driver):
    """A driver that stands still for ever at one place."""

    at = ""

    def _admit(self, row: Any, states: Any) -> None:
        super()._admit(row, states)
        if self.run.state == self.at:
            stand()

    def turn(self, tx: Tx, state: str) -> None:
        super().turn(tx, state)
        if self.at == f"turn {state}":
            stand()


def stand() -> None:
    """For ever."""
    print("standing", flush=True)
    threading.Event().wait()
