"""The worker processes, one version after the other, and how long anything stood still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from demo.crew import DemoFailed, Member, WorkerPool
from demo.reload.member import OUTDATED


class Shifts(WorkerPool):
    """A crew whose members are followed by others of a newer version."""

    program = "demo.reload.member"

    def __init__(self, order: Mapping[str, Any], partitions: int, folder: Path) -> None:
        super().__init__(order, partitions, folder)
        self._moved: dict[int, float] = {}  # partition -> when it last went on
        self._gap = 0.0
        self.awaited: set[int] = set()  # partitions that are to go on once more

    def hire(self, names: Sequence[str], version: int) -> None:
        """Start workers of this version."""
        self._order["version"] = version
        for name in names:
            self.start(name)

    def outdate(self, names: Sequence[str]) -> None:
        """From now on these may end, because a newer version takes over."""
        for name in names:
            self[name].expected_to_end = True

    def retire(self, names: Sequence[str]) -> None:
        """Wait until these have ended, as they must where a newer version took over."""
        self.wait(
            f"workers {' and '.join(names)} to stand down for the newer version",
            lambda: all(self[name].ended for name in names),
        )
        for name in names:
            member = self._members.pop(name)
            if member.exit_code != OUTDATED:
                raise DemoFailed(
                    f"worker {name} was to stand down for the newer version (exit code {OUTDATED}), and ended with "
                    f"{member.exit_code}; its log ends with\n{member.log_tail}"
                )

    def rested(self, what: str) -> float:
        """Wait until every partition has gone on once more; the longest that one stood still since this was asked."""
        self.awaited = set(range(self._partitions))
        self.wait(f"every partition to go on {what}", lambda: not self.awaited)
        with self._changed:
            gap, self._gap = self._gap, 0.0
        return gap

    def _heard(self, member: Member, event: Mapping[str, Any]) -> None:
        super()._heard(member, event)
        if event["event"] == "Activated":  # what was committed by a process that died before it could tell
            self._reached(event["partition"], event["offset"])
        if event["event"] == "Committed":
            now = monotonic()
            for partition in map(int, event["ends"]):
                self._gap = max(self._gap, now - self._moved.get(partition, now))
                self._moved[partition] = now
                self.awaited.discard(partition)
