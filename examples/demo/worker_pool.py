"""Starts worker processes, halts them at a step, kills and freezes them, and follows their reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Self

from seekpoint.errors import SeekpointError
from seekpoint.testing import ChildProcess, NotReached, Report, start_python

PATIENCE = 60.0  # seconds that any single step of the demo may take


class DemoFailed(NotReached, SeekpointError):  # noqa: N818 -- named after what happened
    """A step of the demo failed; the message has the step and the workers' logs."""


class LoggedProcess(ChildProcess):
    """A child process that logs to a file, ``log``; a step that fails raises DemoFailed."""

    failure = DemoFailed
    log: Path

    def tail(self) -> str:
        """Its exit code, and the last lines that it logged."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return "\n".join([f"exit code {self.exit_code}; its log ends with", *lines])


class WorkerProcess(LoggedProcess):
    """One worker process, and its state as of its last report. ``heard`` is called with each report."""

    def __init__(
        self,
        name: str,
        order: Mapping[str, Any],
        changed: threading.Condition,
        log: Path,
        *,
        program: str = "demo.worker_process",
        heard: Callable[[WorkerProcess, Report], None] = lambda _worker, _report: None,
    ) -> None:
        self.name, self.log, self._heard = name, log, heard
        self.owner = ""
        self.active: dict[int, int] = {}  # partition -> position, for the partitions that it reads now
        self.commits = self.claims_lost = 0
        self.refusals: list[str] = []
        self.troubles: list[str] = []
        self.stalls: list[Report] = []
        self.expected_to_end = self.on_standby = False
        super().__init__(start_python("-m", program, stderr=log), order, changed=changed)

    def reported(self, report: Report) -> None:  # noqa: C901 -- a case for each event
        """Update the worker's state."""
        match report["event"]:
            case "Started":
                self.owner = report["owner"]
            case "OnStandby":
                self.on_standby = True
            case "Activated":
                self.active[report["partition"]] = report["offset"]
            case "Revoked" | "Released":
                for partition in report["partitions"]:
                    self.active.pop(partition, None)
            case "ClaimLost":
                self.active.pop(report["partition"], None)
                self.claims_lost += 1
            case "Committed":
                self.commits += 1
                self.active |= {number: end for number, _, end in report["spans"] if number in self.active}
            case "Refused":
                self.refusals.append(report["reason"])
            case "DatabaseTrouble":
                self.troubles.append(report["error"])
            case "Stalled":
                self.stalls.append(report)
        self._heard(self, report)

    def on_end(self) -> None:
        """The worker reads no partitions any more."""
        self.active.clear()

    def kill(self) -> int:
        """SIGKILL the worker, and expect its end."""
        self.expected_to_end = True
        return super().kill()

    def freeze(self) -> None:
        """SIGSTOP: the worker does nothing any more, and does not notice."""
        super().freeze()
        with self.changed:
            self.active.clear()  # other workers will claim what it still believes to own

    def terminate(self) -> None:
        """SIGTERM: the worker finishes its batch, releases and ends; returns at once."""
        self.expected_to_end = True
        super().terminate()


class WorkerPool:
    """The workers of one group: at most one of each name. Leaving the block kills what still runs."""

    program = "demo.worker_process"  # what a worker runs: the module's name

    def __init__(self, order: Mapping[str, Any], partitions: int, folder: Path) -> None:
        self._order, self._partitions, self._folder = dict(order), partitions, folder
        self._changed = threading.Condition()
        self._workers: dict[str, WorkerProcess] = {}
        self.ends: dict[int, int] = {}  # partition -> the highest offset that a worker has committed
        self.on_progress: Callable[[int], None] = lambda _: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def __getitem__(self, name: str) -> WorkerProcess:
        return self._workers[name]

    def other(self, name: str) -> WorkerProcess:
        """The worker that is not called ``name``."""
        return next(worker for known, worker in self._workers.items() if known != name)

    def start(self, name: str) -> None:
        """Start a process under this name; an earlier one must have ended."""
        log = self._folder / f"{name}.log"
        self._workers[name] = WorkerProcess(
            name, self._order, self._changed, log, program=self.program, heard=self._heard
        )

    def start_two(self) -> None:
        """Start workers A and B, and wait until they share the partitions."""
        self.start("A")
        self.start("B")
        self.wait("both workers to share the partitions", lambda: self.settled)

    def stop(self) -> list[int]:
        """SIGTERM all, and wait until they have ended; returns their exit codes."""
        for worker in self._workers.values():
            worker.terminate()
        self.wait("the workers to drain and leave", lambda: all(m.has_ended for m in self._workers.values()))
        return [worker.exit_code or 0 for worker in self._workers.values()]

    def _ended(self, worker: WorkerProcess, what: str) -> None:
        raise DemoFailed(f"worker {worker.name} ended unexpectedly while the demo waited for {what}: {worker.tail()}")

    def _heard(self, _member: WorkerProcess, report: Report) -> None:
        if report["event"] == "Committed":
            for partition, _, end in report["spans"]:
                self._reached(partition, end)

    def _reached(self, partition: int, end: int) -> None:
        self.ends[partition] = max(end, self.ends.get(partition, 0))
        self.on_progress(self.committed)

    @property
    def committed(self) -> int:
        """How many records are committed: the topic's offsets begin at 0 and have no holes."""
        return sum(self.ends.values())

    def committed_of(self, partitions: Iterable[int]) -> int:
        """Committed records of these partitions."""
        return sum(self.ends.get(partition, 0) for partition in partitions)

    @property
    def settled(self) -> bool:
        """Whether every worker reads some partitions, and each partition is read by exactly one."""
        held = [worker.active for worker in self._workers.values()]
        return all(held) and sorted(p for placed in held for p in placed) == list(range(self._partitions))

    def _state(self) -> str:
        """The state of all workers, to look for a cause."""
        lines = [f"committed up to {dict(sorted(self.ends.items()))}"]
        lines += [
            f"worker {worker.name} reads {worker.active}, {worker.commits} commits; {worker.tail()}"
            for worker in self._workers.values()
        ]
        return "\n".join(lines)

    def wait(self, what: str, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until ``until()`` is true. Raises DemoFailed if it does not become true in time, or if a worker ends."""
        deadline = monotonic() + patience
        with self._changed:
            while not until():
                for worker in list(self._workers.values()):
                    if worker.has_ended and not worker.expected_to_end:
                        self._ended(worker, what)
                if (left := deadline - monotonic()) <= 0:
                    raise DemoFailed(f"waited {patience:.0f} s for {what}, in vain\n{self._state()}")
                # Most conditions depend on a worker's reports, which notify; the others are polled.
                self._changed.wait(min(left, 0.05))
