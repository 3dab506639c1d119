"""The events of all workers, in one list that other threads can wait on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from seekpoint.testing.child_process import NotReached

SECONDS = 30.0  # a deadline for what takes a second or a few


@dataclass(frozen=True)
class WorkerEvent:
    """One event of one worker. ``seconds`` is the machine's monotonic clock, the same in every process."""

    worker: str
    name: str
    seconds: float
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __str__(self) -> str:
        values = " ".join(f"{k}={v}" for k, v in self.values.items())
        return f"{self.seconds:.3f} {self.worker} {self.name} {values}"


class EventLog:
    """All workers' events of the round; ``totals`` counts the events of the whole run, by name."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.totals: Counter[str] = Counter()
        self.records = 0
        self.careful_seconds = 0.0  # while a partition's records were tried in small parts, summed over partitions
        self.accidents: list[str] = []
        self._careful: dict[int, tuple[float, int]] = {}  # since when, and up to which offset
        self._events: list[WorkerEvent] = []

    def add(self, event: WorkerEvent) -> None:
        """Add an event; the caller holds ``changed``."""
        self._events.append(event)
        self.totals[event.name] += 1
        if event.name == "Committed":
            self.records += event["records"]
        elif event.name == "Assigned" and event["partitions"]:
            self.totals["rebalances"] += 1
        self._time_careful(event)
        self.changed.notify_all()

    def _time_careful(self, event: WorkerEvent) -> None:
        """Add up the time of suspect ranges, from the first owner that reports one until an owner passes its end."""
        if event.name == "CrashSuspected":
            self._careful.setdefault(event["partition"], (event.seconds, event["until"]))
        elif event.name == "SuspectsLeft" and event["left"] == 0:
            self._end_careful(event["partition"], event.seconds)
        elif event.name == "Committed":
            for partition, _, end in event["spans"]:
                if partition in self._careful and end >= self._careful[partition][1]:
                    self._end_careful(partition, event.seconds)

    def _end_careful(self, partition: int, now: float) -> None:
        since, _ = self._careful.pop(partition, (now, 0))
        self.careful_seconds += now - since

    def accident(self, what: str) -> None:
        """Note that a worker ended without a fault that ends it; the caller holds ``changed``."""
        self.accidents.append(what)
        self.changed.notify_all()

    def alarm(self, what: str) -> None:
        """Note a failed check; waiting threads raise NotReached."""
        with self.changed:
            if len(self.accidents) < 20:
                self.accident(what)

    def calm(self) -> None:
        """Raise NotReached if there was an accident or an alarm."""
        with self.changed:
            if self.accidents:
                raise NotReached("; ".join(self.accidents))

    def mark(self) -> int:
        """A number for this moment, for ``since``."""
        with self.changed:
            return len(self._events)

    def since(self, mark: int) -> list[WorkerEvent]:
        """The events after this mark."""
        with self.changed:
            return self._events[mark:]

    def clear(self) -> None:
        """Drop the round's events; the totals are kept."""
        with self.changed:
            self._events.clear()

    def tail(self, count: int) -> list[str]:
        """The last events, as lines."""
        with self.changed:
            return [str(event) for event in self._events[-count:]]

    def wait(
        self, name: str | tuple[str, ...], *, by: str | None = None, since: int,
        where: Callable[[WorkerEvent], bool] | None = None, seconds: float = SECONDS,
    ) -> WorkerEvent:  # fmt: skip
        """Wait for the first matching event since ``since``; raises NotReached at the deadline or an accident."""
        names = (name,) if isinstance(name, str) else name
        index, deadline = since, monotonic() + seconds
        with self.changed:
            while True:
                for event in self._events[index:]:
                    if event.name in names and by in {None, event.worker} and (where is None or where(event)):
                        return event
                index = len(self._events)
                self._wait(deadline, f"{by or 'any worker'} to say {' or '.join(names)}")

    def until(self, true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        """Wait until ``true()``, which is called after every event."""
        deadline = monotonic() + seconds
        with self.changed:
            while not true():
                self._wait(deadline, what)

    def until_records(self, count: int, seconds: float) -> None:
        """Wait until ``count`` more records were committed."""
        goal = self.records + count
        self.until(lambda: self.records >= goal, f"{count} more records to be committed", seconds)

    def _wait(self, deadline: float, what: str) -> None:
        if self.accidents:
            raise NotReached(f"waited for {what}, but " + "; ".join(self.accidents))
        if not self.changed.wait(deadline - monotonic()):
            raise NotReached(f"waited in vain for {what}")
