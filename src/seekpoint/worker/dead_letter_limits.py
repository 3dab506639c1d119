"""The limits on dead letters: a worker stops, instead of draining a topic into them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from seekpoint.errors import TooManyDeadLetters
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import NewDeadLetter, Partition, State
from seekpoint.worker.open_batch import Result


@dataclass(slots=True)
class BatchCounts:
    """What one batch adds: per partition the failures in a row, and how many of all records failed."""

    streaks: dict[Partition, int] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0


class DeadLetterLimitCheck:
    """Counts what one worker passed and set aside, batch by batch."""

    def __init__(self, limits: DeadLetterLimits) -> None:
        self._limits = limits
        self._streaks: dict[Partition, int] = {}
        self._window: deque[tuple[int, int]] = deque()
        self._passed = self._failed = 0

    def check(self, batch: Result, applied: int) -> BatchCounts:
        """What the batch adds, not counted yet. Raises TooManyDeadLetters: then nothing of it may be committed."""
        asides = [aside for aside in batch.dead_letters if aside.state is not State.BLOCKED]
        tally = BatchCounts(passed=applied + len(asides), failed=len(asides))
        self._check_streaks(batch, asides, tally)
        if asides:
            self._check_ratio(asides[-1], tally)
        return tally

    def count(self, tally: BatchCounts) -> None:
        """Count a batch that was committed."""
        self._streaks = tally.streaks
        self._window.append((tally.passed, tally.failed))
        self._passed, self._failed = self._passed + tally.passed, self._failed + tally.failed
        while self._passed - self._window[0][0] >= self._limits.window:
            passed, failed = self._window.popleft()
            self._passed, self._failed = self._passed - passed, self._failed - failed

    def _check_streaks(self, batch: Result, asides: list[NewDeadLetter], tally: BatchCounts) -> None:
        """The failures in a row with which each partition ends; and where more may stand in a row, that they do not."""
        failed: dict[Partition, dict[int, NewDeadLetter]] = {}
        for aside in asides:
            at = Partition(aside.record.topic, aside.record.partition)
            failed.setdefault(at, {})[aside.record.offset] = aside
        most = self._limits.consecutive
        if most is not None and any(self._streaks.get(at, 0) + len(found) > most for at, found in failed.items()):
            self._check_each_streak(batch, failed, most)
        tally.streaks = dict(self._streaks)  # a record that is applied ends a row; a batch cut in front of all has none
        ended: dict[Partition, int] = dict.fromkeys(failed, 0)
        open_rows = {*failed, *(at for at in self._streaks if at in batch.reads)}
        for record in batch.passed(newest_first=True) if open_rows else ():
            at = Partition(record.topic, record.partition)
            if at in failed and at in open_rows and record.offset in failed[at]:
                ended[at] += 1
            elif at in open_rows:
                open_rows.remove(at)
                tally.streaks.pop(at, None)
            if not open_rows:
                break
        for at, row in ended.items():
            tally.streaks[at] = tally.streaks.get(at, 0) + row

    def _check_each_streak(self, batch: Result, failed: dict[Partition, dict[int, NewDeadLetter]], most: int) -> None:
        rows = dict(self._streaks)
        for record in batch.passed():
            at = Partition(record.topic, record.partition)
            aside = failed[at].get(record.offset) if at in failed else None
            rows[at] = 0 if aside is None else rows.get(at, 0) + 1
            if aside is not None and rows[at] > most:
                raise _too_many(aside, f"more than {most} records in a row failed", "consecutive")

    def _check_ratio(self, last: NewDeadLetter, tally: BatchCounts) -> None:
        ratio, passed, failed = self._limits.ratio, self._passed + tally.passed, self._failed + tally.failed
        if ratio is not None and passed >= self._limits.window and failed > ratio * passed:
            raise _too_many(last, f"{failed} of the last {passed} records failed, the limit is {ratio:.0%}", "ratio")


def _too_many(last: NewDeadLetter, what: str, limit: str) -> TooManyDeadLetters:
    at = last.record
    return TooManyDeadLetters(
        f"{what}: the worker stops in front of them instead of draining the topic into the dead letters. The last one "
        f"is {at.topic}/{at.partition} at offset {at.offset}: {last.failure.error}. Fix the handler, the codec or "
        f"the table and start again; or raise DeadLetterLimits({limit}=...)"
    )
