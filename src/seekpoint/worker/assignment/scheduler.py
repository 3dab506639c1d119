"""Which delayed or failed records may be applied now, over all active partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seekpoint import events
from seekpoint.errors import Fenced
from seekpoint.ledger import Attempt, Claim, SuspectNote
from seekpoint.ledger.claim import DELAYED, TRANSIENT
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Retry
from seekpoint.records import Cause, Failure, Partition, RawRecord
from seekpoint.worker.assignment.backlog import Backlog, Moment, Part, RetryLater, SuspectRange, Try
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.states import ActivePartition

# The least that one partition's backlog may hold, however many partitions share the limits of a batch.
LEAST_RECORDS = 1000
LEAST_BYTES = 1024 * 1024

EARLY = "its timestamp lies in the future: the delay is counted from when it was seen first"


@dataclass(frozen=True, slots=True)
class SingleAttempt:
    """A record to be tried in a transaction of its own; not again where it ``is_at_crash_limit``."""

    chunk: Chunk[RawRecord]
    claim: Claim
    tried: Try
    is_at_crash_limit: bool


@dataclass(frozen=True, slots=True)
class SuspectPart:
    """Records of a suspect range, to be tried in a transaction of their own; it is recorded before."""

    chunk: Chunk[RawRecord]
    claim: Claim
    suspects: SuspectRange
    part: Part


class Scheduler:
    """The backlogs of one assignment, read one after the other; partitions without a backlog are not touched."""

    def __init__(self, resources: Resources, pipeline: Pipeline | None) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._watermarks = resources.watermarks
        self._limits = self._ledger.limits
        self._retry = None if pipeline is None else pipeline.retry  # None: the loop's owner decides all this
        self._then = "" if pipeline is None else pipeline.on_poison.value
        self._delay = None if pipeline is None or pipeline.delay is None else pipeline.delay.total_seconds()

    def __bool__(self) -> bool:
        return bool(self._partitions.backlogged)

    # -- made -----------------------------------------------------------------------------------------

    def suspects(self, claims: Iterable[Claim]) -> dict[Partition, SuspectRange]:
        """Of which partitions the next records are tried in parts: their owners died, with records to read.

        How far is put on record once: as far as the dead owners can have read. Raises KafkaUnavailable.
        """
        if (retry := self._retry) is None:
            return {}
        ends = {c.partition: c.suspect_end for c in claims if c.suspect_end is not None}
        new = [c for c in claims if c.suspect_end is None and c.unreleased >= retry.crashes]
        edges = self._watermarks.ends([c.partition for c in new])
        found = {c.partition: min(edges[c.partition].offset, c.next_offset + self._limits.batch_records) for c in new}
        noted = [SuspectNote(c, found[c.partition]) for c in new if found[c.partition] > c.next_offset]
        if noted:  # else no record was there to crash a process
            ends |= {note.claim.partition: note.end for note in self._noted(noted) if note.end is not None}
        suspected = [c for c in claims if ends.get(c.partition, 0) > c.next_offset]
        total = sum(ends[c.partition] - c.next_offset for c in suspected)
        for claim in suspected:
            end = ends[claim.partition]
            self._announce(events.CrashSuspected(partition=claim.partition, crashes=claim.unreleased, until=end))
            self._announce(events.SuspectsLeft(partition=claim.partition, left=end - claim.next_offset))
        return {
            c.partition: SuspectRange.of(c.next_offset, ends[c.partition], c.crashed_part_end, total) for c in suspected
        }

    def _noted(self, notes: Sequence[SuspectNote]) -> Sequence[SuspectNote]:
        """Put these on record, as far as their claims are still ours; returns those."""
        try:
            self._ledger.record_suspects_alone(notes)
        except Fenced as error:
            if len(notes) > 1:  # one that is another's by now takes the careful mode from no other
                return [each for note in notes for each in self._noted([note])]
            self._announce(events.Refused(reason=error.reason))
            return []
        return notes

    def begin(self, claims: Iterable[Claim], suspects: Mapping[Partition, SuspectRange]) -> None:
        """These are active now: what of them will have to wait, waits from the first record on."""
        if self._retry is None:
            return
        at = Moment.now()
        for claim in claims:
            attempt = claim.attempt
            if attempt is not None and attempt.then == DELAYED and self._delay is None:
                attempt = None  # a process before this one waited for it
            if self._delay is None and attempt is None and claim.partition not in suspects:
                continue
            backlog = Backlog(delay=self._delay, suspects=suspects.get(claim.partition))
            if attempt is not None:
                if attempt.wait is not None and attempt.then != DELAYED:  # the database's clock may have been set back
                    attempt = replace(attempt, wait=min(attempt.wait, self._retry.longest(attempt.number)))
                backlog.remember(attempt, at)
                self._announce_next(self._retry, claim.partition, attempt)
            self._partitions.set_backlog(claim.partition, backlog)

    def _announce_next(self, retry: Retry, partition: Partition, attempt: Attempt) -> None:
        if not attempt.wait or attempt.error is None or attempt.then == DELAYED:
            return
        self._announce(
            events.RetryScheduled(
                partition=partition,
                offset=attempt.offset,
                attempt=attempt.number,
                attempts=attempt.allowed or retry.attempts,
                wait=attempt.wait,
                failure=Failure(Cause.HANDLER, attempt.error, attempts=attempt.number),
                then="stop" if attempt.then == TRANSIENT else attempt.then or self._then,
            )
        )

    def schedule_retry(self, retry: RetryLater, records: Sequence[RawRecord], position: int) -> None:
        """What was read of a partition from ``retry.offset`` on is next again, when the wait is over."""
        placed = self._partitions.active.get(retry.partition)
        if placed is None or placed.position != records[-1].offset + 1:
            return  # not what was read under this placement: the ledger says where to read on
        backlog = placed.backlog
        if backlog is None:
            self._partitions.set_backlog(retry.partition, backlog := Backlog(delay=self._delay))
        failure = retry.failure
        then = TRANSIENT if failure.cause is Cause.TRANSIENT else None
        attempt = Attempt(retry.offset, failure.attempts, failure.error, retry.wait, then=then)
        backlog.put_back(records, position, attempt, Moment.now())
        placed.put_back(records)
        self._partitions.put_kept_into_backlog(retry.partition)

    # -- given ----------------------------------------------------------------------------------------

    def _open(self) -> list[tuple[Partition, ActivePartition, Backlog]]:
        return [
            (partition, placed, placed.backlog)
            for partition, placed in self._partitions.backlogged.items()
            if placed.backlog is not None
        ]

    def wait(self, most: float) -> float:
        """Seconds until something is due; at most ``most``."""
        if not self:
            return most
        at = Moment.now()
        waits = (wait for _, _, backlog in self._open() if (wait := backlog.wait(at)) is not None)
        return min(most, min(waits, default=most))

    def due(self, most: int, held: Collection[Partition] | None = None) -> Chunk[RawRecord]:
        """Up to ``most`` records that have waited long enough, and need no single-record attempt; of ``held`` ones."""
        given: list[RawRecord] = []
        reads: dict[Partition, Read] = {}
        unreadable: list[tuple[RawRecord, Exception]] = []
        at = Moment.now()
        for partition, placed, backlog in self._open():
            if len(given) >= most:
                break
            if held is not None and partition not in held:
                continue
            start = placed.position
            if records := backlog.give(most - len(given), at):
                chunk = _chunk(placed, start, records)
                given += records
                reads |= chunk.reads
                unreadable += chunk.unreadable
                self._partitions.rotate(partition)
        return Chunk(given, reads, unreadable)

    def next_careful(self) -> SingleAttempt | SuspectPart | None:
        """The next record, or part of a suspect range, that is due and has a transaction of its own; in turn."""
        if not self:
            return None
        at = Moment.now()
        for partition, placed, backlog in self._open():
            if (tried := backlog.give_single(at)) is not None:
                self._partitions.rotate(partition)
                # An error beside the crashes is what was decided since: the worker was started again after it.
                is_decided = tried.attempt is not None and tried.attempt.error is not None
                at_limit = not is_decided and self._retry is not None and tried.crashes >= self._retry.crashes
                return SingleAttempt(_chunk(placed, tried.start, [tried.record]), placed.claim, tried, at_limit)
            if (part := backlog.give_part(self._limits.batch_records, at)) is not None:
                self._partitions.rotate(partition)
                assert backlog.suspects is not None
                chunk = _chunk(placed, part.start, part.records)
                return SuspectPart(chunk, placed.claim, backlog.suspects, part)
        return None

    def note_left(self, partition: Partition, *, is_found: bool = False) -> None:
        """Say how many suspects are left of a partition; none once the record that crashes its process was found."""
        placed = self._partitions.active.get(partition)
        backlog = None if placed is None else placed.backlog
        if placed is None or backlog is None or backlog.suspects is None:
            return
        left = 0 if is_found else max(0, backlog.suspects.end - placed.claim.next_offset)
        if not left:
            backlog.suspects = None
        self._announce(events.SuspectsLeft(partition=partition, left=left))

    # -- tended ---------------------------------------------------------------------------------------

    def bound(self) -> None:
        """Read nothing more of partitions whose backlog is full."""
        records, size = self._bounds()
        full = [
            partition
            for partition, placed, backlog in self._open()
            if not placed.is_paused and (len(backlog) >= records or backlog.bytes >= size)
        ]
        if full:
            self._partitions.pause(full)

    def maintain(self) -> None:
        """Forget backlogs that are over, and read those on that have drained."""
        if not self:
            return
        records, size = self._bounds()
        drained: list[Partition] = []
        for partition, placed, backlog in self._open():
            if placed.is_paused and len(backlog) <= records // 2 and backlog.bytes <= size // 2:
                drained.append(partition)
            if backlog.is_over:
                self._partitions.set_backlog(partition, None)
        if drained:
            self._partitions.resume(drained)

    def _bounds(self) -> tuple[int, int]:
        """How many records and bytes one backlog may hold: together about as much as a batch."""
        shares = max(1, len(self._partitions.active))
        limits = self._limits
        return max(LEAST_RECORDS, limits.batch_records // shares), max(LEAST_BYTES, limits.batch_bytes // shares)

    def record_due_by(self) -> None:
        """Put on record until when records wait whose timestamps lie in the future. Raises Fenced."""
        if self._delay is None:
            return
        at, notes = Moment.now(), []
        for _, placed, backlog in self._open():
            if (horizon := backlog.due_by(at)) is not None:
                wait = horizon.steady - at.steady
                notes.append((placed.claim, Attempt(horizon.offset, 1, EARLY, wait, None, DELAYED)))
                backlog.noted = horizon.offset
        if notes:
            self._ledger.record_attempts_alone(notes)

    def not_due(self) -> frozenset[Partition]:
        """The partitions whose next record is not due yet: their lag is meant to be."""
        at = Moment.now()
        return frozenset(partition for partition, _, backlog in self._open() if backlog.wait(at))


def _chunk(placed: ActivePartition, start: int, records: Sequence[RawRecord]) -> Chunk[RawRecord]:
    """These records, which were read from ``start`` on."""
    last, known = records[-1], placed.unreadable
    read = Read(placed.claim, start, last.offset + 1, last.leader_epoch, last.timestamp_ms)
    unreadable = [(r, known[r.offset]) for r in records if r.offset in known] if known else []
    return Chunk(records, {placed.claim.partition: read}, unreadable)
