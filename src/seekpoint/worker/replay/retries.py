"""Retries the waiting records of a worker's partitions between its batches, each as a replay under the claim (I2).

A record waits if it failed while ``retry_order`` lets others of its partition continue. An attempt takes the locks of a
replay, and has two transactions. The first records that the attempt begins, because the record may crash the process.
The second applies the record and closes its dead letter. After a failure a further transaction stores the time of the
next attempt or, after the last attempt, that an operator has to decide. After an error that may not be the record's
fault, the record waits longer.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from seekpoint import events
from seekpoint.backoff import RANDOM
from seekpoint.durations import format_duration
from seekpoint.errors import CodecUnavailable, ConfigError, Fenced, HandlerMisuse, TooManyDeadLetters
from seekpoint.events import Announcer
from seekpoint.ledger import Claim, GroupLedger
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetters, DeadLetterUnknown, Waiting
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.session import ConnectionSocket, Session
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, connection_lost, sqlstate
from seekpoint.records import Cause, Failure, NewDeadLetter, State
from seekpoint.worker.assignment import WorkerAssignment
from seekpoint.worker.async_handler import Call
from seekpoint.worker.dead_letter_limits import BatchCounts, DeadLetterLimitCheck
from seekpoint.worker.failure_policy import CrashingRecord, has_attempts_left
from seekpoint.worker.replay.group_dead_letters import retry_transient
from seekpoint.worker.replay.preconditions import keeps_order
from seekpoint.worker.replay.replay_one import Replayer
from seekpoint.worker.replay.requests import LOCK_WAIT, SECONDS
from seekpoint.worker.waiting import Stopwatch, waiting

MOST = 100  # records of each partition between two batches
NEVER = float("inf")
RECREATED = "it waited for its retry when its topic was deleted and created again"


class NotWaiting(Exception):  # noqa: N818 -- control: another session has closed the dead letter
    """The record no longer waits for a retry."""


class Retrier(Replayer):
    """Retries one waiting record after another, under the claim of its partition (I2, I4)."""

    def __init__(
        self,
        pipeline: Pipeline,
        dead_letters: DeadLetters,
        session: Session,
        limits: DeadLetterLimitCheck,
        announce: Announcer,
        *,
        stopwatch: Stopwatch,
        stopping: threading.Event,
        handler: Call | None,
    ) -> None:
        super().__init__(
            pipeline,
            dead_letters,
            session,
            f"worker {dead_letters.ledger.owner}",
            while_paused=False,
            among=None,  # only operators' actions go into the history
            stopwatch=stopwatch,
            stopping=stopping,
            handler=handler,
        )
        self._limits, self._announce = limits, announce
        self._begun: set[int] = set()  # ids of attempts that this process began and whose result is not stored
        self._claim: Claim
        self._wait: float | None = None
        self._counts: BatchCounts | None = None

    def refresh(self) -> None:
        """Add topics that the pipeline's pattern has newly matched."""
        self._writers.refresh()

    def retry(self, waiting_record: Waiting, claim: Claim) -> None:
        """Try the record, and store the result. Raises Fenced if the claim is not current.

        Raises TooManyDeadLetters, errors that end a worker, and errors of a lost connection.
        """
        self._claim = claim
        with suppress(NotWaiting, DeadLetterUnknown):
            if (dead_letter := retry_transient(lambda: self._begin(waiting_record.id), self._stopping)) is not None:
                partition, attempt = dead_letter.topic_partition, dead_letter.attempts + 1
                begun = events.SingleRecordAttempt(partition=partition, offset=dead_letter.offset, attempt=attempt)
                self._announce(begun)
                try:
                    self._try(dead_letter)
                except BaseException as error:
                    if not isinstance(error, NotWaiting | Fenced) and not self._has_lost_connection(error):
                        with suppress(Exception):  # the error is raised below; it was no crash
                            self._postpone(dead_letter, Failure.of(error, Cause.HANDLER), 0.0)
                    raise

    def _begin(self, id: int) -> DeadLetter | None:  # noqa: A002
        """Record that an attempt begins; None if the record becomes a dead letter instead, or is blocked."""
        with self._ledger.begin() as tx:
            dead_letter = self._lock(tx.connection, id)
            if self._is_behind_another(tx.connection, dead_letter):
                self._dead_letters.block_waiting(tx.connection, dead_letter)
                return None
            failure = dead_letter.failure
            if is_of_earlier_topic := dead_letter.topic_id != self._claim.topic_id:
                failure = Failure(failure.cause, f"{failure.error} ({RECREATED})", attempts=failure.attempts)
            elif dead_letter.crashes >= self._pipeline.retry.crashes and id not in self._begun:
                failure = Failure.of(CrashingRecord(dead_letter.crashes), Cause.CRASHED, attempts=failure.attempts)
            else:
                self._dead_letters.begin_retry(tx.connection, dead_letter, is_again=id in self._begun)
                self._begun.add(id)
                return dead_letter
            self._end(tx.connection, dead_letter, failure, None, counts=not is_of_earlier_topic)
        self._announce_end(dead_letter, failure, None)
        return None

    def _is_behind_another(self, tx: Connection, dead_letter: DeadLetter) -> bool:
        """Whether an operator has to decide about an earlier record of its key."""
        if not (keeps_order(self._pipeline, dead_letter) or dead_letter.cause is Cause.BLOCKED):
            return False
        first = self._dead_letters.first_open_of_key(tx, dead_letter)
        return first is not None and first < dead_letter.offset

    def _try(self, dead_letter: DeadLetter) -> None:
        try:
            outcome, _ = self.replay(dead_letter.id, f"attempt {dead_letter.attempts + 1}")
        except Exception as error:
            if self._ends_worker(error):
                raise
            # A replay raises Fenced also where the row may not be applied (yet): only under a lost claim does
            # postponing raise it again.
            retry = self._pipeline.retry
            self._postpone(dead_letter, Failure.of(error, Cause.PROGRAM), retry.wait(dead_letter.attempts, RANDOM))
            return
        self._begun.discard(dead_letter.id)
        if outcome.failure is None:
            self._limits.count_retry(
                dead_letter.topic_partition, self._limits.check_retry(dead_letter.topic_partition, None)
            )
            attempt = dead_letter.attempts + 1
            self._announce(
                events.RetrySucceeded(partition=dead_letter.topic_partition, offset=dead_letter.offset, attempt=attempt)
            )
        else:
            self._announce_end(dead_letter, outcome.failure, self._wait)

    def _ends_worker(self, error: Exception) -> bool:
        """Whether the loop has to act on the error, because it is not about this record alone."""
        own = (NotWaiting, ConfigError, CodecUnavailable, HandlerMisuse, TooManyDeadLetters)
        return isinstance(error, own) or self._has_lost_connection(error)

    def _has_lost_connection(self, error: BaseException) -> bool:
        return self._session.wire.is_cut or connection_lost(error)

    # -- the steps of a replay --------------------------------------------------------------------------

    def _lock(self, tx: Connection, id: int) -> DeadLetter:  # noqa: A002
        dead_letter = self._dead_letters.lock_waiting(tx, id, self._claim)
        if dead_letter is None:
            raise NotWaiting
        return dead_letter

    def _failure(self, dead_letter: DeadLetter, error: BaseException, cause: Cause) -> Failure:
        failure, retry = Failure.of(error, cause, attempts=dead_letter.attempts + 1), self._pipeline.retry
        is_left = has_attempts_left(retry, error, failure.attempts, cause)
        self._wait = retry.wait(failure.attempts, RANDOM) if is_left else None
        return failure

    def _store(self, tx: Connection, dead_letter: DeadLetter, failure: Failure) -> None:
        # The claim may have changed since the attempt's transaction was rolled back.
        self._end(tx, self._lock(tx, dead_letter.id), failure, self._wait)

    def _end(
        self, tx: Connection, dead_letter: DeadLetter, failure: Failure, wait: float | None, *, counts: bool = True
    ) -> None:
        """Store the failure. Raises TooManyDeadLetters, after which the record waits as before, if it ``counts``."""
        self._counts = None
        if wait is None and counts:
            new = NewDeadLetter(dead_letter.record, failure, State.DEAD_LETTERED)
            self._counts = self._limits.check_retry(dead_letter.topic_partition, new)
        self._dead_letters.end_retry(tx, dead_letter, failure, wait, self._pipeline.version)
        if wait is None and keeps_order(self._pipeline, dead_letter):
            self._dead_letters.block_waiting(tx, dead_letter)

    def _announce_end(self, dead_letter: DeadLetter, failure: Failure, wait: float | None) -> None:
        self._begun.discard(dead_letter.id)
        partition, offset, key = dead_letter.topic_partition, dead_letter.offset, dead_letter.key
        record: dict[str, Any] = {"partition": partition, "offset": offset, "key": key}
        if wait is None:
            if self._counts is not None:
                self._limits.count_retry(dead_letter.topic_partition, self._counts)
            self._announce(events.DeadLettered(state=State.DEAD_LETTERED, failure=failure, **record))
            return
        record |= {"attempt": failure.attempts, "attempts": self._pipeline.retry.attempts}
        self._announce(events.WaitingForRetry(wait=wait, failure=failure, **record))

    def _postpone(self, dead_letter: DeadLetter, failure: Failure, wait: float) -> None:
        """Let the record wait longer, without counting an attempt."""

        def once() -> None:
            with self._ledger.begin() as tx:
                now = self._lock(tx.connection, dead_letter.id)
                self._dead_letters.postpone_retry(tx.connection, now, failure, wait)

        retry_transient(once, self._stopping)
        self._begun.discard(dead_letter.id)


# After these events, there may be waiting records that no event named: from an earlier owner, or from a COMMIT without
# an answer.
_ASKS = (events.Activated, events.Resynced, events.CommitUnknown)


class WaitingRetries:
    """Finds the waiting records that are due, and retries them; on the worker's thread.

    The ledger is asked after a claim, and as long as records wait.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: GroupLedger,
        assignment: WorkerAssignment,
        limits: DeadLetterLimitCheck,
        announce: Announcer,
        *,
        stopwatch: Stopwatch,
        stopping: threading.Event,
        handler: Call | None = None,
    ) -> None:
        self._pipeline, self._assignment, self._announce = pipeline, assignment, announce
        self._dead_letters = DeadLetters(ledger, LOCK_WAIT)
        self._interval, self._stopping = ledger.limits.lag_check, stopping
        self._session = Session(
            ledger.engine, lends=pipeline.handle is not None, wire=ConnectionSocket(waiting(stopwatch))
        )
        self._retrier = Retrier(
            pipeline,
            self._dead_letters,
            self._session,
            limits,
            announce,
            stopwatch=stopwatch,
            stopping=stopping,
            handler=handler,
        )
        self._next_at = NEVER
        self._trying: tuple[float, Waiting] | None = None  # when the current retry began

    def note(self, event: events.Event) -> None:
        """Note when the ledger has to be asked."""
        if isinstance(event, _ASKS):
            self._next_at = 0.0
        elif isinstance(event, events.WaitingForRetry):
            self._next_at = min(self._next_at, monotonic() + min(event.wait, self._interval))

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask the ledger; without I/O."""
        return monotonic() >= self._next_at

    def work(self) -> bool:
        """Retry the records that are due, for a while; returns whether there was one."""
        until, tried = monotonic() + SECONDS, 0
        active = self._assignment.active
        waits = self._dead_letters.waiting(active, MOST, keeps_order=self._pipeline.keep_key_order) if active else ()
        due = [record for record in waits if not record.wait]
        later = min((record.wait for record in waits if record.wait), default=self._interval)
        self._next_at = monotonic() + min(later, self._interval) if waits else NEVER
        if due:
            self._retrier.refresh()
        try:
            for record in due:
                if self._stopping.is_set() or monotonic() >= until:
                    break
                if (state := self._assignment.active.get(record.partition)) is not None:
                    tried += 1
                    if not self._retry(record, state.claim):
                        return True
        finally:
            self._session.close()  # retries and requested replays share one connection of the pool
        if due:  # more records may be due, or the next ones of these keys
            self._next_at = 0.0
        return tried > 0

    def _retry(self, record: Waiting, claim: Claim) -> bool:
        """Retry a record; False to look again later."""
        self._trying = monotonic(), record
        try:
            self._retrier.retry(record, claim)
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self._assignment.reconcile({})
            return False
        except Exception as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            self._next_at = monotonic() + LOCK_WAIT  # another session has locked the partition
            return False
        finally:
            self._trying = None
        return True

    def describe_open_retry(self) -> str | None:
        """How long the retry of a waiting record has taken; None if none is retried now. For any thread."""
        if (trying := self._trying) is None:
            return None
        since, record = trying
        return f"retrying dead letter {record.id} of {record.partition} for {format_duration(monotonic() - since)}"

    def cut(self) -> None:
        """Close the connection from another thread: nothing is applied any more."""
        self._session.wire.cut()
