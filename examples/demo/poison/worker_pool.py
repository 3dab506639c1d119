"""The worker processes under a supervisor: a worker that a record kills is started again at once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demo.poison.handling import EXITED
from demo.worker_pool import WorkerPool, WorkerProcess
from seekpoint.admin import Cause
from seekpoint.testing import Report

#: How a record ended its worker, by the exit code.
CRASHES = {EXITED: "os._exit", -signal.SIGSEGV: "segfault"}


class SupervisedPool(WorkerPool):
    """Restarts a worker that a record has crashed, as a service manager would; any other end fails the demo."""

    program = "demo.poison.worker_process"

    def __init__(
        self, order: Mapping[str, Any], partitions: int, folder: Path, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(order, partitions, folder)
        self._tell = tell
        self.deaths: Counter[str] = Counter()

    def _ended(self, worker: WorkerProcess, what: str) -> None:
        how = CRASHES.get(worker.exit_code or 0)
        if how is None:
            super()._ended(worker, what)
            return
        self.deaths[how] += 1
        self._tell(f"{worker.name} was killed by a record (exit code {worker.exit_code}, {how}); started again")
        self.start(worker.name)

    def _heard(self, worker: WorkerProcess, report: Report) -> None:
        super()._heard(worker, report)
        match report["event"]:
            case "Activated":  # committed by a process that died before it could report it
                self._reached(report["partition"], report["offset"])
            case "DeadLettered" if report["failure"].startswith(Cause.CRASHED):
                self._tell(
                    f"dead-lettered by {worker.name}: partition {report['partition']}, offset {report['offset']:,}"
                )
