"""``run --workers N``: the parent of the worker processes, which restarts ended children, and drains all."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic

from seekpoint.cli.exit_codes import FAILED, USAGE
from seekpoint.cli.systemd import notify

logger = logging.getLogger("seekpoint.cli")

TICK = 0.2  # seconds between two checks of the children
BACKOFF, LONGEST = 0.5, 30.0  # seconds before the first restart, doubled for each consecutive one; and the most
STEADY = 60.0  # seconds after which a running child counts as steady: its next restart waits the shortest time again
SILENT = 30.0  # seconds without a report that a child is live, after which the child counts as hanging
SILENT_AT_START = 300.0  # the same before its first report, because it first imports users' modules
_CHILD = "from seekpoint.cli import main, parent_link; parent_link.attach(); main.main()"
_SYSTEMD = {"NOTIFY_SOCKET", "WATCHDOG_USEC"}  # removed for children: only the parent reports to systemd


class WorkerProcess:
    """A child process with the parent's command line, and its number. Raises OSError if it cannot be started."""

    def __init__(self, number: int, words: Sequence[str]) -> None:
        self.was_live = self._is_killed = False
        self.started_at = self._live_at = monotonic()
        self._link, child_end = socket.socketpair()  # the child reports that it is live, and notices its parent's end
        self._link.setblocking(False)
        with child_end:
            self._process = subprocess.Popen(  # noqa: S603 -- this program itself
                [sys.executable, "-c", _CHILD, str(child_end.fileno()), str(number), *words],
                stdin=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                process_group=0,  # Ctrl-C reaches only the parent: a second signal would abort the batch
                env={name: value for name, value in os.environ.items() if name not in _SYSTEMD},
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Read the child's reports. Returns its exit code (negative: the signal), None while it runs."""
        with suppress(OSError):  # no report
            while self._link.recv(4096):
                self.was_live, self._live_at = True, monotonic()
        code = self._process.poll()
        if code is not None:
            self._link.close()
        return code

    def kill_if_hanging(self) -> bool:
        """Kill the child if it has not reported in time that it is live. Returns whether it was killed now."""
        allowed = SILENT if self.was_live else SILENT_AT_START
        if self._is_killed or monotonic() - self._live_at <= allowed:
            return False
        self._is_killed = True
        self.send(signal.SIGKILL)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send the child a signal, unless it has ended."""
        self._process.send_signal(number)


@dataclass(slots=True)
class _Slot:
    """A worker's number and its current process, which is replaced when it ends."""

    number: int
    child: WorkerProcess | None = None
    was_live: bool = False
    ends_in_row: int = 0
    start_at: float = 0.0


class Supervisor:
    """Keeps ``count`` worker processes running until SIGTERM or SIGINT.

    ``start(number)`` starts the worker of this number, from 1; it raises OSError if the system refuses a process.
    """

    def __init__(self, start: Callable[[int], WorkerProcess], count: int) -> None:
        self._start_process = start
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._is_ready = self._is_draining = False
        self._signals = 0
        self._code = 0

    def run(self) -> int:
        """Work until all children have ended. Returns the exit code: 0 if all of them drained."""
        signals = SimpleQueue[int]()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: signals.put(number))
        while not self._is_draining or any(slot.child for slot in self._slots):
            self.step()
            with suppress(Empty):
                signals.get(timeout=TICK)
                self.end()
        return self._code

    def end(self) -> None:
        """The first call drains all children, the second aborts their batches, the third ends them at once."""
        self._signals += 1
        if self._signals == 1:
            self._drain()
        else:
            self._terminate()

    def step(self) -> None:
        """Check each child once, and start those that are due; report to systemd once all children have been live."""
        for slot in self._slots:
            if slot.child is not None:
                self._look_at(slot, slot.child)
            if slot.child is None and not self._is_draining and monotonic() >= slot.start_at:
                self._start(slot)
        if all(slot.was_live for slot in self._slots):
            notify("WATCHDOG=1" if self._is_ready else "READY=1\nWATCHDOG=1")
            self._is_ready = True

    def _drain(self) -> None:
        """Ask all children to finish their batches and end; only once, because a second signal would abort batches."""
        if not self._is_draining:
            self._is_draining = True
            notify("STOPPING=1")
            logger.info("stopping after the open batches; a second signal aborts them")
            self._terminate()

    def _terminate(self) -> None:
        for slot in self._slots:
            if slot.child is not None:
                slot.child.send(signal.SIGTERM)

    def _start(self, slot: _Slot) -> None:
        try:
            slot.child = self._start_process(slot.number)
        except OSError as error:
            message = "worker %d cannot be started: %s; next attempt in %.1f s"
            logger.error(message, slot.number, error, self._postpone(slot), extra={"worker": slot.number})
        else:
            extra = {"worker": slot.number, "pid": slot.child.pid}
            logger.info("worker %d started, pid %d", slot.number, slot.child.pid, extra=extra)

    def _postpone(self, slot: _Slot) -> float:
        """Postpone the next start, longer each consecutive time; returns the seconds."""
        slot.ends_in_row += 1
        wait: float = min(LONGEST, BACKOFF * 2 ** min(slot.ends_in_row - 1, 10))
        slot.start_at = monotonic() + wait
        return wait

    def _look_at(self, slot: _Slot, child: WorkerProcess) -> None:
        code = child.poll()
        slot.was_live = slot.was_live or child.was_live
        if code is not None:
            slot.child = None
            self._ended(slot, child, code)
        elif child.kill_if_hanging():
            extra = {"worker": slot.number, "pid": child.pid}
            logger.error(
                "worker %d, pid %d, has not reported in time that it is live: killed",
                slot.number,
                child.pid,
                extra=extra,
            )

    def _ended(self, slot: _Slot, child: WorkerProcess, code: int) -> None:
        """Start the worker again after a wait, or drain all workers if its command line or declaration is wrong."""
        reason = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        extra = {"worker": slot.number, "pid": child.pid, "code": code}
        if self._is_draining:
            logger.info("worker %d ended %s", slot.number, reason, extra=extra)
            if code not in {0, -signal.SIGTERM}:  # SIGTERM may come before the child has set up its own handler
                self._code = self._code or FAILED
        elif code == USAGE:
            message = "worker %d ended %s: a restart does not help, so all workers stop"
            logger.error(message, slot.number, reason, extra=extra)
            self._code = code
            self._drain()
        else:
            slot.ends_in_row = 0 if monotonic() - child.started_at > STEADY else slot.ends_in_row
            message = "worker %d ended %s; it starts again in %.1f s"
            logger.error(message, slot.number, reason, self._postpone(slot), extra=extra)
