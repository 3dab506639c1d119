"""Chooses the partitions that a transaction locks at its start: those it is likely to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from seekpoint.records import Partition

LATELY = 8  # transactions


class HeldPartitions:
    """Chooses the partitions to hold: those of a batch's first chunk, and those moved in the last eight transactions.

    A chunk of another partition closes the batch and begins the next. If that chunk was full, more partitions have
    records: the next eight transactions hold every active partition, so that batches can reach their full size.
    """

    def __init__(self) -> None:
        self._moved: deque[frozenset[Partition]] = deque(maxlen=LATELY)
        self._all = 0  # how many of the next transactions hold every active partition

    def of(self, first: Collection[Partition], active: Collection[Partition]) -> list[Partition]:
        """The partitions to hold for a batch that begins with ``first``."""
        if self._all:
            return list(active)
        return [partition for partition in set(first).union(*self._moved) if partition in active]

    def moved(self, partitions: Iterable[Partition]) -> None:
        """Note which partitions a committed transaction moved."""
        self._moved.append(frozenset(partitions))
        self._all = max(0, self._all - 1)

    def closed_by_another(self, *, is_full: bool) -> None:
        """Note that a chunk of a partition that was not held closed the batch."""
        if is_full:
            self._all = LATELY
