"""What the workers said, in one list that other threads can wait on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

SECONDS = 30.0  # a deadline for what takes a second or a few


class Stuck(AssertionError):  # noqa: N818 -- named after what happened
    """Something that had to happen did not, within its deadline (O5)."""


@dataclass(frozen=True)
class Said:
    """One event of one worker. ``at`` is the machine's monotonic clock, the same in every process."""

    worker: str
    name: str
    at: float
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __str__(self) -> str:
        values = " ".join(f"{k}={v}" for k, v in self.values.items())
        return f"{self.at:.3f} {self.worker} {self.name} {values}"


class Log:
    """Every event of the round, of all workers; ``totals`` counts the whole run's, by name."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.totals: Counter[str] = Counter()
        self.records = 0
        self.careful_seconds = 0.0  # while a partition's records were tried in small parts, summed over partitions
        self.accidents: list[str] = []
        self._careful: dict[int, tuple[float, int]] = {}  # since when, and up to which offset
        self._said: list[Said] = []

    def add(self, said: Said) -> None:
        """Called by the readers; the caller holds ``news``."""
        self._said.append(said)
        self.totals[said.name] += 1
        if said.name == "Committed":
            self.records += said["records"]
        elif said.name == "Assigned" and said["partitions"]:
            self.totals["rebalances"] += 1
        self._time_careful(said)
        self.news.notify_all()

    def _time_careful(self, said: Said) -> None:
        """A suspect range begins with the first owner that has it, and ends with whichever owner passes its end."""
        if said.name == "CrashSuspected":
            self._careful.setdefault(said["partition"], (said.at, said["until"]))
        elif said.name == "SuspectsLeft" and said["left"] == 0:
            self._end_careful(said["partition"], said.at)
        elif said.name == "Committed":
            for partition, _, end in said["spans"]:
                if partition in self._careful and end >= self._careful[partition][1]:
                    self._end_careful(partition, said.at)

    def _end_careful(self, partition: int, at: float) -> None:
        since, _ = self._careful.pop(partition, (at, 0))
        self.careful_seconds += at - since

    def accident(self, what: str) -> None:
        """A worker ended that nobody wanted to end; the caller holds ``news``."""
        self.accidents.append(what)
        self.news.notify_all()

    def alarm(self, what: str) -> None:
        """A judge found something: whoever waits stops waiting."""
        with self.news:
            if len(self.accidents) < 20:
                self.accident(what)

    def calm(self) -> None:
        """Raise Stuck if there was an accident or an alarm."""
        with self.news:
            if self.accidents:
                raise Stuck("; ".join(self.accidents))

    def mark(self) -> int:
        """Now, as a number for ``since``."""
        with self.news:
            return len(self._said)

    def since(self, mark: int) -> list[Said]:
        """What was said from then on."""
        with self.news:
            return self._said[mark:]

    def clear(self) -> None:
        """Forget the round's events; the totals stay."""
        with self.news:
            self._said.clear()

    def tail(self, count: int) -> list[str]:
        """What was said last, as lines."""
        with self.news:
            return [str(one) for one in self._said[-count:]]

    def wait(
        self, name: str | tuple[str, ...], *, by: str | None = None, since: int,
        where: Callable[[Said], bool] | None = None, seconds: float = SECONDS,
    ) -> Said:  # fmt: skip
        """The first such event since ``since``; raises Stuck at the deadline or when a worker ends by accident."""
        names = (name,) if isinstance(name, str) else name
        at, deadline = since, monotonic() + seconds
        with self.news:
            while True:
                for said in self._said[at:]:
                    if said.name in names and by in {None, said.worker} and (where is None or where(said)):
                        return said
                at = len(self._said)
                self._wait(deadline, f"{by or 'any worker'} to say {' or '.join(names)}")

    def until(self, true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        """Wait until ``true()``, which is asked at every event."""
        deadline = monotonic() + seconds
        with self.news:
            while not true():
                self._wait(deadline, what)

    def until_records(self, count: int, seconds: float) -> None:
        """Wait until so many more records were committed."""
        goal = self.records + count
        self.until(lambda: self.records >= goal, f"{count} more records to be committed", seconds)

    def _wait(self, deadline: float, what: str) -> None:
        if self.accidents:
            raise Stuck(f"waited for {what}, but " + "; ".join(self.accidents))
        if not self.news.wait(deadline - monotonic()):
            raise Stuck(f"waited in vain for {what}")
