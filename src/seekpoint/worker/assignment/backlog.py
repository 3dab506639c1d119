"""Records that were read and may not be applied yet, of one partition, in order. Pure: no I/O, no clock of its own.

Three reasons keep a record here: it is not old enough (``delay``), it failed and waits for its next try, or it is one
of those that may have crashed the partition's owners, and tried in small parts. Nothing overtakes the head.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import NamedTuple

from seekpoint.ledger import Attempt
from seekpoint.ledger.claim import DELAYED
from seekpoint.records import Failure, Partition, RawRecord

SKEW = 1.0  # seconds that a producer's clock may be ahead without anybody taking note

PARTS = 100  # in so many parts a suspect range is tried
SINGLE = 200  # offsets of a part in which a process died, at the most, that are gone through record by record

_AT_ONCE = float("-inf")


class Moment(NamedTuple):
    """Now, in seconds: waits go by the monotonic clock, timestamps are compared with the wall clock once, when read.

    So a wall clock that is set back or forward changes no wait that has begun.
    """

    steady: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        return cls(monotonic(), time())


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A record failed with this error, and is tried again ``wait`` seconds from now; its partition waits before it."""

    partition: Partition
    offset: int
    failure: Failure
    wait: float
    error: BaseException


class DueBy(NamedTuple):
    """Records up to ``offset`` are due at ``steady`` at the latest: a process before this one has seen them first."""

    offset: int
    steady: float


@dataclass(slots=True)
class SuspectRange:
    """The records in front of ``end`` may crash their process: they are tried in parts of ``step`` offsets.

    In one of the parts, up to ``crashed_end``, a process has died: that one is tried in parts of ``inner`` offsets,
    which is 1 unless it is very long. ``noted`` is the end of the part that is on record as being tried.
    """

    end: int
    step: int
    crashed_end: int = -1
    inner: int = 1
    noted: int = -1

    @classmethod
    def of(cls, start: int, end: int, crashed_end: int | None, total: int) -> SuspectRange:
        """From ``start`` on; ``total`` is the length of all ranges that were taken over together.

        They share the parts, as far as none gets too long to be gone through record by record.
        """
        step = max(-(-(end - start) // PARTS), min(SINGLE, -(-total // PARTS)), 1)
        if crashed_end is None:
            return cls(end, step)
        width = crashed_end - start
        return cls(end, step, crashed_end, 1 if width <= SINGLE else -(-width // PARTS))

    def step_at(self, offset: int) -> int:
        """How many offsets are tried at once there; 1: each record alone."""
        return self.inner if offset < self.crashed_end else self.step

    def part_end(self, offset: int) -> int:
        """Where the part that begins there ends."""
        limit = min(self.end, self.crashed_end) if offset < self.crashed_end else self.end
        return min(limit, offset + self.step_at(offset))


class Try(NamedTuple):
    """A record for a single-record attempt; ``attempt`` is what was recorded of it, None for a suspect alone."""

    record: RawRecord
    start: int
    attempt: Attempt | None

    @property
    def tries(self) -> int:
        """How often it was tried before."""
        return 0 if self.attempt is None else self.attempt.number

    @property
    def crashes(self) -> int:
        """How many of the tries ended with their process."""
        return 0 if self.attempt is None else self.attempt.crashes


class Part(NamedTuple):
    """Records of a suspect range to be tried together, in front of the offset ``end``; ``start`` is the position."""

    records: list[RawRecord]
    start: int
    end: int
    is_noted: bool


class Backlog:
    """What waits of one placement of a partition. ``position`` is where the records that are given next begin."""

    def __init__(self, *, delay: float | None = None, suspects: SuspectRange | None = None) -> None:
        self.position = 0
        self.bytes = 0
        self.noted: int = -1  # up to this offset it is on record when the records are due
        self.suspects = suspects
        self._delay = delay
        self._queue: deque[tuple[float, RawRecord]] = deque()  # due by the monotonic clock
        self._attempt: Attempt | None = None
        self._retry_at = 0.0  # steady
        self._due_by: DueBy | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, and nothing that comes will have to."""
        return not self._queue and self._delay is None and self._attempt is None and self.suspects is None

    # -- what comes in ------------------------------------------------------------------------------------

    def remember(self, attempt: Attempt, at: Moment) -> None:
        """What is on record of a record that was not applied: its next try, or when it was seen first."""
        if attempt.then == DELAYED:
            # No wait is longer than the delay: the clock that counts the rest of it may have been set back since.
            wait = min(attempt.wait or 0.0, math.inf if self._delay is None else self._delay)
            self._due_by = DueBy(attempt.offset, at.steady + wait)
            self.noted = attempt.offset
            return
        self._attempt, self._retry_at = attempt, at.steady + (attempt.wait or 0.0)

    def add(self, record: RawRecord, start: int, at: Moment) -> None:
        """A record came from the client; ``start`` is the reader's position before it."""
        if not self._queue:
            self.position = start
        self._queue.append((self._due(record, at), record))
        self.bytes += _size(record)

    def put_back(self, records: Sequence[RawRecord], position: int, attempt: Attempt, at: Moment) -> None:
        """These were given and not applied, the first one failed: they are the next again, after ``attempt.wait``."""
        self._queue.extendleft((_AT_ONCE, record) for record in reversed(records))
        self.bytes += sum(map(_size, records))
        self.position = position
        self.remember(attempt, at)

    def _due(self, record: RawRecord, at: Moment) -> float:
        """Never later than ``delay`` after a process has first seen it, whatever its timestamp says."""
        if self._delay is None or record.timestamp_ms is None:
            return _AT_ONCE
        age = max(0.0, at.wall - record.timestamp_ms / 1000)
        due = at.steady + self._delay - age
        known = self._due_by
        return due if known is None or record.offset > known.offset else min(due, known.steady)

    # -- what may go --------------------------------------------------------------------------------------

    def wait(self, at: Moment) -> float | None:
        """Seconds until the head may be given, 0 if it may be now; None where nothing waits."""
        if not self._queue:
            return None
        due, head = self._queue[0]
        wait = due - at.steady
        if self._attempt_at(head) is not None:
            wait = max(wait, self._retry_at - at.steady)
        return max(0.0, wait)

    def is_single(self) -> bool:
        """Whether the head is to be tried in a transaction of its own."""
        if not self._queue:
            return False
        head = self._queue[0][1]
        if self._attempt_at(head) is not None:
            return True
        suspects = self._suspects_at(head)
        return suspects is not None and suspects.step_at(head.offset) == 1

    def _attempt_at(self, head: RawRecord) -> Attempt | None:
        """The attempt on record of this very record."""
        return self._attempt if self._attempt is not None and self._attempt.offset == head.offset else None

    def _suspects_at(self, head: RawRecord) -> SuspectRange | None:
        """The suspect range that the record is in."""
        return self.suspects if self.suspects is not None and head.offset < self.suspects.end else None

    def expire(self) -> None:
        """Forget the attempt and the suspect range where the head is past them: their records are gone or applied."""
        if not self._queue:
            return
        head = self._queue[0][1]
        if self._attempt is not None and self._attempt.offset < head.offset:
            self._attempt = None
        if self._attempt_at(head) is None and self._suspects_at(head) is None:
            self.suspects = None

    def _is_free(self) -> bool:
        """Whether the head may go with any others."""
        return not self.is_single() and self._suspects_at(self._queue[0][1]) is None

    def give(self, most: int, at: Moment) -> list[RawRecord]:
        """Up to ``most`` records from the head on that are due, and need no single-record attempt."""
        given: list[RawRecord] = []
        self.expire()
        while self._queue and len(given) < most and self.wait(at) == 0 and self._is_free():
            given.append(self._pop())
            self.expire()
            if self._attempt is None and self.suspects is None:
                self._give_rest(given, most, at.steady)
        return given

    def _give_rest(self, given: list[RawRecord], most: int, steady: float) -> None:
        """Give more where no record needs an attempt of its own: of each is asked only when it is due."""
        queue = self._queue
        while queue and len(given) < most and queue[0][0] <= steady:
            given.append(self._pop())

    def give_single(self, at: Moment) -> Try | None:
        """The head, if it is due for a single-record attempt."""
        self.expire()
        if not self.is_single() or self.wait(at) != 0:
            return None
        start, attempt = self.position, self._attempt_at(self._queue[0][1])
        record = self._pop()
        if attempt is not None:  # else suspected, perhaps in front of the one on record
            self._attempt = None
        return Try(record, start, attempt)

    def give_part(self, most: int, at: Moment) -> Part | None:
        """The next part of a suspect range, as far as it is here and due; None where the head is in none."""
        self.expire()
        if not self._queue or self.wait(at) != 0 or self._is_free() or self.is_single():
            return None
        suspects, head = self.suspects, self._queue[0][1]
        assert suspects is not None
        start, is_noted = self.position, suspects.noted > head.offset
        end = suspects.noted if is_noted else suspects.part_end(head.offset)
        given: list[RawRecord] = []
        while self._queue and len(given) < most and self._queue[0][1].offset < end and self.wait(at) == 0:
            if self.is_single():
                break
            given.append(self._pop())
        return Part(given, start, end, is_noted)

    def _pop(self) -> RawRecord:
        record = self._queue.popleft()[1]
        self.position = record.offset + 1
        self.bytes -= _size(record)
        return record

    # -- what is put on record ----------------------------------------------------------------------------

    def due_by(self, at: Moment) -> DueBy | None:
        """What must be recorded of the head's timestamp, if it lies in the future; None if nothing, or if it is.

        Its wait is counted from when it was seen first: without a note a restart would begin it again.
        """
        if self._delay is None or not self._queue or self._attempt is not None:
            return None
        due, head = self._queue[0]
        wait, stated = due - at.steady, (head.timestamp_ms or 0) / 1000 + self._delay - at.wall
        if head.offset <= self.noted or wait <= SKEW or stated <= wait + SKEW:
            return None
        last = head.offset
        for other, record in self._queue:
            if other > due + SKEW:
                break
            last = record.offset
        return DueBy(last, due)


def _size(record: RawRecord) -> int:
    return len(record.value or b"") + len(record.key or b"")
