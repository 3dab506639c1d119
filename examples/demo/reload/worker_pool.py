"""The worker processes, one version after the other, and the longest pause of a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from demo.reload.worker_process import OUTDATED
from demo.worker_pool import DemoFailed, WorkerPool, WorkerProcess
from seekpoint.testing import Report


class VersionedPool(WorkerPool):
    """A pool whose workers are followed by others of a newer version."""

    program = "demo.reload.worker_process"

    def __init__(self, order: Mapping[str, Any], partitions: int, folder: Path) -> None:
        super().__init__(order, partitions, folder)
        self._moved: dict[int, float] = {}  # partition -> when it last advanced
        self._gap = 0.0
        self.awaited: set[int] = set()  # partitions that are to advance once more

    def start_version(self, names: Sequence[str], version: int) -> None:
        """Start workers of this version."""
        self._order["version"] = version
        for name in names:
            self.start(name)

    def outdate(self, names: Sequence[str]) -> None:
        """Expect these workers to end, because a newer version takes over."""
        for name in names:
            self[name].expected_to_end = True

    def wait_outdated(self, names: Sequence[str]) -> None:
        """Wait until these workers have exited as outdated. Raises DemoFailed if one ends in another way."""
        self.wait(
            f"workers {' and '.join(names)} to exit as outdated",
            lambda: all(self[name].has_ended for name in names),
        )
        for name in names:
            worker = self._workers.pop(name)
            if worker.exit_code != OUTDATED:
                raise DemoFailed(
                    f"worker {name} should have exited as outdated (code {OUTDATED}), but ended with {worker.tail()}"
                )

    def rested(self, what: str) -> float:
        """Wait until every partition has advanced once more; returns the longest pause of a partition."""
        self.awaited = set(range(self._partitions))
        self.wait(f"every partition to advance {what}", lambda: not self.awaited)
        with self._changed:
            gap, self._gap = self._gap, 0.0
        return gap

    def _heard(self, worker: WorkerProcess, report: Report) -> None:
        super()._heard(worker, report)
        if report["event"] == "Activated":  # committed by a process that died before it could report it
            self._reached(report["partition"], report["offset"])
        if report["event"] == "Committed":
            now = monotonic()
            for partition, _, _ in report["spans"]:
                self._gap = max(self._gap, now - self._moved.get(partition, now))
                self._moved[partition] = now
                self.awaited.discard(partition)
