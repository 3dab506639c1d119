"""One unit of work: hold, apply, park, advance, note attempts, COMMIT; and what to do when that fails.

The only place where a worker commits rows (I1).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from time import monotonic
from typing import Protocol

from seekpoint import events
from seekpoint.errors import Fenced, HandlerMisuse, KafkaUnavailable, PartitionStopped, PoisonStop, RetryLater
from seekpoint.events import Announcer
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Attempt, Claim, Expected, Ledger, SuspectNote
from seekpoint.ledger.claim import TRANSIENT
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import TellingSink
from seekpoint.postgres.connection import HandlerConnection, Session
from seekpoint.postgres.connection_socket import Wire
from seekpoint.postgres.sqlstates import Fault, connection_lost, fault_of, is_transient, sqlstate
from seekpoint.postgres.user_code_time import Stopwatch
from seekpoint.records import Cause, Partition, RawRecord, Span, add_note, notes, users_line
from seekpoint.worker.apply import Failed, apply, as_deferred
from seekpoint.worker.bisect import Bisection, too_long
from seekpoint.worker.dead_letter_limits import DeadLetterLimitCheck
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch

logger = logging.getLogger("seekpoint.worker.unit_of_work")

TRIES = 3  # of one batch, at once; then it is given back, and the loop waits
TRANSACTION_TIMEOUT = "25P04"
TOO_LONG = (
    "the transaction took longer than it may: lower Limits(batch_records=...), or raise Limits(transaction_age=...)"
)
STALE_PLAN = "0A000"  # "cached plan must not change result type"


class Holder(Protocol):
    """Who knows which partitions are placed: the assignment, or the test kit."""

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        """Every placed partition, each at its position; those of the batch at where its reading began."""

    def accept(self, moved: Iterable[Claim]) -> None:
        """Take the claims over, after COMMIT."""

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        """After a refusal: ask the ledger; returns what must be dropped from the batch."""

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> Mapping[Partition, PartitionStopped | None]:
        """Those whose topic is not the one that was claimed; None where its id is unknown at this moment."""

    def stop_or_reclaim(self, strange: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop reading these; those without a stop, until their topic's id is answered again."""

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition."""

    def schedule_retry(self, stop: RetryLater, records: Sequence[RawRecord], position: int) -> None:
        """Keep what was read of one partition until its first record, which failed, is due again."""


class Committer:
    """Brings one batch after the other to its end, in order, one transaction at a time."""

    def __init__(
        self,
        ledger: Ledger,
        pipeline: Pipeline,
        holder: Holder,
        announce: Announcer,
        *,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._ledger, self._pipeline, self._holder, self._announce = ledger, pipeline, holder, announce
        self._stopwatch = stopwatch or Stopwatch()
        self._session = Session(
            ledger.engine,
            pipeline_mode=pipeline.pipeline_mode,
            lends=pipeline.handle is not None,
            hold_first=True,
            wire=Wire(self._stopwatch),
        )
        self._dead_letters = DeadLetters(ledger)
        self._bisection = Bisection()
        self._limits = DeadLetterLimitCheck(pipeline.dead_letter_limits)
        self._at_commit = False  # the attempt that just failed had come to its COMMIT
        self._telling = [sink for sink in pipeline.sinks if isinstance(sink, TellingSink)]

    def close(self) -> None:
        """Give the connection back."""
        self._session.close()

    def cut(self) -> None:
        """Close the connection from another thread: nothing is committed any more."""
        self._session.wire.cut()

    def commit(self, batch: OpenBatch) -> None:
        """Apply the batch exactly once, or raise with nothing of it written.

        Refused partitions are dropped from it and the others hold again without them. An unknown COMMIT and
        any error that may pass run the same transaction again from the kept records: hold lets the ledger say
        whether it already happened. Where a record is at fault, the next attempt isolates it.
        """
        batch.bisecting = batch.bisecting or self._bisection.expects_failures
        for attempt in count(1):
            try:
                self._attempt(batch, attempt)
            except Exception as error:
                if self._session.wire.is_cut or not self._recover(error, batch, attempt):
                    _note(error, batch)
                    raise
            except SystemExit as error:  # Python ends the process without a word about where it came from
                _note(error, batch)
                at = users_line(error) or "code of a handler, row= or codec"
                logger.error(
                    "%r was raised (at %s) and ends the worker, %s. To stop a worker, call Worker.stop(); for a record "
                    "that cannot be applied, raise seekpoint.Poison",
                    error,
                    at,
                    notes(error)[-1],
                )
                raise
            else:
                return
            if not batch.reads:
                return

    def _recover(self, error: Exception, batch: OpenBatch, attempt: int) -> bool:
        """Do what the error asks for; False if another attempt would not help."""
        self._bisection.begin_with(error if isinstance(error, Failed) else None)
        match error:
            case Fenced():
                self._announce(events.Refused(reason=error.reason))
                dropped = self._holder.reconcile(batch.starts)
                batch.drop(dropped)
                return bool(dropped) or attempt < TRIES  # refused again and again where the ledger sees no reason
            case Failed() if error.fault is not Fault.DATA:
                self._divide(error, batch, attempt)
            case Failed():
                self._announce(events.Bisecting(error=error.error))
                for raw in error.named:
                    fail(self._pipeline, batch, raw, error.error_of(raw), error.cause)
                batch.bisecting = True
            case _TopicIdMismatch():
                self._holder.stop_or_reclaim(error.mismatches)
                batch.drop(set(error.mismatches))  # read again from the stored position, where they are read at all
            case KafkaUnavailable() if attempt < TRIES:
                self._announce(events.KafkaTrouble(error=str(error)))
                batch.ask_again()
            case _ if self._at_commit and not batch.deferred and not connection_lost(error) and fault_of(error):
                if is_transient(error) and attempt < TRIES:
                    self._announce(events.DatabaseTrouble(error=error))
                else:  # what a constraint had put off until COMMIT
                    self._announce(events.Bisecting(error=error))
                    batch.bisecting = batch.deferred = True
            case _:
                return self._may_succeed_again(error, batch, attempt)
        return True

    def _divide(self, failed: Failed, batch: OpenBatch, attempt: int) -> None:
        """The error may pass, or be the program's: whether it is one record's, the parts of the batch show.

        Those that may pass are tried as a whole first. A statement that took too long would take as long again.
        """
        error = failed.error if isinstance(failed.error, Exception) else failed
        is_tried_whole = failed.fault is Fault.TRANSIENT and not too_long(failed)
        if is_tried_whole or sqlstate(failed.error) == STALE_PLAN:
            batch.bisecting = batch.bisecting or attempt >= TRIES
            self._announce(events.DatabaseTrouble(error=error))
            return
        batch.bisecting = True
        trouble = events.DatabaseTrouble if too_long(failed) else events.Bisecting
        self._announce(trouble(error=error))

    def _may_succeed_again(self, error: Exception, batch: OpenBatch, attempt: int) -> bool:
        """Whether the same transaction may succeed when it is run again at once."""
        # A plan is stale where a table has changed; a fresh connection makes it anew.
        is_worth_it = attempt < TRIES and (is_transient(error) or sqlstate(error) == STALE_PLAN)
        if is_worth_it:
            self._announce(events.DatabaseTrouble(error=error))
            if connection_lost(error):  # perhaps in doubt: the look waits for its end, and no longer than it may
                batch.drop(self._holder.reconcile(batch.starts))
        return is_worth_it

    def _attempt(self, batch: OpenBatch, attempt: int) -> None:
        began = monotonic()
        self._announce(events.BatchOpened(attempt=attempt))
        applied = committing = False
        try:
            with self._session.transaction() as tx:
                expected = self._holder.expected(batch.starts)
                transaction = self._ledger.hold(tx, expected)
                self._announce(events.Held(partitions=len(expected)))
                if self._pipeline.keep_key_order:
                    batch.block_keys(self._dead_letters.open_keys(tx, [e.claim.partition for e in expected]))
                if self._pipeline.handle is not None or len(self._pipeline.sinks) == 1:
                    tx.may_defer(rows=self._pipeline.handle is None)
                with self._stopwatch.running():
                    if batch.bisecting:
                        records = self._bisection.apply(tx, self._pipeline, batch, patient=attempt <= TRIES)
                    else:
                        records = apply(tx, self._pipeline, batch)
                applied = True
                self._announce(events.Applied(records=records))
                tally = self._limits.check(batch, records)
                self._insert_dead_letters(tx, batch)
                moves = batch.moves()
                moved = self._ledger.advance(tx, moves, transaction) if moves else []
                self._note_part(tx, batch)
                self._note_attempts(tx, batch)
                tx.catch_up()
                self._check_identity(batch)
                spans = batch.spans
                self._announce(events.Advanced(spans=spans))
                committing = True
        except Exception as error:
            self._at_commit = committing
            if sqlstate(error) == TRANSACTION_TIMEOUT:
                add_note(error, TOO_LONG)
            if committing and connection_lost(error):
                self._announce(events.CommitUnknown(error=error))
            if (late := self._session.deferred_error) is not None and applied and not committing:
                raise as_deferred(late, late) from error
            raise
        self._holder.accept(moved)
        self._limits.count(tally)
        self._announce(events.Committed(spans=spans, records=records, seconds=monotonic() - began))
        self._announce_handlers(tx, batch, spans, records)
        for sink in self._telling:
            for event in sink.news():
                self._announce(event)
        self._announce_dead_letters(batch)
        self._end_at_stops(batch)

    def _insert_dead_letters(self, tx: HandlerConnection, batch: OpenBatch) -> None:
        """What is passed without being applied becomes a row, in this transaction (I1, I4)."""
        if asides := batch.dead_letters:
            topic_ids = {p.topic: read.claim.topic_id for p, read in batch.reads.items()}
            self._dead_letters.insert(tx, asides, topic_ids, self._pipeline.version)

    def _note_attempts(self, tx: HandlerConnection, batch: OpenBatch) -> None:
        """In front of which record a partition waits, how often it was tried, and when it is due."""
        notes, found = [], []
        for partition, stop in batch.stops.items():
            if partition not in batch.reads or not isinstance(stop, RetryLater | PoisonStop):
                continue
            wait = stop.wait if isinstance(stop, RetryLater) else None
            failure, pipeline = stop.failure, self._pipeline
            # 0: not an attempt. At the next start it comes together with the records after it; one that was on record
            # as running has ended, and is no crash of whoever is killed while the partition is stopped.
            number = 0 if failure.cause is Cause.PROGRAM else failure.attempts
            then = TRANSIENT if failure.cause is Cause.TRANSIENT else pipeline.on_poison.value
            attempt = Attempt(stop.offset, number, failure.summary, wait, pipeline.retry.attempts, then)
            notes.append((batch.reads[partition].claim, attempt))
            if failure.cause in {Cause.CRASHED, Cause.PROGRAM}:  # a suspect is tried alone, too
                found.append(batch.reads[partition].claim)
        if notes:
            self._ledger.record_attempts(tx, notes)
        if found:
            self._ledger.record_suspects(tx, [SuspectNote(claim, None) for claim in found])

    def _note_part(self, tx: HandlerConnection, batch: OpenBatch) -> None:
        """Which part of a suspect range is tried next, with the end of this one: a transaction less for each."""
        if (suspects := batch.suspects) is None:
            return
        suspects.noted = -1
        for partition, read in batch.reads.items():
            position, part_end = batch.position(partition), None
            if position >= suspects.end:
                continue  # the advance has ended it
            if suspects.step_at(position) > 1 and not batch.stops:
                part_end = suspects.noted = suspects.part_end(position)
            self._ledger.record_suspects(tx, [SuspectNote(read.claim, suspects.end, part_end)])

    def _announce_handlers(
        self, tx: HandlerConnection, batch: OpenBatch, spans: tuple[Span, ...], records: int
    ) -> None:
        """What is odd about the handler's part of a transaction, and no error."""
        if changed := self._session.changed:
            self._announce(events.SessionReplaced(group=self._pipeline.group, changed=changed))
        if tx.wrote_nothing and not batch.bisecting:
            self._announce(events.HandlerWroteNothing(group=self._pipeline.group, spans=spans, records=records))

    def _announce_dead_letters(self, batch: OpenBatch) -> None:
        for aside in batch.dead_letters:
            at = aside.record
            self._announce(
                events.DeadLettered(
                    partition=Partition(at.topic, at.partition),
                    offset=at.offset,
                    state=aside.state,
                    failure=aside.failure,
                )
            )

    def _end_at_stops(self, batch: OpenBatch) -> None:
        for partition, stop in batch.stops.items():
            if not isinstance(stop, RetryLater):
                self._holder.stop(partition, stop)
                continue
            self._announce(
                events.RetryScheduled(
                    partition=partition,
                    offset=stop.offset,
                    attempt=stop.failure.attempts,
                    attempts=self._pipeline.retry.attempts,
                    wait=stop.wait,
                    failure=stop.failure,
                    then="stop" if stop.failure.cause is Cause.TRANSIENT else self._pipeline.on_poison.value,
                )
            )
            self._holder.schedule_retry(stop, batch.rest(partition, stop.offset), batch.position(partition))

    def _check_identity(self, batch: OpenBatch) -> None:
        """The topics still are who they were after the last read: the records belong to the offsets (I4)."""
        assert batch.identity is not None
        if strange := self._holder.topic_id_mismatches(batch.identity, list(batch.reads)):
            raise _TopicIdMismatch(strange)


class _TopicIdMismatch(Exception):  # noqa: N818 -- control: rolls the transaction back
    def __init__(self, mismatches: Mapping[Partition, PartitionStopped | None]) -> None:
        super().__init__()
        self.mismatches = mismatches


def _note(error: BaseException, batch: OpenBatch) -> None:
    note = f"while applying {', '.join(map(str, batch.spans)) or 'an empty batch'}"
    if not isinstance(error, HandlerMisuse) and not connection_lost(error):  # else it may have been, all or in part
        note += "; nothing of this batch was written, and it is read again from there"
    add_note(error, note)
