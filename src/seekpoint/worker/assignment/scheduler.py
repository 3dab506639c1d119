"""Decides which delayed or failed records of the active partitions may be applied now."""

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

# Each partition's backlog may hold at least this much, however many partitions share a batch's limits.
LEAST_RECORDS = 1000
LEAST_BYTES = 1024 * 1024

EARLY = "its timestamp lies in the future, so its delay counts from the time it was first read"


@dataclass(frozen=True, slots=True)
class SingleAttempt:
    """A record for a single-record attempt; if it ``is_at_crash_limit``, it is not tried again."""

    chunk: Chunk[RawRecord]
    claim: Claim
    tried: Try
    is_at_crash_limit: bool


@dataclass(frozen=True, slots=True)
class SuspectPart:
    """A part of a suspect range, to be tried in a separate transaction; the attempt is recorded first."""

    chunk: Chunk[RawRecord]
    claim: Claim
    suspects: SuspectRange
    part: Part


class Scheduler:
    """The backlogs of one assignment, served in rotation; ignores partitions without a backlog."""

    def __init__(self, resources: Resources, pipeline: Pipeline | None) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._watermarks = resources.watermarks
        self._limits = self._ledger.limits
        self._retry = None if pipeline is None else pipeline.retry  # None: a program with its own loop decides
        self._then = "" if pipeline is None else pipeline.on_poison.value
        self._delay = None if pipeline is None or pipeline.delay is None else pipeline.delay.total_seconds()

    def __bool__(self) -> bool:
        return bool(self._partitions.backlogged)

    # -- filling backlogs -----------------------------------------------------------------------------

    def suspects(self, claims: Iterable[Claim]) -> dict[Partition, SuspectRange]:
        """The suspect ranges of partitions whose owners crashed, where there were records to read.

        A range's end, up to which the crashed owners can have read, is recorded once. Raises KafkaUnavailable.
        """
        if (retry := self._retry) is None:
            return {}
        ends = {claim.partition: claim.suspect_end for claim in claims if claim.suspect_end is not None}
        new = [claim for claim in claims if claim.suspect_end is None and claim.unreleased >= retry.crashes]
        edges = self._watermarks.ends([claim.partition for claim in new])
        new_ends = {
            claim.partition: min(edges[claim.partition].offset, claim.next_offset + self._limits.batch_records)
            for claim in new
        }
        noted = [
            SuspectNote(claim, new_ends[claim.partition])
            for claim in new
            if new_ends[claim.partition] > claim.next_offset
        ]
        if noted:  # otherwise there was no record that could have crashed a process
            ends |= {note.claim.partition: note.end for note in self._noted(noted) if note.end is not None}
        suspected = [claim for claim in claims if ends.get(claim.partition, 0) > claim.next_offset]
        total = sum(ends[claim.partition] - claim.next_offset for claim in suspected)
        for claim in suspected:
            end = ends[claim.partition]
            self._announce(events.CrashSuspected(partition=claim.partition, crashes=claim.unreleased, until=end))
            self._announce(events.SuspectsLeft(partition=claim.partition, left=end - claim.next_offset))
        return {
            claim.partition: SuspectRange.of(claim.next_offset, ends[claim.partition], claim.crashed_part_end, total)
            for claim in suspected
        }

    def _noted(self, notes: Sequence[SuspectNote]) -> Sequence[SuspectNote]:
        """Record the notes whose claims are still ours; returns these notes."""
        try:
            self._ledger.record_suspects_alone(notes)
        except Fenced as error:
            if len(notes) > 1:  # one lost claim must not keep the others from being recorded
                return [noted for note in notes for noted in self._noted([note])]
            self._announce(events.Refused(reason=error.reason))
            return []
        return notes

    def begin(self, claims: Iterable[Claim], suspects: Mapping[Partition, SuspectRange]) -> None:
        """Give newly active partitions a backlog, if any of their records will have to wait."""
        if self._retry is None:
            return
        now = Moment.now()
        for claim in claims:
            attempt = claim.attempt
            if attempt is not None and attempt.then == DELAYED and self._delay is None:
                attempt = None  # a note by an earlier process; this pipeline has no delay
            if self._delay is None and attempt is None and claim.partition not in suspects:
                continue
            backlog = Backlog(delay=self._delay, suspects=suspects.get(claim.partition))
            if attempt is not None:
                if attempt.wait is not None and attempt.then != DELAYED:  # the database's clock may have been set back
                    attempt = replace(attempt, wait=min(attempt.wait, self._retry.longest(attempt.number)))
                backlog.remember(attempt, now)
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
        """Put back a partition's records from ``retry.offset`` on; they come first when the wait is over."""
        placed = self._partitions.active.get(retry.partition)
        if placed is None or placed.position != records[-1].offset + 1:
            return  # the partition was activated again meanwhile, and is read from the ledger's position
        backlog = placed.backlog
        if backlog is None:
            self._partitions.set_backlog(retry.partition, backlog := Backlog(delay=self._delay))
        failure = retry.failure
        then = TRANSIENT if failure.cause is Cause.TRANSIENT else None
        attempt = Attempt(retry.offset, failure.attempts, failure.error, retry.wait, then=then)
        backlog.put_back(records, position, attempt, Moment.now())
        placed.put_back(records)
        self._partitions.put_queued_into_backlog(retry.partition)

    # -- giving records -------------------------------------------------------------------------------

    def _open(self) -> list[tuple[Partition, ActivePartition, Backlog]]:
        return [
            (partition, placed, placed.backlog)
            for partition, placed in self._partitions.backlogged.items()
            if placed.backlog is not None
        ]

    def wait(self, most: float) -> float:
        """Seconds until a record is due; at most ``most``."""
        if not self:
            return most
        now = Moment.now()
        waits = (wait for _, _, backlog in self._open() if (wait := backlog.wait(now)) is not None)
        return min(most, min(waits, default=most))

    def due(self, most: int, held: Collection[Partition] | None = None) -> Chunk[RawRecord]:
        """Up to ``most`` records of ``held`` partitions (None: all) that are due and need no single-record attempt."""
        due_records: list[RawRecord] = []
        reads: dict[Partition, Read] = {}
        unreadable: list[tuple[RawRecord, Exception]] = []
        now = Moment.now()
        for partition, placed, backlog in self._open():
            if len(due_records) >= most:
                break
            if held is not None and partition not in held:
                continue
            start = placed.position
            if records := backlog.give(most - len(due_records), now):
                chunk = _chunk(placed, start, records)
                due_records += records
                reads |= chunk.reads
                unreadable += chunk.unreadable
                self._partitions.rotate(partition)
        return Chunk(due_records, reads, unreadable)

    def next_careful(self) -> SingleAttempt | SuspectPart | None:
        """The next single-record attempt or part of a suspect range that is due, round-robin over the partitions."""
        if not self:
            return None
        now = Moment.now()
        for partition, placed, backlog in self._open():
            if (tried := backlog.give_single(now)) is not None:
                self._partitions.rotate(partition)
                # A stored error means that the limit was acted on, and the worker restarted since: try the record.
                is_decided = tried.attempt is not None and tried.attempt.error is not None
                at_limit = not is_decided and self._retry is not None and tried.crashes >= self._retry.crashes
                return SingleAttempt(_chunk(placed, tried.start, [tried.record]), placed.claim, tried, at_limit)
            if (part := backlog.give_part(self._limits.batch_records, now)) is not None:
                self._partitions.rotate(partition)
                assert backlog.suspects is not None
                chunk = _chunk(placed, part.start, part.records)
                return SuspectPart(chunk, placed.claim, backlog.suspects, part)
        return None

    def note_left(self, partition: Partition, *, is_found: bool = False) -> None:
        """Announce how many suspects a partition still has: none once its crashing record is found."""
        placed = self._partitions.active.get(partition)
        backlog = None if placed is None else placed.backlog
        if placed is None or backlog is None or backlog.suspects is None:
            return
        remaining = 0 if is_found else max(0, backlog.suspects.end - placed.claim.next_offset)
        if not remaining:
            backlog.suspects = None
        self._announce(events.SuspectsLeft(partition=partition, left=remaining))

    # -- maintenance ----------------------------------------------------------------------------------

    def bound(self) -> None:
        """Pause partitions whose backlog is full."""
        records, size = self._bounds()
        full = [
            partition
            for partition, placed, backlog in self._open()
            if not placed.is_paused and (len(backlog) >= records or backlog.bytes >= size)
        ]
        if full:
            self._partitions.pause(full)

    def maintain(self) -> None:
        """Drop backlogs that are no longer needed, and resume partitions whose backlog is at most half full."""
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
        """Store in the ledger when records with future timestamps are due. Raises Fenced."""
        if self._delay is None:
            return
        now, notes = Moment.now(), []
        for _, placed, backlog in self._open():
            if (horizon := backlog.due_by(now)) is not None:
                wait = horizon.steady - now.steady
                notes.append((placed.claim, Attempt(horizon.offset, 1, EARLY, wait, None, DELAYED)))
                backlog.noted = horizon.offset
        if notes:
            self._ledger.record_attempts_alone(notes)

    def not_due(self) -> frozenset[Partition]:
        """The partitions whose next record is not due yet: their lag is intended."""
        now = Moment.now()
        return frozenset(partition for partition, _, backlog in self._open() if backlog.wait(now))


def _chunk(placed: ActivePartition, start: int, records: Sequence[RawRecord]) -> Chunk[RawRecord]:
    """A chunk of these records, which were read from ``start``."""
    last, errors = records[-1], placed.unreadable
    read = Read(placed.claim, start, last.offset + 1, last.leader_epoch, last.timestamp_ms)
    unreadable = [(record, errors[record.offset]) for record in records if record.offset in errors] if errors else []
    return Chunk(records, {placed.claim.partition: read}, unreadable)
