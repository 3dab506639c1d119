"""Applies a batch in parts, under savepoints, to find the records that fail by bisection.

A program error or a transient error is blamed on a record only if another record could be applied; otherwise it ends
the attempt. If no record has been applied yet, some are tried one by one, and rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from psycopg import sql
from psycopg.rows import tuple_row
from sqlalchemy import text

from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import Fault, driver_error, fault_of, may_be_one_records, sqlstate
from seekpoint.records import Cause, Partition, RawRecord, Span, add_note
from seekpoint.worker.bisect import PartFailure, Strides, bisect
from seekpoint.worker.decode import DecodedRecord
from seekpoint.worker.failed import Failed, Mode
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch, Written
from seekpoint.worker.write import write

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")
ONE_TOO_LONG = (
    "the statement for this one record takes too long: raise statement_timeout for this worker's role or URL, or find "
    "out what the statement waits for"
)
# Records that are tried until one can be applied; each that waits for a lock costs a timeout.
PROBES = {Fault.PROGRAM: 32, Fault.TRANSIENT: 3}


class PartSavepoints:
    """Divides a transaction into parts, with one round trip for each (``begin_nested()`` needs two); begins the first.

    ``keeps_locks``: only ``undo()`` releases a lock.
    """

    def __init__(self, tx: HandlerConnection, *, keeps_locks: bool) -> None:
        self._tx = tx
        tx.restore_options()
        tx.locked = set() if keeps_locks else None
        self._locked_before: set[tuple[str, ...]] = set()  # the locks before this part
        query = "SELECT current_setting('search_path'), current_setting('role'); SAVEPOINT seekpoint_part"
        path, role = tx.driver.cursor(row_factory=tuple_row).execute(query, prepare=False).fetchone() or ("", "none")
        # A handler's temporary table must not hide a table of the same name from later parts.
        shown = path if "pg_temp" in path else ", ".join([*filter(None, [path]), "pg_temp"])
        self._path_and_role = (
            sql.SQL("SELECT set_config('search_path', {}, true), set_config('role', {}, true);")
            .format(sql.Literal(shown), sql.Literal(role))
            .as_string()
        )

    def keep(self) -> None:
        """Keep what was written since the part began, and begin the next part.

        If a handler may have changed search_path and role, they are set as before the first part.
        """
        self._tx.restore_options()
        self._locked_before = set(self._tx.locked or ())
        again = self._path_and_role if self._tx.was_lent_now else ""
        self._command(f"RELEASE SAVEPOINT seekpoint_part; {again} SAVEPOINT seekpoint_part")

    def undo(self) -> None:
        """Undo what was written since the part began, and begin it again."""
        self._tx.restore_options()
        if self._tx.locked is not None:
            self._tx.locked = set(self._locked_before)  # the server releases the locks of this part
        self._command("ROLLBACK TO SAVEPOINT seekpoint_part")

    def _command(self, command: str) -> None:
        self._tx.driver.execute(command, prepare=False)  # a statement of two commands cannot be prepared


def apply_parts(
    tx: HandlerConnection,
    writers: PipelineWriters,
    records: Sequence[DecodedRecord],
    batch: OpenBatch,
    mode: Mode,
    *,
    strides: Strides,
    keeps_locks: bool,
) -> Written:
    """Write the records that can be written; the failure policy decides about the others.

    Raises HandlerMisuse and database errors that are no record's fault unchanged; Failed for a transient error if
    ``mode.is_patient``, because the whole transaction is retried first. ``keeps_locks``: no user code may release one.
    """
    parts, failed = Parts(tx, writers, records, batch, mode, keeps_locks=keeps_locks), mode.failed
    known = None if failed is None else PartFailure(failed, (), failed.was_cancelled, failed.waited)
    for failure in bisect(len(records), parts.run, strides, parts.admitted, known):
        parts.decide([records[n].raw for n in failure.indexes], failure.error)
    return Written(parts.applied, parts.rows)


def check_deferred(tx: HandlerConnection) -> None:
    """Check deferred constraints as COMMIT would, and defer them again for later parts.

    Raises Failed for a violation.
    """
    probe = tx.begin_nested()
    try:
        tx.execute(CHECK_DEFERRED)
    except Exception as error:
        if (fault := fault_of(error)) is None:
            raise
        raise Failed(error, Cause.DATABASE, fault=fault) from error
    finally:
        probe.rollback()


def part_spans(part: Sequence[DecodedRecord]) -> list[Span]:
    """The offsets that a part covers, as a handler gets them."""
    starts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for record in part:
        partition = record.raw.topic, record.raw.partition
        starts.setdefault(partition, record.raw.offset)
        ends[partition] = record.raw.offset + 1
    return [Span(Partition(*partition), start, ends[partition]) for partition, start in starts.items()]


class Parts:
    """One batch's parts: ``applied`` counts the records that were written, ``rows`` each sink's rows."""

    def __init__(
        self,
        tx: HandlerConnection,
        writers: PipelineWriters,
        records: Sequence[DecodedRecord],
        batch: OpenBatch,
        mode: Mode,
        *,
        keeps_locks: bool,
    ) -> None:
        self._savepoints = PartSavepoints(tx, keeps_locks=keeps_locks)
        self._tx, self._writers, self._records, self._batch, self._mode = tx, writers, records, batch, mode
        self._pipeline = writers.pipeline
        self.applied = 0
        self.rows = [0] * len(writers.sinks)
        self._proven: set[int | None] = set()  # sinks that wrote a row of an applied record; None: a record was applied

    def admitted(self, part: range, again: bool) -> Sequence[int]:
        """The records of a part to apply; before its first run, only stops and blocked keys can exclude records."""
        if again or self._batch.outcome.looks_ahead:
            return [n for n in part if self._batch.admits(self._records[n].raw)]
        return part

    def run(self, part: Sequence[int]) -> PartFailure[Failed] | None:
        """Apply the records of these indexes, all or none."""
        records = [self._records[n] for n in part]
        try:
            counts = self._write(records)
        except Failed as failed:
            if self._mode.is_patient and failed.fault is Fault.TRANSIENT and not failed.was_cancelled:
                raise
            if self._mode.attempt == 1 and failed.is_of_before_alter:
                raise
            self._savepoints.undo()
            return self._failure(failed, part)
        self.applied += len(records)
        self.rows = list(map(add, self.rows, counts))
        self._savepoints.keep()
        self._prove(records)
        return None

    def _failure(self, failed: Failed, part: Sequence[int]) -> PartFailure[Failed]:
        """The failure of a part, from its error."""
        indexes = {self._records[n].raw.id: n for n in part} if failed.named else {}
        return PartFailure(failed, tuple(indexes[raw.id] for raw in failed.named), failed.was_cancelled, failed.waited)

    def _write(self, part: Sequence[DecodedRecord]) -> Sequence[int]:
        counts = write(self._tx, self._writers, part, part_spans(part) if self._pipeline.handle is not None else ())
        if self._mode.checks_deferred:
            check_deferred(self._tx)
        return counts

    def _prove(self, part: Sequence[DecodedRecord]) -> None:
        if len(self._proven) <= len(self._pipeline.sinks):
            self._proven.add(None)
            self._proven.update(n for n in range(len(self._pipeline.sinks)) if any(record.rows[n] for record in part))

    def _cause(self, raws: Sequence[RawRecord], failed: Failed) -> Cause:
        """The cause of these records' failure; raises the error if no record is at fault."""
        if failed.fault is Fault.DATA:
            return failed.cause
        if failed.was_cancelled:
            for error in {failed.error, driver_error(failed.error)}:
                add_note(error, ONE_TOO_LONG)
        others = () if self._sink(failed) in self._proven else self._others(raws, failed)
        is_proven = self._sink(failed) in self._proven or any(self._could_apply(other) for other in others)
        if failed.fault is Fault.TRANSIENT:
            # A single-record attempt has no others to compare with. A server outage does not count as an attempt.
            is_again = not others and self._batch.is_transient and may_be_one_records(sqlstate(failed.error))
            if is_proven or is_again:
                return Cause.TRANSIENT
            raise failed.error
        if is_proven:
            return failed.cause
        if others:
            raise failed.error
        return Cause.PROGRAM  # without another record to compare with, the record or the program may be at fault

    def _sink(self, failed: Failed) -> int | None:
        """The sink that must have written another record before this one is blamed; None: any applied record counts."""
        return failed.sink if failed.fault is Fault.PROGRAM else None

    def _others(self, raws: Sequence[RawRecord], failed: Failed) -> list[DecodedRecord]:
        """A sample of other records that go to the same sink, spread over the batch."""
        failing, sink, outcome = {raw.id for raw in raws}, self._sink(failed), self._batch.outcome
        others = [
            record
            for record in self._records
            if record.raw.id not in failing and (sink is None or record.rows[sink]) and not outcome.excludes(record.raw)
        ]
        return others[:: 1 + len(others) // PROBES[failed.fault]]

    def _could_apply(self, record: DecodedRecord) -> bool:
        """Whether this record can be applied on its own; rolls it back."""
        try:
            self._write([record])
        except Failed:
            is_applied = False
        else:
            is_applied = True
        self._savepoints.undo()
        return is_applied

    def decide(self, raws: Sequence[RawRecord], failed: Failed) -> None:
        """Take these failed records out of the batch, as the pipeline's policy says."""
        if not raws:
            return
        cause = self._cause(raws, failed)
        for raw in raws:
            fail(self._pipeline, self._batch.outcome, raw, failed.error_of(raw), cause)
