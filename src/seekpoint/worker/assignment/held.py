"""Which partitions a transaction locks: those that it is likely to read, and no row is locked later."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from seekpoint.records import Partition

LATELY = 8  # transactions


class HeldPartitions:
    """Of the active partitions, those of a batch's first chunk and those that moved in the last eight transactions.

    A chunk of another partition closes the batch and begins the next. Where chunks are full, records wait in more
    partitions than that: the next eight transactions hold all that are active, and so are as large as they may be.
    """

    def __init__(self) -> None:
        self._moved: deque[frozenset[Partition]] = deque(maxlen=LATELY)
        self._all = 0  # transactions, from the next one on

    def of(self, first: Collection[Partition], active: Collection[Partition]) -> list[Partition]:
        """Those to hold for a batch that begins with these."""
        if self._all:
            return list(active)
        return [p for p in set(first).union(*self._moved) if p in active]

    def moved(self, partitions: Iterable[Partition]) -> None:
        """A transaction that moved these was committed."""
        self._moved.append(frozenset(partitions))
        self._all = max(0, self._all - 1)

    def closed_by_another(self, *, is_full: bool) -> None:
        """A chunk of a partition that was not held has closed the batch."""
        if is_full:
            self._all = LATELY
