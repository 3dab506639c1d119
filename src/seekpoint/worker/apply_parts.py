"""Apply a batch of which some records fail: in parts, under savepoints; those that fail are found by bisection.

A mistake of the program, and an error that may pass, are one record's only where another record was applied: else
they are no record's, and end the attempt. Where none has been applied yet, some are tried alone, and undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import text

from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import Fault, fault_of, may_be_one_records, sqlstate
from seekpoint.records import Cause, RawRecord, add_note
from seekpoint.worker.apply import DecodedRecord, Failed, Mode, decoded_records, driver_error, part_spans, write
from seekpoint.worker.bisect import PartFailure, Strides, bisect
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")
ONE_TOO_LONG = (
    "one record alone takes longer than a statement may: raise statement_timeout for this worker's role or URL, or "
    "look for what its statement waits for"
)
PROBES = {Fault.PROGRAM: 32, Fault.TRANSIENT: 3}  # records tried for one that is applied; a wait costs a timeout each


def apply_parts(tx: HandlerConnection, pipeline: Pipeline, batch: OpenBatch, mode: Mode, strides: Strides) -> int:
    """Write what can be written, and decide about what cannot; returns how many records were applied.

    Raises misuse, and database errors that are no record's fault, as they are; where ``mode.is_patient``, Failed at an
    error that may pass: the whole transaction is to be tried again first.
    """
    records, outcome = decoded_records(pipeline, batch), batch.outcome
    parts = _Parts(tx, pipeline, batch, records, mode)
    strides.begin(len(records))
    failed = mode.failed
    start = decided = 0  # whatever lies after `decided` may be asked for without looking
    while start < len(records):
        end = strides.part_end(start)
        places: Sequence[int] = range(start, end)
        if start < decided or outcome.looks_ahead:
            places = [n for n in places if batch.admits(records[n].raw)]
        part = [records[n] for n in places]
        if failed and (len(part) < len(records) or (failed.is_deferred and len(part) == 1)):
            failed = None
        failure = parts.failure(part, failed) if failed else parts.run(part) if part else None
        failed = None
        if failure is None:
            start = end
            strides.applied(len(part))
            continue
        found = bisect(len(part), partial(parts.run, part), failure)
        parts.decide([part[n].raw for n in found.indexes], found.error)
        decided = end
        start = places[found.resume_at] if found.resume_at < len(places) else end
        strides.failed([places[n] for n in found.indexes], start, found.too_many)
    strides.end()
    return parts.applied


class _Parts:
    """One batch's parts: ``applied`` counts the records that were written."""

    def __init__(
        self,
        tx: HandlerConnection,
        pipeline: Pipeline,
        batch: OpenBatch,
        records: Sequence[DecodedRecord],
        mode: Mode,
    ) -> None:
        self._tx, self._pipeline, self._batch, self._records, self._mode = tx, pipeline, batch, records, mode
        self.applied = 0
        self._proven: set[int | None] = set()  # sinks that wrote a row of an applied record; None: one was applied
        tx.savepoints.begin()

    def run(self, part: Sequence[DecodedRecord], low: int = 0, high: int | None = None) -> PartFailure[Failed] | None:
        """Apply these records of a part, all or none."""
        records = part[low:high]
        try:
            self._write(records)
        except Failed as failed:
            if self._mode.is_patient and failed.fault is Fault.TRANSIENT and not failed.is_timeout:
                raise
            self._tx.savepoints.undo()
            return self.failure(part, failed)
        self.applied += len(records)
        self._tx.savepoints.keep()
        self._prove(records)
        return None

    @staticmethod
    def failure(part: Sequence[DecodedRecord], failed: Failed) -> PartFailure[Failed]:
        """What the error says of the part in which it came."""
        named = {raw.id: None for raw in failed.named}
        at = {one.raw.id: n for n, one in enumerate(part) if one.raw.id in named} if named else {}
        return PartFailure(failed, tuple(at[name] for name in named), failed.is_timeout, failed.waited)

    def _write(self, part: Sequence[DecodedRecord]) -> None:
        write(self._tx, self._pipeline, part, part_spans(part) if self._pipeline.handle is not None else ())
        if self._mode.checks_deferred:
            self._check_deferred()

    def _prove(self, part: Sequence[DecodedRecord]) -> None:
        if len(self._proven) <= len(self._pipeline.sinks):
            self._proven.add(None)
            self._proven.update(n for n in range(len(self._pipeline.sinks)) if any(one.rows[n] for one in part))

    def _cause(self, raws: Sequence[RawRecord], failed: Failed) -> Cause:
        """Whose fault it is that these were refused; raises the error where it is no record's."""
        if failed.fault is Fault.DATA:
            return failed.cause
        if failed.is_timeout:
            for error in {failed.error, driver_error(failed.error)}:
                add_note(error, ONE_TOO_LONG)
        others = () if self._sink(failed) in self._proven else self._others(raws, failed)
        is_proven = self._sink(failed) in self._proven or any(self._could_apply(one) for one in others)
        if failed.fault is Fault.TRANSIENT:
            # Tried alone, it has no others to compare with: an outage of the whole server is no attempt of its.
            is_again = not others and self._batch.is_transient and may_be_one_records(sqlstate(failed.error))
            if is_proven or is_again:
                return Cause.TRANSIENT
            raise failed.error
        if is_proven:
            return failed.cause
        if others:
            raise failed.error
        return Cause.PROGRAM  # it came alone: the record, or the program

    def _sink(self, failed: Failed) -> int | None:
        """Which sink must have written another record; None: whatever was applied counts."""
        return failed.sink if failed.fault is Fault.PROGRAM else None

    def _others(self, raws: Sequence[RawRecord], failed: Failed) -> list[DecodedRecord]:
        """Some of the other records that would take the same way, from all over the batch."""
        failing, sink, outcome = {raw.id for raw in raws}, self._sink(failed), self._batch.outcome
        others = [
            one
            for one in self._records
            if one.raw.id not in failing and (sink is None or one.rows[sink]) and not outcome.excludes(one.raw)
        ]
        return others[:: 1 + len(others) // PROBES[failed.fault]]

    def _could_apply(self, one: DecodedRecord) -> bool:
        """Whether this record is applied when it is tried alone; nothing of it remains."""
        try:
            self._write([one])
        except Failed:
            is_applied = False
        else:
            is_applied = True
        self._tx.savepoints.undo()
        return is_applied

    def decide(self, raws: Sequence[RawRecord], failed: Failed) -> None:
        """Take these records, which failed, out of the batch, as the pipeline's policy says."""
        if not raws:
            return
        cause = self._cause(raws, failed)
        for raw in raws:
            fail(self._pipeline, self._batch.outcome, raw, failed.error_of(raw), cause)

    def _check_deferred(self) -> None:
        """Ask now what would be asked at COMMIT; and take the question back, as later parts may wait for it."""
        probe = self._tx.begin_nested()
        try:
            self._tx.execute(CHECK_DEFERRED)
        except Exception as error:
            if (fault := fault_of(error)) is None:
                raise
            raise Failed(error, Cause.DATABASE, fault=fault) from error
        finally:
            probe.rollback()
