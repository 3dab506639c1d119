"""The limits on dead letters: what is counted, and that the batch that goes beyond them is refused."""

from __future__ import annotations

from uuid import uuid4

import pytest

from seekpoint import DeadLetterLimits, Partition
from seekpoint.errors import TooManyDeadLetters
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim
from seekpoint.pipeline.policy import Limits
from seekpoint.records import BLOCKED_BY_KEY, Cause, Failure, NewDeadLetter, State
from seekpoint.testing import raw
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.dead_letter_limits import DeadLetterLimitCheck
from seekpoint.worker.open_batch import BatchResult, Buffer, OpenBatch, Written


class Source:
    """Batches of one or several partitions: a character for each record, x if it failed, h if it is blocked."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}

    def batch(self, **partitions: str) -> tuple[BatchResult, int]:
        records, reads, asides = [], {}, []
        for name, kinds in partitions.items():
            number = int(name[1:])
            partition, start = Partition("t", number), self.at.get(number, 0)
            self.at[number] = start + len(kinds)
            reads[partition] = Read(Claim(partition, uuid4(), 1, start, None, uuid4()), start, start + len(kinds))
            for n, kind in enumerate(kinds):
                record = raw(b"", topic="t", partition=number, offset=start + n)
                records.append(record)
                if kind == "x":
                    asides.append(
                        NewDeadLetter(record, Failure(Cause.DECODE, f"ValueError: {start + n}"), State.DEAD_LETTERED)
                    )
                if kind == "h":
                    asides.append(NewDeadLetter(record, BLOCKED_BY_KEY, State.BLOCKED))
        batch = OpenBatch(Buffer(Chunk(records, reads), lambda: None, lambda *_: Answer(), Limits()))
        for aside in asides:
            batch.outcome.add_dead_letter(aside)
        applied = len(records) - len(asides)
        return BatchResult.of(batch, Written(applied, [])), applied


def passes(quarantine: DeadLetterLimitCheck, batch: BatchResult, applied: int) -> None:
    quarantine.count(quarantine.check(batch, applied))


def test_a_row_of_failures_is_counted_over_batches_and_by_partition() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=3, ratio=None)), Source()
    passes(quarantine, *source.batch(p0=".xx", p1="xx"))
    passes(quarantine, *source.batch(p1="."))  # ends the row of partition 1, and of no other
    passes(quarantine, *source.batch(p0="x", p1="xxx"))
    with pytest.raises(TooManyDeadLetters, match=r"more than 3 .* t/0 at offset 4: ValueError: 4"):
        quarantine.check(*source.batch(p0="x"))


def test_a_record_that_is_applied_ends_the_row_and_one_that_is_held_does_not_count() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=2, ratio=None)), Source()
    passes(quarantine, *source.batch(p0="xxhhh"))
    passes(quarantine, *source.batch(p0=".xx.xx"))
    with pytest.raises(TooManyDeadLetters):
        quarantine.check(*source.batch(p0="hx"))


def test_batches_in_between_that_pass_nothing_do_not_end_the_row() -> None:
    """A record that is tried again ends its batch before it; one that is held is not applied either."""
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=2, ratio=None)), Source()
    for _ in range(2):
        again, _ = source.batch(p0=".", p1="x")
        retry = RetryLater(Partition("t", 0), source.at[0] - 1, BLOCKED_BY_KEY, 0.0, OSError())
        again.batch.outcome.end_at(retry)
        passes(quarantine, BatchResult.of(again.batch, Written(0, [])), 0)
        passes(quarantine, *source.batch(p0="h"))
        passes(quarantine, *source.batch(p0="x", p1="."))
    with pytest.raises(TooManyDeadLetters):
        quarantine.check(*source.batch(p0="x"))


def test_blocked_records_have_no_share() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=None, ratio=0.5, window=10)), Source()
    passes(quarantine, *source.batch(p0="....." + "x" * 5 + "h" * 20))


def test_what_was_only_checked_is_not_counted() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=2, ratio=None)), Source()
    batch = source.batch(p0="xx")
    for _ in range(3):  # attempts of one batch that were rolled back
        tally = quarantine.check(*batch)
    quarantine.count(tally)
    with pytest.raises(TooManyDeadLetters):
        quarantine.check(*source.batch(p0="x"))


def test_the_share_is_checked_over_a_full_window() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=None, ratio=0.5, window=10)), Source()
    passes(quarantine, *source.batch(p0="xxxx"))  # four of four: too few to tell
    passes(quarantine, *source.batch(p0="....x"))
    passes(quarantine, *source.batch(p0="....."))
    passes(quarantine, *source.batch(p0="xxxxx"))  # the window has slid: 5 of 10
    with pytest.raises(TooManyDeadLetters, match="the limit is 50%"):
        quarantine.check(*source.batch(p0="x"))


def test_without_limits_nothing_is_too_many() -> None:
    quarantine, source = DeadLetterLimitCheck(DeadLetterLimits(consecutive=None, ratio=None)), Source()
    passes(quarantine, *source.batch(p0="x" * 5000))
