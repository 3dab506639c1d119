"""One child of ``run --workers``, as its parent sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from seekpoint.metrics.processes import ProcessTotals

SILENT_AFTER = 60.0  # seconds without a report, once there was one: the process hangs
SILENT_AT_START = 300.0  # seconds without a first report: users' modules are imported before it
NOT_LIVE_FOR = 5.0  # seconds in which its reports say that it is not live
_SYSTEMD = {"NOTIFY_SOCKET", "WATCHDOG_USEC"}  # its messages come from the parent


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """What a child is to run: the command's words; and whether it reports its metrics."""

    words: Sequence[str]
    metrics: bool = False


class WorkerProcess:
    """A worker in a process of its own; it drains by itself when this process dies. Raises OSError where none starts.

    ``totals`` gets its metrics.
    """

    def __init__(self, orders: ChildCommand, generation: int, totals: ProcessTotals) -> None:
        self.generation, self._totals = generation, totals
        self.state: Mapping[str, Any] = {}
        self.groups: Sequence[str] = ()  # of its pipelines, once it has reported
        self.has_joined = False  # it has its partitions
        self.is_final = False  # it has ended, and would end again
        self.killed_at: float | None = None
        self._sentence: str | None = None
        self._since = self._heard = monotonic()
        self._not_live_since: float | None = None
        self._joins_since: float | None = None  # nothing keeps it from joining: neither imports nor a wait
        self._buffer = b""
        self._reports, given = os.pipe()
        os.set_blocking(self._reports, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- this very program
                [sys.executable, "-m", "seekpoint.cli.child_main", str(given)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=[given],
                process_group=0,  # Ctrl-C is for the parent alone: two signals would abort
                env={name: value for name, value in os.environ.items() if name not in _SYSTEMD},
            )
        except OSError:
            os.close(self._reports)
            raise
        finally:
            os.close(given)
        with suppress(BrokenPipeError):  # it has ended: poll() says so
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asdict(orders)).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return monotonic() - self._since

    @property
    def joining_for(self) -> float:
        """Seconds since its first report, or since its last wait for a server or outside the group has ended."""
        return 0.0 if self._joins_since is None else monotonic() - self._joins_since

    def poll(self) -> int | None:
        """Read its reports. Returns its exit code (negative: the signal), None while it runs."""
        code = self._process.poll()  # before the last reports are read
        with suppress(BlockingIOError, ValueError):
            while chunk := os.read(self._reports, 65_536):
                self._take(chunk)
        return code

    def _take(self, chunk: bytes) -> None:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self._heard = monotonic()
            if "metrics" in report:
                self._totals.update(self.pid, report["metrics"])
            elif "ended" in report:
                self.is_final, self._sentence = report["final"], report["ended"]
            else:
                self._take_state(report)

    def _take_state(self, report: Mapping[str, Any]) -> None:
        self.state, self.has_joined, self.groups = report["state"], report["joined"], report["groups"]
        self._joins_since = None if report["waiting"] else self._joins_since or self._heard
        if self.state["live"]:
            self._not_live_since = None
        elif self._not_live_since is None:
            self._not_live_since = self._heard

    def why_replace(self) -> str | None:
        """Why it must be replaced although it runs; None if it need not."""
        now = monotonic()
        if self._not_live_since is not None and now - self._not_live_since > NOT_LIVE_FOR:
            return "is not live"
        allowed = SILENT_AFTER if self.state else SILENT_AT_START
        return f"has not reported for {allowed:.0f} s" if now - self._heard > allowed else None

    def why_ended(self, code: int) -> str:
        """Why it has ended, in a sentence."""
        if self._sentence is not None:
            return self._sentence
        return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self.killed_at = monotonic()
        self.send(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes of one that has ended; what it has counted stays."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        os.close(self._reports)
        self._totals.end(self.pid)
