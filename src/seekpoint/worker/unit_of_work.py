"""One transaction of a worker: hold, apply, insert dead letters, advance, record attempts, COMMIT; and its retry.

Only this module requests the COMMIT of a batch (I1); `postgres.session` sends it. A requested replay has a separate
transaction (`worker.replay.replay_one`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Protocol, TypedDict

from seekpoint import events
from seekpoint.durations import format_duration
from seekpoint.errors import Fenced, PartitionStopped, PoisonStop
from seekpoint.events import Announcer
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Attempt, Claim, Expected, GroupLedger, SuspectNote
from seekpoint.ledger.claim import TRANSIENT
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.session import CommitUnanswered, ConnectionSocket, Session, raised_by
from seekpoint.records import Cause, Partition, RawRecord, add_note, notes, numbered, users_line
from seekpoint.worker.apply import SmallBatch, apply, small_batch
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.batch_size import BatchSize, ended_by_age
from seekpoint.worker.bisect import Strides
from seekpoint.worker.dead_letter_limits import BatchCounts, DeadLetterLimitCheck
from seekpoint.worker.failed import Mode
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import BatchResult, DeadKeys, OpenBatch
from seekpoint.worker.recovery import (
    DropPartitions,
    GiveUp,
    Isolate,
    Recovery,
    RunAgain,
    TopicIdMismatch,
    recovery_for,
)
from seekpoint.worker.tracer import Tracer
from seekpoint.worker.waiting import Stopwatch, Work, waiting

logger = logging.getLogger("seekpoint.worker.unit_of_work")


class _PlaceFields(TypedDict):
    """The fields that locate a record in an event."""

    partition: Partition
    offset: int
    key: bytes | None


class PartitionOwner(Protocol):
    """Knows which partitions are active: the assignment of a worker, or fixed claims of the test kit."""

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        """The claim and offset that *hold* must find for each partition that it locks.

        The offset is where the batch begins, or the position if the batch has none of the partition's records.
        """

    def accept(self, moved: Iterable[Claim]) -> None:
        """Take over the moved claims, after COMMIT."""

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        """Compare with the ledger after a refusal; returns the partitions to drop from the batch."""

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> Mapping[Partition, PartitionStopped | None]:
        """The partitions whose topic is not the one that was claimed; None if its id is unknown now."""

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""

    def schedule_retry(self, retry: RetryLater, records: Sequence[RawRecord], position: int) -> None:
        """Keep a partition's records until the first one, which failed, is due again."""


class Committer:
    """Applies one batch after the other, in order, each in one transaction.

    ``meanwhile`` is work to do while waiting for the server. ``size`` learns how long the batches take.
    """

    def __init__(
        self,
        ledger: GroupLedger,
        writers: PipelineWriters,
        owner: PartitionOwner,
        announce: Announcer,
        *,
        stopwatch: Stopwatch | None = None,
        tracer: Tracer | None = None,
        meanwhile: Work | None = None,
        size: BatchSize | None = None,
    ) -> None:
        self._size = size or BatchSize(ledger.limits, adapts=False)
        self._open: tuple[float, OpenBatch] | None = None  # the open batch, and since when it is open
        self._began = 0.0  # when the current attempt began
        self._ledger, self._writers, self._owner, self._announce = ledger, writers, owner, announce
        self._pipeline = pipeline = writers.pipeline
        self._tracer = tracer
        self._stopwatch = stopwatch or Stopwatch()
        self._session = Session(
            ledger.engine,
            lends=pipeline.handle is not None,
            wire=ConnectionSocket(waiting(self._stopwatch, meanwhile)),
        )
        self._dead_letters = DeadLetters(ledger)
        self._strides = Strides()
        self.limits = DeadLetterLimitCheck(pipeline.dead_letter_limits)

    def close(self) -> None:
        """Return the connection to the pool."""
        self._session.close()

    def cut(self) -> None:
        """Close the connection from another thread: nothing is committed any more."""
        self._session.wire.cut()

    def commit(self, batch: OpenBatch) -> None:
        """Apply the batch exactly once, or raise an error with nothing written.

        Refused partitions are dropped from it, and the others are held again without them. After a transient error, or
        a COMMIT without an answer, the same transaction runs again from the kept records: hold finds out whether the
        COMMIT took effect. If a record may be at fault, the next attempt searches for it.
        """
        self._open = monotonic(), batch
        try:
            self._commit(batch)
        finally:
            self._open = None

    def describe_open_batch(self) -> str | None:
        """How long the open batch has taken, and its number of records; None if none is open. For any thread."""
        if (opened := self._open) is None:
            return None
        began, batch = opened
        records = numbered(batch.buffer.records, "record")
        return f"in a transaction for {format_duration(monotonic() - began)}, {records}"

    def _commit(self, batch: OpenBatch) -> None:
        mode: Mode | None = Mode(is_bisecting=batch.is_single or self._strides.expects_failures)
        while mode is not None:
            try:
                result = self._attempt_traced(batch, mode)
            except Exception as error:  # noqa: BLE001 -- raised again, unless it is recovered from
                if (mode := self._recover(error, batch, mode)) is None:
                    raised = raised_by(error)
                    batch.note(raised)
                    raise raised from raised.__cause__
            except SystemExit as error:  # Python would end the process without a message that says where it was raised
                batch.note(error)
                line = users_line(error) or "code of a handler, row= or codec"
                logger.error(
                    "%r was raised (at %s) and ends the worker, %s. To stop a worker, call Worker.stop(); for a record "
                    "that cannot be applied, raise seekpoint.Poison",
                    error,
                    line,
                    notes(error)[-1],
                )
                raise
            else:
                self._end_at_stops(result)  # outside try: the batch is committed, so no error here is its own
                return
            if not batch.buffer.reads:
                return

    def _attempt_traced(self, batch: OpenBatch, mode: Mode) -> BatchResult:
        if self._tracer is None:
            return self._attempt(batch, mode)
        with self._tracer.transaction(self._pipeline, batch.buffer.replay, mode.attempt):
            return self._attempt(batch, mode)

    def _attempt(self, batch: OpenBatch, mode: Mode) -> BatchResult:
        self._began = monotonic()
        self._announce(events.BatchOpened(attempt=mode.attempt))
        with self._session.transaction() as tx:
            small = None if self._pipeline.keep_key_order else self._small_batch(tx, batch, mode)
            if small is not None:
                result, moved = small.result, self._hold_and_advance(tx, small)
                counts = self.limits.check(result, result.applied)
            else:
                result, moved, counts = self._step_by_step(tx, batch, mode)
            self._require_same_topics(result)
            self._announce(events.Advanced(spans=result.spans))
        self._owner.accept(moved)
        self.limits.count(counts)
        seconds = monotonic() - self._began
        if batch.is_ordinary:
            self._size.committed(batch.buffer.records, seconds)
        self._announce(self._committed(result, seconds))
        if self._session.changed:
            self._announce(events.SessionReplaced(group=self._pipeline.group, changed=self._session.changed))
        for writer in self._writers.sinks:
            if (changed := writer.strategy_changed()) is not None:
                self._announce(changed)
        self._announce_dead_letters(result)
        return result

    def _small_batch(self, tx: HandlerConnection, batch: OpenBatch, mode: Mode) -> SmallBatch | None:
        with self._stopwatch:
            return small_batch(tx, self._writers, batch, mode)

    def _step_by_step(
        self, tx: HandlerConnection, batch: OpenBatch, mode: Mode
    ) -> tuple[BatchResult, list[Claim], BatchCounts]:
        """Hold, apply, insert dead letters, advance, and record attempts."""
        expected = self._owner.expected(batch.buffer.starts)
        transaction, dead_keys = self._hold(tx, expected)
        batch.buffer.held = frozenset(entry.claim.partition for entry in expected)
        batch = batch.blocking(dead_keys)
        if self._pipeline.retry_order != "partition" and (mode.is_bisecting or dead_keys):
            batch.outcome.limit_waiting(self._room(tx, [entry.claim.partition for entry in expected]))
        small = self._small_batch(tx, batch, mode) if self._pipeline.keep_key_order else None
        if small is not None:
            result, rows = small
        else:
            with self._stopwatch:
                result, rows = apply(tx, self._writers, batch, mode, self._strides), ()
        self._announce(events.Applied(records=result.applied))
        counts = self.limits.check(result, result.applied)
        self._insert_dead_letters(tx, result)
        moved = self._ledger.advance(tx, result.moves, transaction, rows) if result.moves else []
        self._record_suspect_part(tx, result)
        self._record_attempts(tx, result)
        return result, moved, counts

    def _committed(self, result: BatchResult, seconds: float) -> events.Committed:
        rows: dict[str, int] = {}
        # Nothing may raise an error after COMMIT.
        for sink, count in zip(self._pipeline.sinks, result.rows, strict=False):
            name = ", ".join(sink.tables)
            rows[name] = rows.get(name, 0) + count
        return events.Committed(spans=result.spans, records=result.applied, seconds=seconds, rows=rows)

    def _hold_and_advance(self, tx: HandlerConnection, small: SmallBatch) -> list[Claim]:
        """Hold, advance and write the rows in one round trip; announce the events after it."""
        moved = self._ledger.hold_and_advance(tx, small.result.moves, small.statements)
        self._announce(events.Held(partitions=len(moved)))
        self._announce(events.Applied(records=small.result.applied))
        return moved

    def _hold(self, tx: HandlerConnection, expected: Sequence[Expected]) -> tuple[str, DeadKeys | None]:
        """Hold the partitions that the batch may read; with key order, also find the keys that dead letters block."""
        transaction = self._ledger.hold(tx, expected)
        self._announce(events.Held(partitions=len(expected)))
        if not self._pipeline.keep_key_order:
            return transaction, None
        return transaction, self._dead_letters.open_keys(tx, [entry.claim.partition for entry in expected])

    def _room(self, tx: HandlerConnection, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """How many more records of each held partition may wait for retries."""
        waiting = self._dead_letters.count_waiting(tx, partitions)
        return {partition: self._ledger.limits.waiting - waiting[partition] for partition in partitions}

    def _recover(self, error: Exception, batch: OpenBatch, mode: Mode) -> Mode | None:
        """Recover from an error; returns the mode of the next attempt, None if no attempt would help."""
        raised = raised_by(error)
        if isinstance(error, CommitUnanswered):
            self._announce(events.CommitUnknown(error=raised))
        if self._session.wire.is_cut:
            return None
        seconds = monotonic() - self._began
        if (ended := ended_by_age(raised, seconds, self._ledger.limits.transaction_age)) is not None:
            records = batch.buffer.records
            if batch.is_ordinary:
                self._size.ended(records)
            add_note(ended, self._size.note(records, seconds))
            if self._size.adapts and batch.is_ordinary and not isinstance(ended, Fenced):
                # The same batch would take as long again, so the next one is smaller.
                batch.note(ended)
                raise ended from ended.__cause__
        return self._apply_recovery(recovery_for(error, mode), batch, mode)

    def _apply_recovery(self, recovery: Recovery, batch: OpenBatch, mode: Mode) -> Mode | None:
        again = replace(mode, attempt=mode.attempt + 1, failed=None)
        match recovery:
            case GiveUp():
                return None
            case Isolate():
                self._announce(recovery.event)
                for raw, failure, cause in recovery.named:
                    fail(self._pipeline, batch.outcome, raw, failure, cause)
                checks = mode.checks_deferred or recovery.checks_deferred
                again = replace(again, is_bisecting=True, checks_deferred=checks, failed=recovery.known)
            case DropPartitions():
                if not self._drop(recovery, batch):
                    return None
            case RunAgain():
                self._announce(recovery.event)
                if recovery.ask_topic_ids:
                    batch.buffer.ask_again()
                if recovery.reconcile:  # waits until that transaction has ended, at most claim_wait
                    batch.drop(self._owner.reconcile(batch.buffer.starts))
        return again

    def _drop(self, drop: DropPartitions, batch: OpenBatch) -> bool:
        """Drop partitions, and read them again from the stored position; False if a retry would not help."""
        if drop.mismatches is None:
            self._announce(events.Refused(reason=drop.reason))
            dropped = self._owner.reconcile(batch.buffer.starts)
        else:
            self._owner.stop_or_reclaim(drop.mismatches)
            dropped = set(drop.mismatches)
        batch.drop(dropped)
        return bool(dropped) or not drop.gives_up

    def _insert_dead_letters(self, tx: HandlerConnection, result: BatchResult) -> None:
        """Insert the records that the position moves past without applying them, in this transaction (I1, I4)."""
        if dead_letters := result.dead_letters:
            topic_ids = {partition.topic: read.claim.topic_id for partition, read in result.reads.items()}
            self._dead_letters.insert(tx, dead_letters, topic_ids, self._pipeline.version)

    def _record_suspect_part(self, tx: HandlerConnection, result: BatchResult) -> None:
        """Record the attempt at the next part of a suspect range in this transaction, which saves another one."""
        if (suspects := result.batch.suspects) is None:
            return
        suspects.noted = -1
        for partition, read in result.reads.items():
            position, part_end = result.position(partition), None
            if position >= suspects.end:
                continue  # the advance has ended the range
            if suspects.step_at(position) > 1 and not (result.stops or result.retries):
                part_end = suspects.noted = suspects.part_end(position)
            self._ledger.record_suspects(tx, [SuspectNote(read.claim, suspects.end, part_end)])

    def _record_attempts(self, tx: HandlerConnection, result: BatchResult) -> None:
        """Store which record a partition waits for or stopped at, how often it was tried, and when it is retried."""
        notes, suspects = [], []
        ends: list[PoisonStop | RetryLater] = [*result.stops.values(), *result.retries.values()]
        for end in ends:
            wait = end.wait if isinstance(end, RetryLater) else None
            failure, pipeline = end.failure, self._pipeline
            # 0 means no attempt, so that the next start tries the record together with later ones. It replaces a stored
            # attempt that counts as running: a kill of the process while the partition is stopped must not count as the
            # record's crash.
            number = 0 if failure.cause is Cause.PROGRAM else failure.attempts
            then = TRANSIENT if failure.cause is Cause.TRANSIENT else pipeline.on_poison.value
            attempt = Attempt(end.offset, number, failure.summary, wait, pipeline.retry.attempts, then)
            notes.append((result.reads[end.partition].claim, attempt))
            # Otherwise a suspect would get another single-record attempt.
            if failure.cause in {Cause.CRASHED, Cause.PROGRAM}:
                suspects.append(result.reads[end.partition].claim)
        if notes:
            self._ledger.record_attempts(tx, notes)
        if suspects:
            self._ledger.record_suspects(tx, [SuspectNote(claim, None) for claim in suspects])

    def _require_same_topics(self, result: BatchResult) -> None:
        """Raise TopicIdMismatch if a topic was recreated before the last read: its offsets mean other records (I4)."""
        topic_ids = result.batch.buffer.topic_ids
        assert topic_ids is not None
        if mismatches := self._owner.topic_id_mismatches(topic_ids, list(result.reads)):
            raise TopicIdMismatch(mismatches)

    def _announce_dead_letters(self, result: BatchResult) -> None:
        for dead_letter in result.dead_letters:
            record, wait, failure = dead_letter.record, dead_letter.wait, dead_letter.failure
            place: _PlaceFields = {
                "partition": Partition(record.topic, record.partition),
                "offset": record.offset,
                "key": record.key,
            }
            if wait is None:
                self._announce(events.DeadLettered(state=dead_letter.state, failure=failure, **place))
            else:
                attempts = {"attempt": failure.attempts, "attempts": self._pipeline.retry.attempts}
                self._announce(events.WaitingForRetry(wait=wait, failure=failure, **attempts, **place))

    def _end_at_stops(self, result: BatchResult) -> None:
        if result.stops:
            self._owner.stop_or_reclaim(result.stops)
        for partition, retry in result.retries.items():
            self._announce(
                events.RetryScheduled(
                    partition=partition,
                    offset=retry.offset,
                    attempt=retry.failure.attempts,
                    attempts=self._pipeline.retry.attempts,
                    wait=retry.wait,
                    failure=retry.failure,
                    then="stop" if retry.failure.cause is Cause.TRANSIENT else self._pipeline.on_poison.value,
                )
            )
            records = list(result.batch.buffer.records_of(partition, retry.offset))
            self._owner.schedule_retry(retry, records, result.position(partition))
