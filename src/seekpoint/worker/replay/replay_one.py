"""Applies one dead letter with its pipeline, in the transaction that closes it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from seekpoint.errors import HandlerMisuse
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetters
from seekpoint.ledger.positions import positions_of
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPLAY
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.session import CommitRefused, Session, TransactionFailed
from seekpoint.postgres.sqlstates import Fault, connection_lost, is_data_error
from seekpoint.records import Cause, Failure, Span, State
from seekpoint.worker.async_handler import Call
from seekpoint.worker.decode import decode_record
from seekpoint.worker.failed import Failed
from seekpoint.worker.replay.group_dead_letters import open_at, retry_transient, without_payload
from seekpoint.worker.replay.preconditions import (
    check_group,
    check_topic,
    closed,
    keeps_order,
    not_first_of_key,
    replay_refusal,
)
from seekpoint.worker.waiting import Stopwatch
from seekpoint.worker.write import write


def as_worker(tx: Connection, limits: Limits, before: Mapping[str, str]) -> str:
    """Set the session as a worker does for its handler; returns the transaction's id. The COMMIT stays durable.

    ``before`` is the result of :func:`session_of`.
    """
    settings = {**before, "transaction_age": max(1, round(limits.transaction_age * 1000))}
    return str(tx.exec_driver_sql(REPLAY["as_worker"].text, settings).one().transaction)


def session_of(tx: Connection) -> dict[str, str]:
    """The session's settings, before our own statements change them."""
    return dict(tx.exec_driver_sql(REPLAY["remember_session"].text).mappings().one())


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome for a dead letter: applied and closed, failed again (``failure``) or refused (``refusal``).

    ``dead_letter`` is as it was before, without value and tracebacks. ``followers`` are the outcomes of its key's later
    ones.
    """

    dead_letter: DeadLetter
    failure: Failure | None = None
    refusal: str | None = None
    followers: tuple[Replayed, ...] = ()

    @property
    def is_applied(self) -> bool:
        """Whether the record is applied now, by this replay."""
        return self.failure is None and self.refusal is None


@dataclass(slots=True)
class _Attempt:
    """How far one transaction got."""

    dead_letter: DeadLetter | None = None
    transaction: str | None = None
    following: int | None = None
    committing: bool = False


class Replayer:
    """Replays dead letters of one group with one pipeline, one transaction each.

    ``handler`` is the pipeline's handler as a plain function (`worker.async_handler`). ``among`` are all dead letters
    of the request: the history gets one row for all of them, committed with the first one applied.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        dead_letters: DeadLetters,
        session: Session,
        actor: str,
        *,
        while_paused: bool,
        among: Sequence[DeadLetter] | None = (),
        stopwatch: Stopwatch | None = None,
        stopping: threading.Event | None = None,
        handler: Call | None = None,
    ) -> None:
        self._pipeline, self._dead_letters, self._session, self._actor = pipeline, dead_letters, session, actor
        self._writers = PipelineWriters(pipeline, handler)
        self._among = among  # dead letters of the request; None once the history has it
        self._ledger, self._while_paused = dead_letters.ledger, while_paused
        self._stopwatch, self._stopping = stopwatch or Stopwatch(), stopping

    def replay(self, id: int, reason: str) -> tuple[Replayed, int | None]:  # noqa: A002 -- the column's name
        """Apply and close a dead letter in one transaction (I1); if it fails again, it stays open with the new error.

        Also returns the offset of the next open dead letter of its key, if it was applied and key order is kept.

        Raises Fenced if it may not be replayed, or no longer; HandlerOutdated if the group is at a newer handler
        version; GroupPaused if it is paused, unless ``while_paused``; ConfigError for an unknown id; HandlerMisuse if
        the handler breaks its transaction; and database errors that are not the record's fault.
        """
        before: list[_Attempt] = []

        def once() -> Replayed:
            if before and before[-1].committing and self._took_effect(before[-1]):
                assert before[-1].dead_letter is not None
                return Replayed(without_payload(before[-1].dead_letter))
            before.append(attempt := _Attempt())
            return self._once(id, reason, attempt)

        try:
            outcome = retry_transient(once, self._stopping)
        except DBAPIError as error:
            if before and before[-1].committing and connection_lost(error):
                error.add_note(
                    "COMMIT got no answer, and the server could not be asked whether it took effect: `seekpoint "
                    f"dead-letters show {id}` shows it. Replaying dead letter {id} again is safe: it is applied once"
                )
            raise
        if outcome.is_applied:
            self._among = None
        return outcome, before[-1].following if outcome.is_applied else None

    def _once(self, id: int, reason: str, attempt: _Attempt) -> Replayed:  # noqa: A002
        try:
            self._transaction(id, reason, attempt)
        except Failed as failed:
            # No other fault can be blamed on one record. A worker that was given up stores nothing.
            if failed.fault is not Fault.DATA or self._session.wire.is_cut:
                raise failed.error from failed
            error, cause = failed.error, failed.cause
        except TransactionFailed as ended:
            error = ended.error
            if not (isinstance(ended, CommitRefused) and is_data_error(error)):
                raise error from error.__cause__
            cause = Cause.DATABASE  # a deferred constraint, checked at COMMIT
        else:
            assert attempt.dead_letter is not None
            return Replayed(without_payload(attempt.dead_letter))
        assert attempt.dead_letter is not None
        dead_letter = attempt.dead_letter
        failure = self._failure(dead_letter, error, cause)
        self._keep(dead_letter, failure)
        return Replayed(without_payload(dead_letter), failure)

    def _lock(self, tx: Connection, id: int) -> DeadLetter:  # noqa: A002
        return self._dead_letters.lock(tx, id)

    def _failure(self, dead_letter: DeadLetter, error: BaseException, cause: Cause) -> Failure:  # noqa: ARG002
        return Failure.of(error, cause)

    def _store(self, tx: Connection, dead_letter: DeadLetter, failure: Failure) -> None:
        self._dead_letters.failed_again(tx, dead_letter, failure)

    def _transaction(self, id: int, reason: str, attempt: _Attempt) -> None:  # noqa: A002
        with self._session.transaction() as tx:
            settings = session_of(tx)
            attempt.dead_letter = dead_letter = self._lock(tx, id)
            self._admit(tx, dead_letter)
            attempt.transaction = as_worker(tx, self._ledger.limits, settings)
            with self._stopwatch:
                record = decode_record(self._writers, dead_letter.record)
                write(
                    tx,
                    self._writers,
                    [record],
                    [Span(dead_letter.topic_partition, dead_letter.offset, dead_letter.offset + 1)],
                )
            if tx.exec_driver_sql(REPLAY["current_transaction"].text).scalar_one() != attempt.transaction:
                raise HandlerMisuse(
                    "the handler ended its transaction: what it wrote before may be half done, and "
                    f"dead letter {id} stays open. Remove COMMIT, ROLLBACK and PREPARE TRANSACTION from its SQL"
                )
            self._dead_letters.close(tx, dead_letter, State.REPLAYED, self._actor, reason, among=self._among)
            if keeps_order(self._pipeline, dead_letter):
                attempt.following = self._dead_letters.first_open_of_key(tx, dead_letter)
            attempt.committing = True

    def _admit(self, tx: Connection, dead_letter: DeadLetter) -> None:
        scope = self._ledger.group_connection(tx)
        check_group(scope.execute(GROUPS["read"]).one(), self._pipeline, while_paused=self._while_paused)
        position = positions_of(scope, [dead_letter.topic_partition], locked=False).get(dead_letter.topic_partition)
        if (refusal := replay_refusal(dead_letter, position)) is not None:
            raise refusal
        check_topic(dead_letter, self._pipeline)
        if keeps_order(self._pipeline, dead_letter):
            first = self._dead_letters.first_open_of_key(tx, dead_letter)
            if first is not None and first < dead_letter.offset:
                raise not_first_of_key(dead_letter, open_at(self._dead_letters, dead_letter, first))

    def _keep(self, dead_letter: DeadLetter, failure: Failure) -> None:
        """Store the new error in addition to the old one, in a separate transaction: the replay's was rolled back."""
        transactions: list[str] = []

        def once() -> None:
            with self._ledger.begin() as tx:
                now = self._dead_letters.lock(tx.connection, dead_letter.id)
                # After a COMMIT without an answer, the error may have been stored: the replay counts once.
                if transactions and _is_committed(tx, transactions[-1]):
                    return
                if not now.is_open:  # another session closed it between the two transactions
                    raise closed(now)
                transactions.append(tx.execute(REPLAY["current_transaction"]).scalar_one())
                self._store(tx.connection, now, failure)

        retry_transient(once, self._stopping)

    def _took_effect(self, attempt: _Attempt) -> bool:
        """Whether a COMMIT without an answer took effect. Raises Fenced if another session closed the dead letter.

        The lock makes it wait for a COMMIT that is still running.
        """
        assert attempt.dead_letter is not None
        assert attempt.transaction is not None
        with self._ledger.begin() as tx:
            now = self._dead_letters.lock(tx.connection, attempt.dead_letter.id)
            if now.is_open:
                return False
            is_ours = _is_committed(tx, attempt.transaction)
        if now.state is State.REPLAYED and is_ours:
            return True
        raise closed(now)


def _is_committed(tx: GroupConnection, transaction: str) -> bool:
    return bool(tx.execute(REPLAY["transaction_status"], transaction=transaction).scalar() == "committed")
