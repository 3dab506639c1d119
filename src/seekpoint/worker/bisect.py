"""Find what fails in a part of a batch, and how long the parts should be: numbers alone, without a database.

What fails is found by halves: the records in front of it stay applied, and the search resumes after it. One bad record
in n costs about log2(n) calls; where the database or the handler names it, one. Where many fail, no part is longer than
a share of the distance at which they come, so that the cost grows with their number, not with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

FEW = 2  # failures in one batch, from which on their distance is known
SHARE = 4  # parts per distance between two failures: longer ones are run in vain, shorter ones cost round trips
NAMED_SHARE = 1  # the same where failures are named: a part is run in vain once, not at each step of a search
CALM = 8  # distances without a failure, after which no more are expected; a batch may be shorter than one
FEW_STRIDES = 8  # of what is left after the first failure, the first part is so much at least
LEAST = 16  # records of one part, at the least

E = TypeVar("E")


class PartFailure(NamedTuple, Generic[E]):
    """Why a part failed. ``named``: which of the records did, where the error says so.

    ``was_cancelled``: a statement took longer than it may; ``waited``: for a lock, which says nothing of its size.
    """

    error: E
    named: tuple[int, ...] = ()
    was_cancelled: bool = False
    waited: bool = False


class Found(NamedTuple, Generic[E]):
    """What failed. ``indexes``: the records that failed; none where a part fails only as a whole.

    What lies in front of ``resume_at`` is applied or failed; the search resumes there. ``too_many``: so many records
    took longer than a statement may, and none of them alone does. ``is_named``: the error said which.
    """

    indexes: tuple[int, ...]
    resume_at: int
    error: E
    too_many: int | None = None
    is_named: bool = False


Run = Callable[[Sequence[int]], PartFailure[E] | None]
Admitted = Callable[[range, bool], Sequence[int]]


class StatementSize:
    """How many records one statement may write; None: any number. Learned from statements that took too long.

    It doubles after so many full parts without one, and doubles less often where that was too many again: what takes
    too long once may have had another reason.
    """

    FIRST, LAST = 8, 1024  # full parts before it doubles

    def __init__(self) -> None:
        self.most: int | None = None
        self._whole = self._clean = 0
        self._full_parts, self._has_grown = self.FIRST, False

    def shorten(self, too_many: int) -> None:
        """So many took too long: half as many from now on."""
        if self.most is None:
            self._whole, self._full_parts = too_many, self.FIRST
        elif self._has_grown:
            self._full_parts = min(self.LAST, 2 * self._full_parts)
        self.most, self._clean, self._has_grown = max(1, too_many // 2), 0, False

    def written(self, records: int) -> None:
        """A part was written in time."""
        if self.most is None or records < self.most:
            return
        self._clean += 1
        if self._clean >= self._full_parts:
            self.most, self._clean, self._has_grown = 2 * self.most, 0, True
            if self.most >= self._whole:
                self.most = None


class Strides:
    """How many records to apply at once: learned from how far apart the failures come, from batch to batch."""

    def __init__(self) -> None:
        self._stride: int | None = None  # records per part; None: all that is left
        self._calm = 0  # records without a failure, after which no more are expected
        self._clean = 0  # records since the last failure
        self._size = StatementSize()
        self._total = self._next = self._found = self._last = 0  # of the batch in hand

    @property
    def expects_failures(self) -> bool:
        """Whether the next batch should begin in parts: failures come often, or a whole one takes too long."""
        return self._stride is not None or self._size.most is not None

    def begin(self, total: int) -> None:
        """A batch of so many records begins."""
        self._total, self._next, self._found, self._last = total, self._stride or total, 0, 0

    def part_end(self, start: int) -> int:
        """Where the part that begins there ends."""
        return min(self._total, start + min(self._next, self._size.most or self._next))

    def applied(self, records: int) -> None:
        """A part of so many records was applied at once."""
        self._next = self._stride or 2 * self._next
        self._size.written(records)

    def failed(self, indexes: Sequence[int], resume_at: int, too_many: int | None, *, is_named: bool = False) -> None:
        """Records failed, at these places of the batch (none: a part failed only as a whole); where it resumes.

        ``is_named``: the error said which.
        """
        if too_many is not None:
            self._size.shorten(too_many)
        if indexes:
            self._found += len(indexes)
            self._last = max(self._last, *indexes)
        if self._found >= FEW:
            distance = self._last // self._found
            self._stride = self._next = max(LEAST, distance // (NAMED_SHARE if is_named else SHARE))
            self._calm = CALM * max(LEAST, distance)
        elif self._stride is None:  # perhaps the only one: the rest in a few strides, which grow
            self._next = max(4 * (self._last + 1), (self._total - resume_at) // FEW_STRIDES)

    def end(self) -> None:
        """The batch was applied, but for its failures."""
        self._clean = self._total - 1 - self._last if self._found else self._clean + self._total
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
) -> Iterator[Found[E]]:
    """Apply ``n`` records but for those that fail; yields each failure, and resumes after it.

    ``run`` applies the records of these indexes, all or none, and returns why they failed, or None. ``admitted`` leaves
    out those of a part that are not to be applied; its second argument says whether the part was run before. ``known``
    is the failure of all of them together, if that is known.
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
        found = _narrow(part, end, run, failure)
        yield found
        start, ended = found.resume_at, end
        strides.failed(found.indexes, start, found.too_many, is_named=found.is_named)
    strides.end()


def _narrow(part: Sequence[int], end: int, run: Run[E], failure: PartFailure[E]) -> Found[E]:
    """Find the record that fails in a part, which ends at ``end``; everything in front of it was applied."""
    low, high, is_known = 0, len(part), True  # part[low:high] fails, if that is known; what is below is applied
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
    if not is_known and not failure.named:  # alone, it may succeed: not every error is one record's fault
        alone = run(part[low:high])
        if alone is None:
            return Found((), after, failure.error, too_many)
        failure = alone
    if failure.named:
        return Found(failure.named, part[low], failure.error, is_named=True)
    return Found((part[low],), after, failure.error)
