"""The worker processes under a supervisor: whoever is killed by a record is started again, at once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from demo.crew import Member, WorkerPool
from demo.poison.handling import EXITED
from seekpoint.records import Cause

#: How a worker ends that was killed by a record, by its exit code.
CRASHES = {EXITED: "os._exit", -signal.SIGSEGV: "segfault"}


class SupervisedPool(WorkerPool):
    """Starts a worker again that died of a record, as a service manager would; any other end is the demo's."""

    program = "demo.poison.member"

    def __init__(
        self, order: Mapping[str, Any], partitions: int, folder: Path, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(order, partitions, folder)
        self._tell = tell
        self.deaths: Counter[str] = Counter()

    def _ended(self, member: Member, what: str) -> None:
        how = CRASHES.get(member.exit_code or 0)
        if how is None:
            super()._ended(member, what)
            return
        self.deaths[how] += 1
        self._tell(f"{member.name} was killed by a record (exit code {member.exit_code}, {how}); started again")
        self.start(member.name)

    def _heard(self, member: Member, event: Mapping[str, Any]) -> None:
        super()._heard(member, event)
        match event["event"]:
            case "Activated":  # what was committed by a process that died before it could tell
                self._reached(event["partition"], event["offset"])
            case "DeadLettered" if event["cause"] == Cause.CRASHED:
                self._tell(f"parked by {member.name}: partition {event['partition']}, offset {event['offset']:,}")
