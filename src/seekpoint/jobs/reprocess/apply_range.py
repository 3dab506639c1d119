"""Applies a run's range: each transaction writes rows, the run's dead letters and its position together (I1).

The partition's row is locked first, so that a worker's batch, a reset and a replay there come before or after. The
run's row says where it is: a killed run resumes there, and a COMMIT without an answer is looked up there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Self

from sqlalchemy import Row

from seekpoint.errors import HandlerMisuse, ReprocessRefused
from seekpoint.jobs.reprocess.plan import left_out, require_range
from seekpoint.jobs.staging.savepoints import LeftOut, Outcome, Parts, all_of, nothing_left_out
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Piece, Range, RangeFollower
from seekpoint.ledger import Ledger
from seekpoint.ledger.dead_letters import insert_parameters
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import GROUPS, REPROCESS
from seekpoint.ledger.tables import reprocess_dead_letter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.postgres.backoff import retried
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.session import CommitRefused, CommitUnanswered, Session, TransactionFailed, raised_by
from seekpoint.postgres.sqlstates import is_data_error, is_transient
from seekpoint.records import NewDeadLetter, Partition
from seekpoint.worker.replay.preconditions import check_group
from seekpoint.worker.replay.replay_one import as_worker, session_of

Progress = Callable[[str, int, int], None]

FIRST = 500  # offsets of the first transaction
LONG = 0.5  # seconds; a longer transaction is followed by a smaller one, because the partition's worker waits for it
ASKING = 2.0  # seconds in which the brokers must say where the log begins, while the row is locked


class RangeRun:
    """One process's work on a run, whose row is ``run``. Close it, or use ``with``."""

    def __init__(self, ledger: Ledger, pipeline: Pipeline, kafka: Mapping[str, Any], run: Row[Any]) -> None:
        self._ledger, self._pipeline, self._run = ledger, copy.copy(pipeline), run
        self._pipeline.on_poison = OnPoison.DEAD_LETTER  # of the run, whatever a worker does
        self._at = Partition(run.topic, run.partition)
        self._session = Session(ledger.engine, lends=pipeline.handle is not None)
        self._checks = RangeChecks(kafka)
        self._checks.wait_at_most(ASKING)
        self._follower = RangeFollower(kafka, {run.topic: run.topic_id}, {self._at: run.next_offset})
        self._is_unanswered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._follower.close()

    def apply(self, progress: Progress) -> None:
        """Apply what is left of the range, in transactions that hold the partition's row for about half a second.

        Raises ReprocessRefused where the range is not that of the plan any more, or another process works on the run.
        """
        start, end, position = self._run.from_offset, self._run.to_offset, self._run.next_offset
        width = min(FIRST, self._ledger.limits.batch_records)
        while position < end:
            progress("reprocessing", position - start, end - start)
            upto = min(position + width, end)
            pieces = list(self._follower.read_to({self._at: upto}))
            began = monotonic()
            self._apply(position, upto, pieces)
            width = self._next_width(upto - position, monotonic() - began, pieces)
            position = upto
        progress("reprocessing", end - start, end - start)

    def _next_width(self, width: int, seconds: float, pieces: Sequence[Piece]) -> int:
        """How many offsets the next transaction takes: at most twice as many."""
        limits = self._ledger.limits
        size = sum(len(r.key or b"") + len(r.value or b"") for piece in pieces for r in piece)
        share = min(LONG / max(seconds, 0.001), limits.batch_bytes / max(size, 1), 2.0)
        return max(1, min(limits.batch_records, int(width * share)))

    def _apply(self, start: int, end: int, pieces: Sequence[Piece]) -> None:
        """Apply these records in one transaction."""
        try:
            try:
                retried(lambda: self._transaction(start, end, pieces), _may_pass)
            except CommitRefused as refused:  # a deferred constraint: some record of them is at fault
                if not is_data_error(refused.error):
                    raise
                retried(lambda: self._transaction(start, end, pieces, checks_deferred=True), _may_pass)
        except TransactionFailed as failed:
            raise failed.error from failed.error.__cause__
        finally:
            if self._pipeline.handle is not None:  # what it has left on the session ends with it
                self._session.close()

    def _transaction(self, start: int, end: int, pieces: Sequence[Piece], *, checks_deferred: bool = False) -> None:
        try:
            with self._session.transaction() as tx:
                before = session_of(tx)
                self._ledger.configure(tx, self._ledger.limits.transaction_age)
                scope = self._ledger.group_connection(tx)
                if self._is_applied(scope, start, end):
                    return
                left_out = self._left_out(scope, start, end)
                transaction = as_worker(tx, self._ledger.limits, before)
                outcome = self._write(tx, scope, pieces, left_out, checks_deferred=checks_deferred)
                self._keep(scope, outcome.dead_letters)
                self._advance(scope, start, end, transaction, outcome)
        except CommitUnanswered:
            self._is_unanswered = True
            raise
        self._is_unanswered = False

    def _is_applied(self, scope: GroupConnection, start: int, end: int) -> bool:
        """Lock the rows; whether a COMMIT without an answer took effect. Raises ReprocessRefused, GroupPaused."""
        group = scope.execute(GROUPS["share"]).one_or_none()
        row = scope.execute(GROUPS["lock_position"], topic=self._at.topic, partition=self._at.number).one_or_none()
        now = scope.execute(REPROCESS["lock_run"], run=self._run.id).one_or_none()
        if group is None or row is None or now is None:
            gone = f"group {self._ledger.group!r}, its row of {self._at} or the run is gone"
            raise ReprocessRefused([f"{gone}: make another plan"])
        if self._is_unanswered and now.next_offset == end:
            return True
        if now.state != "open" or now.next_offset != start:
            where = f"run {now.id} is {now.state} at offset {now.next_offset}, not at {start}"
            raise ReprocessRefused([f"{where}: it was restarted, or another process works on it. Make another plan"])
        check_group(group, self._pipeline, while_paused=False)
        if row.topic_id != self._run.topic_id:
            ids = f"its id is {row.topic_id}, the run's {now.topic_id}"
            raise ReprocessRefused([f"topic {self._at.topic!r} was created again: {ids}. Make another plan"])
        log_start = self._checks.readable.starts([self._at])[self._at].offset
        require_range(start, now.to_offset, row.next_offset, log_start, self._at)
        return False

    def _left_out(self, scope: GroupConnection, start: int, end: int) -> LeftOut:
        """A replay's records, and those that were given up."""
        offsets = left_out(scope, Range(self._at, self._run.topic_id, start, end))
        return (lambda record: record.offset in offsets) if offsets else nothing_left_out

    def _write(
        self,
        tx: HandlerConnection,
        scope: GroupConnection,
        pieces: Sequence[Piece],
        left_out: LeftOut,
        *,
        checks_deferred: bool,
    ) -> Outcome:
        """Write the records, or dead-letter them."""
        held = None
        if self._pipeline.keep_key_order:
            blocked = scope.execute(REPROCESS["blocked_keys"], run=self._run.id)
            held = {(self._at.topic, bytes(row.key)): int(row.first) for row in blocked}
        return all_of(Parts(tx, self._pipeline, held=held, checks_deferred=checks_deferred), pieces, left_out)

    def _keep(self, scope: GroupConnection, dead_letters: Sequence[NewDeadLetter]) -> None:
        """Store what could not be applied, whole, in the transaction that passes it."""
        if dead_letters:
            ids, own = {self._at.topic: self._run.topic_id}, {"run": self._run.id}
            scope.execute(REPROCESS["insert_run_dead_letters"], [_columns(each, ids) | own for each in dead_letters])

    def _advance(self, scope: GroupConnection, start: int, end: int, transaction: str, outcome: Outcome) -> None:
        moved = scope.execute(
            REPROCESS["advance_run"],
            run=self._run.id,
            from_offset=start,
            to_offset=end,
            transaction=transaction,
            applied=outcome.applied,
            failed=len(outcome.dead_letters),
        )
        if moved.rowcount != 1:
            raise HandlerMisuse(
                "the handler ended the transaction it was lent: what it wrote before may be half done, and the run "
                f"stays at offset {start}"
            )


def _columns(dead_letter: NewDeadLetter, ids: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row of ``reprocess_dead_letter``."""
    given = insert_parameters(dead_letter, ids)
    return {each.name: given[each.name] for each in reprocess_dead_letter.c if each.name in given}


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and is_transient(raised_by(error))
