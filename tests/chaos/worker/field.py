"""What a fault has to work with, and what it answers when it has truly happened."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic

from chaos.worker.arena import PARTITIONS, Arena
from chaos.worker.crew import Crew, Member
from chaos.worker.load import Load
from chaos.worker.log import SECONDS, Said, Stuck
from chaos.worker.oracle import Sampler

EVERY = frozenset(range(PARTITIONS))


@dataclass(frozen=True)
class Strike:
    """A fault that truly happened: when (monotonic), and whose work it interrupted.

    ``over``: when the cause was gone; commits before it were still under way, and are no recovery.
    """

    at: float
    partitions: frozenset[int]
    mark: int
    over: float = 0.0


@dataclass(frozen=True)
class Field:
    """One round's ground, under load."""

    arena: Arena
    crew: Crew
    sampler: Sampler
    load: Load

    def records(self, count: int) -> None:
        """Wait until so many more records were committed."""
        self.arena.log.until_records(count, SECONDS)

    def lull(self, count: int, seconds: float) -> None:
        """Wait for so many more records, or so long where nobody commits any more."""
        try:
            self.arena.log.until_records(count, seconds)
        except Stuck:
            self.arena.log.calm()

    def taken_over(self, partitions: Collection[int], *, of: Member, since: int, working: bool = False) -> None:
        """Wait until others have claimed all these partitions; ``working``: until they commit to one, too."""

        def by_another(said: Said) -> bool:
            return said.worker != of.name and said["partition"] in left

        left = set(partitions)
        while left:
            left.remove(self.arena.log.wait("Activated", since=since, where=by_another)["partition"])
        if working:
            taken = set(partitions)
            self.arena.log.wait(
                "Committed", since=since, where=lambda s: s.worker != of.name and bool(moved(s) & taken)
            )

    def hush(self, seconds: float) -> None:
        """Wait until nobody has committed for so long: what was stopped is really standing still."""
        pause, began, deadline = threading.Event(), monotonic(), monotonic() + SECONDS
        while True:
            last = max([began, *(s.at for s in self.arena.log.since(0)[-200:] if s.name == "Committed")])
            if monotonic() - last >= seconds:
                return
            if monotonic() > deadline:
                raise Stuck("commits go on although what they need stands still")
            pause.wait(0.05)

    def recovered(self, strike: Strike) -> float:
        """Wait until every partition that was struck is written again; seconds since the strike."""

        def written(said: Said) -> bool:
            return said.at > max(strike.at, strike.over) and bool(moved(said) & left)

        last, left = strike.at, set(strike.partitions)
        while left:
            said = self.arena.log.wait("Committed", since=strike.mark, where=written, seconds=60)
            left -= moved(said)
            last = max(last, said.at)
        return last - strike.at


def moved(committed: Said) -> set[int]:
    """The partitions that a Committed event moved."""
    return {partition for partition, _, _ in committed["spans"]}
