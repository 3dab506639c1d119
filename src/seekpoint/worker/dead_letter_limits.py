"""The limits on dead letters, as a streak and as a share of the records: a worker at a limit stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seekpoint.errors import TooManyDeadLetters
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import NewDeadLetter, Partition, State
from seekpoint.worker.open_batch import BatchResult

FailedByOffset = Mapping[Partition, Mapping[int, NewDeadLetter]]
"""The dead letters of one batch, by partition and offset."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What one batch adds: the failures in a row after it, and how many of all records failed."""

    consecutive: ConsecutiveFailures
    passed: int
    failed: int


class DeadLetterLimitCheck:
    """Counts what one worker applied and dead-lettered, batch by batch."""

    def __init__(self, limits: DeadLetterLimits) -> None:
        self._limits = limits
        self._consecutive = ConsecutiveFailures({})
        self._batches: deque[tuple[int, int]] = deque()  # passed and failed, of as many as have ``window`` records
        self._passed = self._failed = 0

    def check(self, batch: BatchResult, applied: int) -> BatchCounts:
        """What the batch adds, not counted yet. Raises TooManyDeadLetters: then nothing of it may be committed."""
        dead_letters = [one for one in batch.dead_letters if one.state is not State.BLOCKED]
        if not dead_letters and self._consecutive.is_empty:
            return BatchCounts(self._consecutive, applied, 0)
        failed = _by_offset(dead_letters)
        most, ratio, passed = self._limits.consecutive, self._limits.ratio, applied + len(dead_letters)
        if most is not None and (last := self._consecutive.exceeds(most, batch, failed)) is not None:
            raise _too_many(last, f"more than {most} records in a row failed", "consecutive")
        counts = BatchCounts(self._consecutive.after(batch, failed), passed, len(dead_letters))
        passed, failures = self._passed + counts.passed, self._failed + counts.failed
        if dead_letters and ratio is not None and passed >= self._limits.window and failures > ratio * passed:
            share = f"{failures} of the last {passed} records failed, the limit is {ratio:.0%}"
            raise _too_many(dead_letters[-1], share, "ratio")
        return counts

    def count(self, counts: BatchCounts) -> None:
        """Count a batch that was committed."""
        self._consecutive = counts.consecutive
        self._batches.append((counts.passed, counts.failed))
        self._passed, self._failed = self._passed + counts.passed, self._failed + counts.failed
        while self._passed - self._batches[0][0] >= self._limits.window:
            passed, failed = self._batches.popleft()
            self._passed, self._failed = self._passed - passed, self._failed - failed


class ConsecutiveFailures:
    """The streak with which each partition ends, over all batches so far; an applied record ends a streak."""

    def __init__(self, streaks: Mapping[Partition, int]) -> None:
        self._streaks = streaks

    @property
    def is_empty(self) -> bool:
        """Whether no partition's last record failed."""
        return not self._streaks

    def exceeds(self, most: int, batch: BatchResult, failed: FailedByOffset) -> NewDeadLetter | None:
        """The first dead letter of the batch that makes a streak longer than ``most``, or None."""
        if not any(self._streaks.get(at, 0) + len(found) > most for at, found in failed.items()):
            return None
        streaks = dict(self._streaks)
        for record in batch.passed():
            at = Partition(record.topic, record.partition)
            one = failed[at].get(record.offset) if at in failed else None
            streaks[at] = 0 if one is None else streaks.get(at, 0) + 1
            if one is not None and streaks[at] > most:
                return one
        return None

    def after(self, batch: BatchResult, failed: FailedByOffset) -> ConsecutiveFailures:
        """The streaks once the batch is committed. A batch that is stopped in front of all its records changes none."""
        streaks, added = dict(self._streaks), dict.fromkeys(failed, 0)
        growing = {*failed, *(at for at in streaks if at in batch.reads)}
        for record in batch.passed(newest_first=True) if growing else ():
            at = Partition(record.topic, record.partition)
            if at in growing and at in failed and record.offset in failed[at]:
                added[at] += 1
            elif at in growing:
                growing.remove(at)
                streaks.pop(at, None)
            if not growing:
                break
        for at, count in added.items():
            streaks[at] = streaks.get(at, 0) + count
        return ConsecutiveFailures(streaks)


def _by_offset(dead_letters: Sequence[NewDeadLetter]) -> dict[Partition, dict[int, NewDeadLetter]]:
    found: dict[Partition, dict[int, NewDeadLetter]] = {}
    for one in dead_letters:
        found.setdefault(Partition(one.record.topic, one.record.partition), {})[one.record.offset] = one
    return found


def _too_many(last: NewDeadLetter, what: str, limit: str) -> TooManyDeadLetters:
    at = last.record
    return TooManyDeadLetters(
        f"{what}: the worker stops in front of them instead of draining the topic into the dead letters. The last one "
        f"is {at.topic}/{at.partition} at offset {at.offset}: {last.failure.error}. Fix the handler, the codec or "
        f"the table and start again; or raise DeadLetterLimits({limit}=...)"
    )
