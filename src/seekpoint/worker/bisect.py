"""Finds the records that fail in a batch, and chooses the length of its parts. Works on indexes, without a database.

A failing record is found by halving: the records before it stay applied, and the search resumes after it. One bad
record in n costs about log2(n) calls, or one if the database or the handler names the record. If many fail, parts are a
fraction of the distance between failures, so that the cost grows with their number, not with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

FEW = 2  # from this number of failures in a batch on, the distance between them is used
SHARE = 4  # parts per distance between two failures: longer parts fail too often, shorter ones cost round trips
NAMED_SHARE = 1  # the same, if errors name the record: then a part fails only once
CALM = 8  # after this many distances without a failure, no more failures are expected; they may span many batches
FEW_STRIDES = 8  # after the first failure, the first part is at least the remaining records divided by this
LEAST = 16  # records of the smallest part

E = TypeVar("E")


class PartFailure(NamedTuple, Generic[E]):
    """Why a part failed. ``named``: the indexes of the failed records, if the error names them.

    ``was_cancelled``: a statement took too long; ``waited``: because it waited for a lock, not because of its size.
    """

    error: E
    named: tuple[int, ...] = ()
    was_cancelled: bool = False
    waited: bool = False


class FailedRecords(NamedTuple, Generic[E]):
    """One failure. ``indexes``: the records that failed; none if only the part as a whole fails.

    Records before ``resume_at`` are applied or failed; the search resumes there. ``too_many``: this many records took
    longer than a statement may, although each alone does not. ``is_named``: the error named them.
    """

    indexes: tuple[int, ...]
    resume_at: int
    error: E
    too_many: int | None = None
    is_named: bool = False


Run = Callable[[Sequence[int]], PartFailure[E] | None]
Admitted = Callable[[range, bool], Sequence[int]]


class StatementSize:
    """Learns how many records one statement may write: ``most``, None for any number.

    A statement that took too long halves it. After ``FIRST`` full parts in time it doubles, because a timeout may have
    another cause; if the doubled size takes too long again, the next doubling takes twice as many parts, up to
    ``LAST``.
    """

    FIRST, LAST = 8, 1024  # full parts before it doubles

    def __init__(self) -> None:
        self.most: int | None = None
        self._whole = self._clean = 0
        self._full_parts, self._has_grown = self.FIRST, False

    def shorten(self, too_many: int) -> None:
        """Allow half of ``too_many`` records, which took too long."""
        if self.most is None:
            self._whole, self._full_parts = too_many, self.FIRST
        elif self._has_grown:
            self._full_parts = min(self.LAST, 2 * self._full_parts)
        self.most, self._clean, self._has_grown = max(1, too_many // 2), 0, False

    def written(self, records: int) -> None:
        """Learn that a part was written in time."""
        if self.most is None or records < self.most:
            return
        self._clean += 1
        if self._clean >= self._full_parts:
            self.most, self._clean, self._has_grown = 2 * self.most, 0, True
            if self.most >= self._whole:
                self.most = None


class Strides:
    """Learns from the distance between failures, over many batches, how many records to apply at once."""

    def __init__(self) -> None:
        self._stride: int | None = None  # records per part; None: all remaining ones
        self._calm = 0  # records without a failure, after which no more are expected
        self._clean = 0  # records since the last failure
        self._size = StatementSize()
        self._total = self._next = self._failures = self._last = 0  # of the open batch

    @property
    def expects_failures(self) -> bool:
        """Whether the next batch should begin in parts: failures come often, or a whole batch takes too long."""
        return self._stride is not None or self._size.most is not None

    def begin(self, total: int) -> None:
        """Begin a batch of ``total`` records."""
        self._total, self._next, self._failures, self._last = total, self._stride or total, 0, 0

    def part_end(self, start: int) -> int:
        """The end of the part that begins at ``start``."""
        return min(self._total, start + min(self._next, self._size.most or self._next))

    def applied(self, records: int) -> None:
        """Learn that a part was applied without a failure."""
        self._next = self._stride or 2 * self._next
        self._size.written(records)

    def failed(self, indexes: Sequence[int], resume_at: int, too_many: int | None, *, is_named: bool = False) -> None:
        """Learn which records failed (no indexes: only the part as a whole), and where the search resumes.

        ``is_named``: the error named them.
        """
        if too_many is not None:
            self._size.shorten(too_many)
        if indexes:
            self._failures += len(indexes)
            self._last = max(self._last, *indexes)
        if self._failures >= FEW:
            distance = self._last // self._failures
            self._stride = self._next = max(LEAST, distance // (NAMED_SHARE if is_named else SHARE))
            self._calm = CALM * max(LEAST, distance)
        elif self._stride is None:  # it may be the only failure: apply the rest in a few strides, which grow
            self._next = max(4 * (self._last + 1), (self._total - resume_at) // FEW_STRIDES)

    def end(self) -> None:
        """End a batch: it was applied, except for its failures."""
        self._clean = self._total - 1 - self._last if self._failures else self._clean + self._total
        if self._stride is not None and self._clean > self._calm:
            self._stride = None


def _all(part: range, _again: bool) -> Sequence[int]:
    return part


def bisect(
    n: int,
    run: Run[E],
    strides: Strides | None = None,
    admitted: Admitted = _all,
    known: PartFailure[E] | None = None,
) -> Iterator[FailedRecords[E]]:
    """Apply ``n`` records except those that fail; yields each failure, and resumes after it.

    ``run`` applies the records of these indexes, all or none, and returns why they failed, or None. ``admitted``
    removes a part's records that are not to be applied; its second argument says whether the part was run before.
    ``known`` is the failure of all records together, if it is known.
    """
    strides = strides or Strides()
    strides.begin(n)
    start = ended = 0
    while start < n:
        end = strides.part_end(start)
        part = admitted(range(start, end), start < ended)
        failure = known if known is not None and len(part) == n else run(part) if part else None
        known = None
        if failure is None:
            start = end
            strides.applied(len(part))
            continue
        failed = _narrow(part, end, run, failure)
        yield failed
        start, ended = failed.resume_at, end
        strides.failed(failed.indexes, start, failed.too_many, is_named=failed.is_named)
    strides.end()


def _narrow(part: Sequence[int], end: int, run: Run[E], failure: PartFailure[E]) -> FailedRecords[E]:
    """Find the failing record of a part that ends at ``end``; applies the records before it."""
    low, high, is_known = 0, len(part), True  # is_known: part[low:high] fails; the records below low are applied
    too_many = high if failure.was_cancelled and not failure.waited else None
    while not failure.named and high - low > 1:
        middle = (low + high) // 2
        below = run(part[low:middle])
        if below is None:
            low, is_known = middle, False
            continue
        high, failure, is_known = middle, below, True
        if failure.was_cancelled:
            too_many = None if failure.waited else high - low
    after = part[high] if high < len(part) else end
    if not is_known and not failure.named:  # the last record may succeed alone: not every error has one culprit
        alone = run(part[low:high])
        if alone is None:
            return FailedRecords((), after, failure.error, too_many)
        failure = alone
    if failure.named:
        return FailedRecords(failure.named, part[low], failure.error, is_named=True)
    return FailedRecords((part[low],), after, failure.error)
