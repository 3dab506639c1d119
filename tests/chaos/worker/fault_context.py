"""The parameter and the result of the functions that inject faults."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic

from chaos.worker.checks import Sampler
from chaos.worker.environment import PARTITIONS, Environment
from chaos.worker.event_log import SECONDS, EventLog, WorkerEvent
from chaos.worker.load import Load
from chaos.worker.worker_pool import WorkerPool, WorkerProcess
from seekpoint.testing.child_process import NotReached

EVERY = frozenset(range(PARTITIONS))


@dataclass(frozen=True)
class Injected:
    """A fault that happened: when (monotonic clock), and which partitions it interrupted.

    ``over`` is when its cause ended; earlier commits are no recovery.
    """

    began: float
    partitions: frozenset[int]
    mark: int
    over: float = 0.0


@dataclass(frozen=True)
class FaultContext:
    """One round: its environment and worker pool, under load. ``mark`` is of the time before topics appeared."""

    environment: Environment
    pool: WorkerPool
    sampler: Sampler
    load: Load
    mark: int

    @property
    def log(self) -> EventLog:
        """The events of all workers."""
        return self.environment.log

    def found(self) -> None:
        """Wait until each worker has found the topics that have appeared, and no rebalance for them is left."""
        if self.pool.plan.found:
            names = {worker.name for worker in self.pool.workers}
            knowing = ("TopicsFound", "Started")
            self.log.until(
                lambda: names <= {event.worker for event in self.log.since(self.mark) if event.name in knowing},
                "each worker to find the new topics",
            )
            self.pool.ready()

    def records(self, count: int) -> None:
        """Wait until ``count`` more records were committed."""
        self.log.until_records(count, SECONDS)

    def lull(self, count: int, seconds: float) -> None:
        """Wait until ``count`` more records were committed, or for ``seconds`` if fewer are."""
        try:
            self.log.until_records(count, seconds)
        except NotReached:
            self.log.calm()

    def taken_over(self, partitions: Collection[int], *, of: WorkerProcess, since: int, working: bool = False) -> None:
        """Wait until other workers have claimed all these partitions; ``working``: and have committed to one."""

        def by_another(event: WorkerEvent) -> bool:
            return event.worker != of.name and event["partition"] in left

        left = set(partitions)
        while left:
            left.remove(self.log.wait("Activated", since=since, where=by_another)["partition"])
        if working:
            taken = set(partitions)
            self.log.wait("Committed", since=since, where=lambda s: s.worker != of.name and bool(moved(s) & taken))

    def hush(self, seconds: float) -> None:
        """Wait until no worker has committed for ``seconds``, so that a freeze has taken effect."""
        pause, began, deadline = threading.Event(), monotonic(), monotonic() + SECONDS
        while True:
            last = max([began, *(s.seconds for s in self.log.since(0)[-200:] if s.name == "Committed")])
            if monotonic() - last >= seconds:
                return
            if monotonic() > deadline:
                raise NotReached("commits go on although what they need stands still")
            pause.wait(0.05)

    def recovered(self, injected: Injected) -> float:
        """Wait until every interrupted partition is committed to again; returns the seconds since the fault."""

        def written(event: WorkerEvent) -> bool:
            return event.seconds > max(injected.began, injected.over) and bool(moved(event) & left)

        last, left = injected.began, set(injected.partitions)
        while left:
            event = self.log.wait("Committed", since=injected.mark, where=written, seconds=60)
            left -= moved(event)
            last = max(last, event.seconds)
        return last - injected.began


def moved(committed: WorkerEvent) -> set[int]:
    """The partitions that a Committed event has advanced."""
    return {partition for partition, _, _ in committed["spans"]}
