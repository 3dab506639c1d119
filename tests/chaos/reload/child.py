"""A process that is told what to do and may be killed, from its parent's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

TESTS = Path(__file__).parents[2]


class Stuck(AssertionError):  # noqa: N818 -- named after what happened
    """Something did not happen in time; says what was said last."""


class Child:
    """``python -m siege.process KIND WHAT``; ``env`` is added to its environment."""

    def __init__(self, kind: str, what: Mapping[str, Any], env: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.kind = kind
        self.said: list[Mapping[str, Any]] = []
        self.errors: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "siege.process", kind, json.dumps(what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env, "PYTHONPATH": path},
        )
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it has ended; None while it lives."""
        return self._process.poll()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.said.append(json.loads(line))
                self._news.notify_all()
        self._process.wait()
        with self._news:
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors = [*self.errors[-60:], line.rstrip()]

    def told(self, word: str) -> Mapping[str, Any] | None:
        """The first line with this word, if it was said."""
        return next((line for line in self.said if line["word"] == word), None)

    def wait_for(self, words: Collection[str], seconds: float = 300.0) -> str | None:
        """The first of these words to be said, or None if it has ended without; Stuck if neither happens."""
        deadline = monotonic() + seconds
        with self._news:
            while True:
                for word in words:
                    if self.told(word):
                        return word
                if self.code is not None and not self._readers[0].is_alive():
                    return None
                if not self._news.wait(min(0.2, max(0.0, deadline - monotonic()))) and monotonic() >= deadline:
                    raise Stuck(f"{self.kind} said none of {', '.join(words)} within {seconds:.0f} s{self.last()}")

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended: its code says how

    def kill(self) -> bool:
        """SIGKILL; whether it was alive, and is dead of that."""
        self._process.send_signal(signal.SIGKILL)
        return self._process.wait(60) == -signal.SIGKILL

    def end(self) -> None:
        """SIGTERM, and SIGKILL where that does not help; ends what is left of it."""
        if self.code is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        for reader in self._readers:
            reader.join(10)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def wait(self, seconds: float) -> int | None:
        """Its code, once it has ended by itself; None if it has not by then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last(self) -> str:
        """What it said at the end, for whoever looks for the cause."""
        return "".join(f"\n    {line}" for line in [*map(str, self.said[-5:]), *self.errors[-12:]])
