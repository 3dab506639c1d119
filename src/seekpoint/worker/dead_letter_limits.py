"""Stops a worker that dead-letters too many records in a row, or too large a share."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seekpoint.errors import TooManyDeadLetters
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import NewDeadLetter, Partition
from seekpoint.worker.open_batch import UNDECIDED, BatchResult

FailedByOffset = Mapping[Partition, Mapping[int, NewDeadLetter]]
"""The dead letters of one batch, by partition and offset."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The counts of one batch: the streaks after it, its passed records, and how many of these failed."""

    consecutive: ConsecutiveFailures
    passed: int
    failed: int


class DeadLetterLimitCheck:
    """Counts what one worker applied and dead-lettered, batch by batch."""

    def __init__(self, limits: DeadLetterLimits) -> None:
        self._limits = limits
        self._consecutive = ConsecutiveFailures({})
        self._retried: dict[Partition, int] = {}  # waiting records in a row that were dead-lettered
        self._batches: deque[tuple[int, int]] = deque()  # passed and failed, over the last ``window`` records
        self._passed = self._failed = 0

    def check(self, batch: BatchResult, applied: int) -> BatchCounts:
        """The batch's counts, not added yet. After TooManyDeadLetters, nothing of the batch may be committed."""
        dead_letters = [dead_letter for dead_letter in batch.dead_letters if dead_letter.state not in UNDECIDED]
        if not dead_letters and self._consecutive.is_empty:
            return BatchCounts(self._consecutive, applied, 0)
        failed = _by_offset(dead_letters)
        most, passed = self._limits.consecutive, applied + len(dead_letters)
        if most is not None and (last := self._consecutive.exceeds(most, batch, failed)) is not None:
            raise _too_many(last, f"more than {most} records in a row failed", "consecutive")
        counts = BatchCounts(self._consecutive.after(batch, failed), passed, len(dead_letters))
        if dead_letters:
            self._require_ratio(counts, self._limits.ratio, dead_letters[-1])
        return counts

    def _require_ratio(self, counts: BatchCounts, ratio: float | None, last: NewDeadLetter) -> None:
        passed, failures = self._passed + counts.passed, self._failed + counts.failed
        if ratio is not None and passed >= self._limits.window and failures > ratio * passed:
            share = f"{failures} of the last {passed} records failed, the limit is {ratio:.0%}"
            raise _too_many(last, share, "ratio")

    def check_retry(self, partition: Partition, dead_letter: NewDeadLetter | None) -> BatchCounts:
        """The counts of one retry of a waiting record: applied, or dead-lettered after its last attempt.

        Not added yet. After TooManyDeadLetters, the record is not dead-lettered.
        """
        counts = BatchCounts(self._consecutive, 1, int(dead_letter is not None))
        if dead_letter is not None:
            most = self._limits.consecutive
            if most is not None and self._retried.get(partition, 0) >= most:
                problem = f"more than {most} waiting records in a row failed on every attempt"
                raise _too_many(dead_letter, problem, "consecutive")
            self._require_ratio(counts, self._limits.ratio, dead_letter)
        return counts

    def count_retry(self, partition: Partition, counts: BatchCounts) -> None:
        """Count a retry whose result was committed."""
        self._retried[partition] = self._retried.get(partition, 0) + 1 if counts.failed else 0
        self.count(counts)

    def count(self, counts: BatchCounts) -> None:
        """Count a batch that was committed."""
        self._consecutive = counts.consecutive
        self._batches.append((counts.passed, counts.failed))
        self._passed, self._failed = self._passed + counts.passed, self._failed + counts.failed
        while self._passed - self._batches[0][0] >= self._limits.window:
            passed, failed = self._batches.popleft()
            self._passed, self._failed = self._passed - passed, self._failed - failed


class ConsecutiveFailures:
    """Each partition's current streak over all batches; an applied record ends a streak."""

    def __init__(self, streaks: Mapping[Partition, int]) -> None:
        self._streaks = streaks

    @property
    def is_empty(self) -> bool:
        """Whether no partition's last record failed."""
        return not self._streaks

    def exceeds(self, most: int, batch: BatchResult, failed: FailedByOffset) -> NewDeadLetter | None:
        """The first dead letter of the batch that makes a streak longer than ``most``, or None."""
        if not any(
            self._streaks.get(partition, 0) + len(dead_letters) > most for partition, dead_letters in failed.items()
        ):
            return None
        streaks = dict(self._streaks)
        for record in batch.passed():
            partition = Partition(record.topic, record.partition)
            dead_letter = failed[partition].get(record.offset) if partition in failed else None
            streaks[partition] = 0 if dead_letter is None else streaks.get(partition, 0) + 1
            if dead_letter is not None and streaks[partition] > most:
                return dead_letter
        return None

    def after(self, batch: BatchResult, failed: FailedByOffset) -> ConsecutiveFailures:
        """The streaks once the batch is committed. A batch that stops before its first record changes no streak."""
        streaks, added = dict(self._streaks), dict.fromkeys(failed, 0)
        growing = {*failed, *(partition for partition in streaks if partition in batch.reads)}
        for record in batch.passed(newest_first=True) if growing else ():
            partition = Partition(record.topic, record.partition)
            if partition in growing and partition in failed and record.offset in failed[partition]:
                added[partition] += 1
            elif partition in growing:
                growing.remove(partition)
                streaks.pop(partition, None)
            if not growing:
                break
        for partition, count in added.items():
            streaks[partition] = streaks.get(partition, 0) + count
        return ConsecutiveFailures(streaks)


def _by_offset(dead_letters: Sequence[NewDeadLetter]) -> dict[Partition, dict[int, NewDeadLetter]]:
    failed: dict[Partition, dict[int, NewDeadLetter]] = {}
    for dead_letter in dead_letters:
        record = dead_letter.record
        failed.setdefault(Partition(record.topic, record.partition), {})[record.offset] = dead_letter
    return failed


def _too_many(last: NewDeadLetter, problem: str, limit: str) -> TooManyDeadLetters:
    record = last.record
    return TooManyDeadLetters(
        f"{problem}: the worker stops before these records instead of dead-lettering the whole topic. The last one is "
        f"{record.topic}/{record.partition} at offset {record.offset}: {last.failure.error}. Fix the handler, "
        f"the codec or the table and start again; or raise DeadLetterLimits({limit}=...)"
    )
