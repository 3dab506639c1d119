"""Records that failed or may crash their process, each in a transaction of its own; recorded before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from seekpoint import events
from seekpoint.errors import Fenced
from seekpoint.events import Announcer
from seekpoint.ledger import Attempt, Claim, Ledger, SuspectNote
from seekpoint.ledger.claim import TRANSIENT
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Cause, RawRecord
from seekpoint.worker.assignment import Chunk, SingleAttempt, SuspectPart, WorkerAssignment
from seekpoint.worker.failure_policy import CrashingRecord, fail
from seekpoint.worker.open_batch import Buffer, OpenBatch, Outcome
from seekpoint.worker.unit_of_work import Committer


class SingleAttempts:
    """Tries what the scheduler of one assignment gives one by one. ``keeps_claims``: the worker was given up."""

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: Ledger,
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
        """Try the next record or part that is due; whether there was one."""
        due = self._assignment.scheduler.next_careful()
        if isinstance(due, SuspectPart):
            self.attempt_part(due)
        elif due is not None:
            self.attempt_single(due)
        return due is not None

    def attempt_single(self, single: SingleAttempt) -> None:
        """One record in a transaction of its own; that it is tried is recorded before, as it may end this process.

        One that has crashed as many processes as it may is dead-lettered or stops, and no handler sees it.
        """
        record, tries = single.tried.record, single.tried.tries
        at = single.claim.partition, record.offset
        is_transient = single.tried.attempt is not None and single.tried.attempt.then == TRANSIENT
        # A failure is this record's, and is not searched for by a second call.
        batch = self._batch(single.chunk, Outcome({at: tries}), is_single=True, is_transient=is_transient)
        if single.is_at_crash_limit:
            fail(self._pipeline, batch.outcome, record, CrashingRecord(single.tried.crashes), Cause.CRASHED)
        else:
            pipeline = self._pipeline
            then = TRANSIENT if is_transient else pipeline.on_poison.value
            attempt = Attempt(at[1], tries + 1, allowed=pipeline.retry.attempts, then=then)
            if not self._is_recorded(lambda: self._ledger.record_attempts_alone([(single.claim, attempt)])):
                return
            self._announce(events.SingleRecordAttempt(partition=at[0], offset=at[1], attempt=attempt.number))
        self._commit(batch, single.claim)
        if not batch.buffer.reads:
            return
        self._assignment.scheduler.note_left(at[0], is_found=single.is_at_crash_limit)
        if tries and not batch.outcome.excludes(record):
            self._announce(events.RetrySucceeded(partition=at[0], offset=at[1], attempt=tries + 1))

    def attempt_part(self, due: SuspectPart) -> None:
        """A part of a suspect range; that it is tried is recorded before, as it may end this process."""
        part, partition = due.part, due.claim.partition
        batch = self._batch(due.chunk, Outcome(), suspects=due.suspects)
        note = SuspectNote(due.claim, due.suspects.end, part.end)
        if not part.is_noted and not self._is_recorded(lambda: self._ledger.record_suspects_alone([note])):
            return
        self._announce(events.SuspectPartAttempt(partition=partition, start=part.start, end=part.end))
        self._commit(batch, due.claim)
        if batch.buffer.reads:
            self._assignment.scheduler.note_left(partition)

    def _batch(self, chunk: Chunk[RawRecord], outcome: Outcome, **known: Any) -> OpenBatch:
        """A batch of this chunk and no more."""
        buffer = Buffer(chunk, lambda: None, self._assignment.topic_ids, self._ledger.limits)
        return OpenBatch(buffer, outcome, **known)

    def _is_recorded(self, record: Callable[[], object]) -> bool:
        """Record it, if the claim is still ours."""
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
        """The attempt has ended, and not its process: release at once, so that the next claim counts no crash."""
        if self._keeps_claims():
            return
        try:
            self._ledger.release([claim])
        except Exception as error:
            if not is_transient(error):
                raise
