"""Records that were read and may not be applied yet, of one partition, in order. Pure: no I/O, no clock of its own.

Three reasons keep a record here: it is not old enough (``delay``), it failed and waits for its next try, or it is to
be tried alone, as it failed before or may be what killed the partition's owners. Nothing overtakes the head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import NamedTuple

from seekpoint.ledger import Attempt
from seekpoint.ledger.claim import DELAYED
from seekpoint.records import RawRecord

SKEW = 1.0  # seconds that a producer's clock may be ahead without anybody taking note

_AT_ONCE = float("-inf")


class Moment(NamedTuple):
    """Now, by the monotonic clock and by the wall's, in seconds: waits go by the first, timestamps by the second."""

    steady: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(monotonic(), time())


class Horizon(NamedTuple):
    """Records up to ``offset`` are due at ``wall`` at the latest: a process before this one has seen them first."""

    offset: int
    wall: float


@dataclass(slots=True)
class Patience:
    """How many more records are tried one by one, of all partitions that were taken over together."""

    left: int


@dataclass(slots=True)
class Watch:
    """The next records in front of the offset ``until`` are tried one by one, while the patience lasts: one may kill.

    What killed was in one batch with everything else that the dead owner had in hand, so the partitions that it left
    share one batch's worth of patience. Where that does not reach as far, the next death buys another.
    """

    patience: Patience
    until: int


class Try(NamedTuple):
    """A record to be tried alone, ``tries`` times tried before; ``attempt`` is what was on record of it, if anything.

    It is tried under suspicion alone where nothing is on record.
    """

    record: RawRecord
    start: int
    tries: int
    attempt: Attempt | None


class Backlog:
    """What waits of one placement of a partition. ``position`` is where the records that are given next begin."""

    def __init__(self, *, delay: float | None = None, watch: Watch | None = None) -> None:
        self.position = 0
        self.bytes = 0
        self.noted: int = -1  # up to this offset it is on record when the records are due
        self._delay, self._watch = delay, watch
        self._queue: deque[tuple[float, RawRecord]] = deque()  # due by the wall's clock
        self._attempt: Attempt | None = None
        self._retry_at = 0.0  # steady
        self._horizon: Horizon | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, and nothing that comes will have to."""
        return not self._queue and self._delay is None and self._attempt is None and self._watch is None

    # -- what comes in ------------------------------------------------------------------------------------

    def remember(self, attempt: Attempt, at: Moment) -> None:
        """What is on record of a record that was not applied: its next try, or when it was seen first."""
        if attempt.then == DELAYED:
            self._horizon = Horizon(attempt.offset, at.wall + (attempt.wait or 0.0))
            self.noted = attempt.offset
            return
        self._attempt, self._retry_at = attempt, at.steady + (attempt.wait or 0.0)

    def add(self, record: RawRecord, start: int, at: Moment) -> None:
        """A record came from the client; ``start`` is where the reader stood before it."""
        if not self._queue:
            self.position = start
        self._queue.append((self._due(record, at), record))
        self.bytes += _size(record)

    def put_back(self, records: Sequence[RawRecord], position: int, attempt: Attempt, at: Moment) -> None:
        """These were given and not applied, the first one failed: they are the next again, behind ``attempt.wait``."""
        self._queue.extendleft((_AT_ONCE, record) for record in reversed(records))
        self.bytes += sum(map(_size, records))
        self.position = position
        self.remember(attempt, at)

    def _due(self, record: RawRecord, at: Moment) -> float:
        """Never later than ``delay`` after somebody has seen it first, whatever its timestamp says."""
        if self._delay is None or record.timestamp_ms is None:
            return _AT_ONCE
        due = min(record.timestamp_ms / 1000, at.wall) + self._delay
        known = self._horizon
        return due if known is None or record.offset > known.offset else min(due, known.wall)

    # -- what may go --------------------------------------------------------------------------------------

    def wait(self, at: Moment) -> float | None:
        """Seconds until the head may be given, 0 if it may be now; None where nothing waits."""
        if not self._queue:
            return None
        due, head = self._queue[0]
        wait = due - at.wall
        if (attempt := self._attempt_at(head)) is not None and attempt.offset == head.offset:
            wait = max(wait, self._retry_at - at.steady)
        return max(0.0, wait)

    def is_alone(self) -> bool:
        """Whether the head is to be tried in a transaction of its own."""
        if not self._queue:
            return False
        head = self._queue[0][1]
        attempt = self._attempt_at(head)
        return (attempt is not None and attempt.offset == head.offset) or self._is_watched(head)

    def _attempt_at(self, head: RawRecord) -> Attempt | None:
        """The attempt at this record or a later one; one at a record that is no more is over."""
        if self._attempt is not None and self._attempt.offset < head.offset:
            self._attempt = None
        return self._attempt

    def _is_watched(self, head: RawRecord) -> bool:
        watch = self._watch
        if watch is not None and (watch.patience.left <= 0 or head.offset >= watch.until):
            watch = self._watch = None
        return watch is not None

    def give(self, most: int, at: Moment) -> list[RawRecord]:
        """Up to ``most`` records from the head on that are due, and need not be tried alone."""
        given: list[RawRecord] = []
        while self._queue and len(given) < most and self.wait(at) == 0 and not self.is_alone():
            given.append(self._pop())
            if self._attempt is None and self._watch is None:
                self._give_rest(given, most, at.wall)
        return given

    def _give_rest(self, given: list[RawRecord], most: int, wall: float) -> None:
        """The same where nothing is to be tried alone: nothing is asked of each record but when it is due."""
        queue = self._queue
        while queue and len(given) < most and queue[0][0] <= wall:
            given.append(self._pop())

    def give_alone(self, at: Moment) -> Try | None:
        """The head, if it is due and to be tried alone."""
        if not self.is_alone() or self.wait(at) != 0:
            return None
        attempt, self._attempt = self._attempt, None
        start = self.position
        record = self._pop()
        if self._watch is not None:
            self._watch.patience.left -= 1
        if attempt is not None and attempt.offset != record.offset:  # suspected, in front of the one on record
            self._attempt, attempt = attempt, None
        return Try(record, start, 0 if attempt is None else attempt.number, attempt)

    def _pop(self) -> RawRecord:
        record = self._queue.popleft()[1]
        self.position = record.offset + 1
        self.bytes -= _size(record)
        return record

    # -- what is put on record ----------------------------------------------------------------------------

    def horizon(self, at: Moment) -> Horizon | None:
        """What must go on record of the head's timestamp, if it lies in the future; None if nothing, or if it is.

        Its wait is counted from when it was seen first: without a note a restart would begin it anew.
        """
        if self._delay is None or not self._queue or self._attempt is not None:
            return None
        due, head = self._queue[0]
        stated = (head.timestamp_ms or 0) / 1000 + self._delay
        if head.offset <= self.noted or due <= at.wall + SKEW or stated <= due + SKEW:
            return None
        last = head.offset
        for other, record in self._queue:
            if other > due + SKEW:
                break
            last = record.offset
        return Horizon(last, due)


def _size(record: RawRecord) -> int:
    return len(record.value or b"") + len(record.key or b"")
