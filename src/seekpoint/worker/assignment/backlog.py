"""The records of one partition that were read and may not be applied yet, in order. No I/O; callers pass the time.

A record waits because it is not old enough (``delay``), is scheduled for retry, or is in a suspect range, which is
tried in small parts. No record overtakes the head.
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
from seekpoint.records import Failure, Partition, RawRecord, size_of

SKEW = 1.0  # seconds that a producer's clock may be ahead before the ledger stores when its record is due

PARTS = 100  # parts into which a suspect range is divided
SINGLE = 200  # if a process crashed in a part of at most this many offsets, its records are tried one by one

_AT_ONCE = float("-inf")


class Moment(NamedTuple):
    """The time now by two clocks, in seconds: ``steady`` measures waits, ``wall`` is compared with records' timestamps.

    A record's timestamp is compared once, when the record is read, so a change of the wall clock does not affect waits
    that have begun.
    """

    steady: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        """The current time."""
        return cls(monotonic(), time())


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A record failed with this error. Its partition waits ``wait`` seconds, then the record is tried again."""

    partition: Partition
    offset: int
    failure: Failure
    wait: float
    error: BaseException


class DueBy(NamedTuple):
    """Records up to ``offset`` are due at ``steady`` (by the monotonic clock) at the latest."""

    offset: int
    steady: float


@dataclass(slots=True)
class SuspectRange:
    """The records before offset ``end`` may crash their process: they are tried in parts of ``step`` offsets.

    A process crashed in the part up to ``crashed_end``, so that part is tried in parts of ``inner`` offsets: 1, unless
    it is very long. ``noted`` is the end of the part whose attempt the ledger has recorded.
    """

    end: int
    step: int
    crashed_end: int = -1
    inner: int = 1
    noted: int = -1

    @classmethod
    def of(cls, start: int, end: int, crashed_end: int | None, total: int) -> SuspectRange:
        """The range from ``start``; ``total`` is the length of all ranges that were claimed together.

        A part has ``total / PARTS`` offsets, at most ``SINGLE``, unless the range would have more than ``PARTS`` parts.
        """
        step = max(-(-(end - start) // PARTS), min(SINGLE, -(-total // PARTS)), 1)
        if crashed_end is None:
            return cls(end, step)
        width = crashed_end - start
        return cls(end, step, crashed_end, 1 if width <= SINGLE else -(-width // PARTS))

    def step_at(self, offset: int) -> int:
        """How many offsets are tried together from this one on; 1: record by record."""
        return self.inner if offset < self.crashed_end else self.step

    def part_end(self, offset: int) -> int:
        """The end of the part that begins at this offset."""
        limit = min(self.end, self.crashed_end) if offset < self.crashed_end else self.end
        return min(limit, offset + self.step_at(offset))


class Try(NamedTuple):
    """A record for a single-record attempt; ``attempt`` is the recorded attempt, None for a suspect without one."""

    record: RawRecord
    start: int
    attempt: Attempt | None

    @property
    def tries(self) -> int:
        """How often the record was tried before."""
        return 0 if self.attempt is None else self.attempt.number

    @property
    def crashes(self) -> int:
        """How many of these attempts crashed their process."""
        return 0 if self.attempt is None else self.attempt.crashes


class Part(NamedTuple):
    """Records of a suspect range to be tried together; ``start`` is the position, ``end`` the offset after the part."""

    records: list[RawRecord]
    start: int
    end: int
    is_noted: bool


class Backlog:
    """The waiting records of an active partition. ``position`` is the one before the next record to return."""

    def __init__(self, *, delay: float | None = None, suspects: SuspectRange | None = None) -> None:
        self.position = 0
        self.bytes = 0
        self.noted: int = -1  # the ledger has stored when the records up to this offset are due
        self.suspects = suspects
        self._delay = delay
        self._queue: deque[tuple[float, RawRecord]] = deque()  # when each is due, by the monotonic clock
        self._attempt: Attempt | None = None
        self._retry_at = 0.0  # by the monotonic clock
        self._due_by: DueBy | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_over(self) -> bool:
        """Whether no record waits, and no later one will have to."""
        return not self._queue and self._delay is None and self._attempt is None and self.suspects is None

    # -- adding records -----------------------------------------------------------------------------------

    def remember(self, attempt: Attempt, now: Moment) -> None:
        """Take over the ledger's note on a record that was not applied: its next attempt, or how long it is delayed."""
        if attempt.then == DELAYED:
            # No wait is longer than the delay: the database's clock may have been set back after the wait was stored.
            wait = min(attempt.wait or 0.0, math.inf if self._delay is None else self._delay)
            self._due_by = DueBy(attempt.offset, now.steady + wait)
            self.noted = attempt.offset
            return
        self._attempt, self._retry_at = attempt, now.steady + (attempt.wait or 0.0)

    def add(self, record: RawRecord, start: int, now: Moment) -> None:
        """Add a record that came from the client; ``start`` is the read position before it."""
        if not self._queue:
            self.position = start
        self._queue.append((self._due(record, now), record))
        self.bytes += size_of([record])

    def put_back(self, records: Sequence[RawRecord], position: int, attempt: Attempt, now: Moment) -> None:
        """Put back records, the first of which failed; they are due again after ``attempt.wait``."""
        self._queue.extendleft((_AT_ONCE, record) for record in reversed(records))
        self.bytes += size_of(records)
        self.position = position
        self.remember(attempt, now)

    def _due(self, record: RawRecord, now: Moment) -> float:
        """When a record is due: at most ``delay`` after a process first saw it, whatever its timestamp says."""
        if self._delay is None or record.timestamp_ms is None:
            return _AT_ONCE
        age = max(0.0, now.wall - record.timestamp_ms / 1000)
        due = now.steady + self._delay - age
        previous = self._due_by
        return due if previous is None or record.offset > previous.offset else min(due, previous.steady)

    # -- returning records --------------------------------------------------------------------------------

    def wait(self, now: Moment) -> float | None:
        """Seconds until the first waiting record may be applied, 0 if it may be now; None if no record waits."""
        if not self._queue:
            return None
        due, head = self._queue[0]
        wait = due - now.steady
        if self._attempt_at(head) is not None:
            wait = max(wait, self._retry_at - now.steady)
        return max(0.0, wait)

    def is_single(self) -> bool:
        """Whether the head needs a single-record attempt."""
        if not self._queue:
            return False
        head = self._queue[0][1]
        if self._attempt_at(head) is not None:
            return True
        suspects = self._suspects_at(head)
        return suspects is not None and suspects.step_at(head.offset) == 1

    def _attempt_at(self, head: RawRecord) -> Attempt | None:
        """The recorded attempt, if it was at this record."""
        return self._attempt if self._attempt is not None and self._attempt.offset == head.offset else None

    def _suspects_at(self, head: RawRecord) -> SuspectRange | None:
        """The suspect range, if it contains the record."""
        return self.suspects if self.suspects is not None and head.offset < self.suspects.end else None

    def expire(self) -> None:
        """Forget the attempt and the suspect range once the head is past them."""
        if not self._queue:
            return
        head = self._queue[0][1]
        if self._attempt is not None and self._attempt.offset < head.offset:
            self._attempt = None
        if self._attempt_at(head) is None and self._suspects_at(head) is None:
            self.suspects = None

    def _is_free(self) -> bool:
        """Whether the head may be in one batch with any other records."""
        return not self.is_single() and self._suspects_at(self._queue[0][1]) is None

    def give(self, most: int, now: Moment) -> list[RawRecord]:
        """Up to ``most`` due records, from the head to the first one that needs a single-record attempt."""
        records: list[RawRecord] = []
        self.expire()
        while self._queue and len(records) < most and self.wait(now) == 0 and self._is_free():
            records.append(self._pop())
            self.expire()
            if self._attempt is None and self.suspects is None:
                self._give_rest(records, most, now.steady)
        return records

    def _give_rest(self, records: list[RawRecord], most: int, steady: float) -> None:
        """Add further due records, for which no attempt or suspect range needs a check."""
        queue = self._queue
        while queue and len(records) < most and queue[0][0] <= steady:
            records.append(self._pop())

    def give_single(self, now: Moment) -> Try | None:
        """The head, if it is due for a single-record attempt."""
        self.expire()
        if not self.is_single() or self.wait(now) != 0:
            return None
        start, attempt = self.position, self._attempt_at(self._queue[0][1])
        record = self._pop()
        if attempt is not None:  # otherwise the head is a suspect, and the record with the attempt may follow
            self._attempt = None
        return Try(record, start, attempt)

    def give_part(self, most: int, now: Moment) -> Part | None:
        """The next part of a suspect range, up to the last record that was read and is due; None if there is none."""
        self.expire()
        if not self._queue or self.wait(now) != 0 or self._is_free() or self.is_single():
            return None
        suspects, head = self.suspects, self._queue[0][1]
        assert suspects is not None
        start, is_noted = self.position, suspects.noted > head.offset
        end = suspects.noted if is_noted else suspects.part_end(head.offset)
        records: list[RawRecord] = []
        while self._queue and len(records) < most and self._queue[0][1].offset < end and self.wait(now) == 0:
            if self.is_single():
                break
            records.append(self._pop())
        return Part(records, start, end, is_noted)

    def _pop(self) -> RawRecord:
        record = self._queue.popleft()[1]
        self.position = record.offset + 1
        self.bytes -= size_of([record])
        return record

    # -- what is stored in the ledger ---------------------------------------------------------------------

    def due_by(self, now: Moment) -> DueBy | None:
        """The note to store about a head whose timestamp lies in the future; None if none is needed, or one is stored.

        Its delay counts from when it was first seen; without the note, a restart would begin the delay again.
        """
        if self._delay is None or not self._queue or self._attempt is not None:
            return None
        due, head = self._queue[0]
        wait, stated = due - now.steady, (head.timestamp_ms or 0) / 1000 + self._delay - now.wall
        if head.offset <= self.noted or wait <= SKEW or stated <= wait + SKEW:
            return None
        last = head.offset
        for other, record in self._queue:
            if other > due + SKEW:
                break
            last = record.offset
        return DueBy(last, due)
