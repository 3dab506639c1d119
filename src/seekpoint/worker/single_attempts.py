"""Tries records that failed or may crash their process, in separate transactions; each attempt is recorded first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from seekpoint import events
from seekpoint.errors import Fenced
from seekpoint.events import Announcer
from seekpoint.ledger import Attempt, Claim, GroupLedger, SuspectNote
from seekpoint.ledger.claim import TRANSIENT
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Cause, RawRecord
from seekpoint.worker.assignment import Chunk, SingleAttempt, SuspectPart, WorkerAssignment
from seekpoint.worker.failure_policy import CrashingRecord, fail
from seekpoint.worker.open_batch import Buffer, OpenBatch, Outcome
from seekpoint.worker.unit_of_work import Committer


class SingleAttempts:
    """Tries the records and suspect parts that the scheduler gives, one by one.

    ``keeps_claims``: whether claims stay unreleased after a failure, because the worker was given up.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: GroupLedger,
        assignment: WorkerAssignment,
        committer: Committer,
        *,
        heartbeat: AbstractContextManager[None],
        announce: Announcer,
        keeps_claims: Callable[[], bool],
    ) -> None:
        self._pipeline, self._ledger, self._assignment = pipeline, ledger, assignment
        self._committer, self._heartbeat, self._announce = committer, heartbeat, announce
        self._keeps_claims = keeps_claims

    def attempt_next(self) -> bool:
        """Try the next record or part that is due; returns whether there was one."""
        due = self._assignment.scheduler.next_careful()
        if isinstance(due, SuspectPart):
            self.attempt_part(due)
        elif due is not None:
            self.attempt_single(due)
        return due is not None

    def attempt_single(self, single: SingleAttempt) -> None:
        """Try one record in a separate transaction; the attempt is recorded first, because it may crash this process.

        A record at the crash limit is not tried: it is dead-lettered, or stops its partition.
        """
        record, tries = single.tried.record, single.tried.tries
        partition, offset = single.claim.partition, record.offset
        is_transient = single.tried.attempt is not None and single.tried.attempt.then == TRANSIENT
        # is_single: only this record can have failed, so there is no bisection.
        batch = self._batch(
            single.chunk, Outcome({(partition, offset): tries}), is_single=True, is_transient=is_transient
        )
        if single.is_at_crash_limit:
            fail(self._pipeline, batch.outcome, record, CrashingRecord(single.tried.crashes), Cause.CRASHED)
        else:
            pipeline = self._pipeline
            then = TRANSIENT if is_transient else pipeline.on_poison.value
            attempt = Attempt(offset, tries + 1, allowed=pipeline.retry.attempts, then=then)
            if not self._is_recorded(lambda: self._ledger.record_attempts_alone([(single.claim, attempt)])):
                return
            self._announce(events.SingleRecordAttempt(partition=partition, offset=offset, attempt=attempt.number))
        self._commit(batch, single.claim)
        if not batch.buffer.reads:
            return
        self._assignment.scheduler.note_left(partition, is_found=single.is_at_crash_limit)
        if tries and not batch.outcome.excludes(record):
            self._announce(events.RetrySucceeded(partition=partition, offset=offset, attempt=tries + 1))

    def attempt_part(self, due: SuspectPart) -> None:
        """Try a part of a suspect range; the attempt is recorded first, because it may crash this process."""
        part, partition = due.part, due.claim.partition
        batch = self._batch(due.chunk, Outcome(), suspects=due.suspects)
        note = SuspectNote(due.claim, due.suspects.end, part.end)
        if not part.is_noted and not self._is_recorded(lambda: self._ledger.record_suspects_alone([note])):
            return
        self._announce(events.SuspectPartAttempt(partition=partition, start=part.start, end=part.end))
        self._commit(batch, due.claim)
        if batch.buffer.reads:
            self._assignment.scheduler.note_left(partition)

    def _batch(self, chunk: Chunk[RawRecord], outcome: Outcome, **options: Any) -> OpenBatch:
        """A batch of only this chunk."""
        buffer = Buffer(chunk, lambda: None, self._assignment.topic_ids, self._ledger.limits)
        return OpenBatch(buffer, outcome, **options)

    def _is_recorded(self, record: Callable[[], object]) -> bool:
        """Record an attempt; False if the claim is no longer ours."""
        try:
            record()
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self._assignment.reconcile({})
            return False
        return True

    def _commit(self, batch: OpenBatch, claim: Claim) -> None:
        try:
            with self._heartbeat:
                self._committer.commit(batch)
        except Exception:
            self._release(claim)
            raise

    def _release(self, claim: Claim) -> None:
        """Release a failed attempt's claim at once: the process is alive, and the next claim must not count a crash."""
        if self._keeps_claims():
            return
        try:
            self._ledger.release([claim])
        except Exception as error:
            if not is_transient(error):
                raise
