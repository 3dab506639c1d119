"""Apply a batch of which some records fail: in parts, under savepoints, until those records stand alone.

What fails is found by halves: the records in front of it stay applied, and the search goes on behind it. One bad
record in n costs about log2(n) calls; where the database or the handler names it, one. Where many fail, no
part is longer than a share of the distance at which they come, so that the cost grows with their number, not
with the batch.

A mistake of the program, and an error that may pass, are one record's only where another record was applied: else
they are no record's, and end the attempt. Where none has been applied yet, some are tried alone, and undone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import Fault, fault_of, may_be_one_records, sqlstate
from seekpoint.records import Cause, Partition, RawRecord, Span, add_note
from seekpoint.worker.apply import DecodedRecord, Failed, decoded_records, write
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")
QUERY_CANCELED = "57014"  # statement_timeout, mostly
ONE_TOO_LONG = (
    "one record alone takes longer than a statement may: raise statement_timeout for this worker's role or URL, or "
    "look for what its statement waits for"
)

FEW = 2  # failures in one batch, from which on their distance is known
SHARE = 4  # parts per distance between two failures: longer ones are run in vain, shorter ones cost round trips
CALM = 8  # distances without a failure, behind which no more are expected; a batch may be shorter than one
FEW_STRIDES = 8  # of what is left behind the first failure, the first part is so much at least
LEAST = 16  # records of one part, at the least
PROBES = {Fault.PROGRAM: 32, Fault.TRANSIENT: 3}  # records tried for one that is applied; a wait costs a timeout each


class Size:
    """How many records one statement may write; None: any number. Learned from statements that took too long.

    It doubles after so many full parts without one, and doubles less often where that was too many again: what takes
    too long once may have had another reason.
    """

    FIRST, LAST = 8, 1024  # full parts before it doubles

    def __init__(self) -> None:
        self.most: int | None = None
        self._whole = self._clean = 0
        self._patience, self._has_grown = self.FIRST, False

    def shorten(self, too_many: int) -> None:
        """So many took too long: half as many from now on."""
        if self.most is None:
            self._whole, self._patience = too_many, self.FIRST
        elif self._has_grown:
            self._patience = min(self.LAST, 2 * self._patience)
        self.most, self._clean, self._has_grown = max(1, too_many // 2), 0, False

    def passed(self, written: int) -> None:
        """A part was written in time."""
        if self.most is None or written < self.most:
            return
        self._clean += 1
        if self._clean >= self._patience:
            self.most, self._clean, self._has_grown = 2 * self.most, 0, True
            if self.most >= self._whole:
                self.most = None


class Bisection:
    """Remembers from batch to batch how far apart the failures come. One per worker."""

    def __init__(self) -> None:
        self._stride: int | None = None  # records per part; None: all that is left
        self._clean = 0  # records since the last failure
        self._size = Size()
        self._known: Failed | None = None  # how the whole of the batch has failed just now

    @property
    def expects_failures(self) -> bool:
        """Whether the next batch had better begin in parts: failures come often, or a whole one takes too long."""
        return self._stride is not None or self._size.most is not None

    def begin_with(self, failed: Failed | None) -> None:
        """The batch has failed as a whole, and is to be divided: it need not be tried as a whole again.

        None: nothing is known of what is tried next.
        """
        is_known = failed is not None and not failed.named and (failed.fault is not Fault.TRANSIENT or too_long(failed))
        self._known = failed if is_known else None

    def apply(self, tx: HandlerConnection, pipeline: Pipeline, batch: OpenBatch, *, patient: bool = False) -> int:
        """Write what can be written, and give the verdict on what cannot; returns how many records were applied.

        Raises misuse, and database errors that are no record's fault, as they are; where ``patient``, Failed at an
        error that may pass: the whole transaction is to be tried again first.
        """
        made = decoded_records(pipeline, batch)
        search = _Search(tx, pipeline, batch, made, patient=patient)
        known, self._known = self._known, None
        begin = furthest = judged = 0  # whatever lies behind `judged` may be asked for without looking
        stride = self._stride or len(made)
        while begin < len(made):
            end = min(len(made), begin + min(stride, self._size.most or stride))
            places: Sequence[int] = range(begin, end)
            if begin < judged or batch.looks_ahead:
                places = [n for n in places if batch.wants(made[n].raw)]
            part = [made[n] for n in places]
            if known and (len(part) < len(made) or (known.is_deferred and len(part) == 1)):
                known = None
            failed = known or (search.run(part) if part else None)
            known = None
            if failed is None:
                begin, stride = end, self._stride or 2 * stride
                self._size.passed(len(part))
                continue
            settled = search.narrow(part, failed)
            if search.too_many is not None:
                self._size.shorten(search.too_many)
            judged = end
            begin = places[settled] if settled < len(places) else end
            if search.at is not None:
                furthest = max(furthest, places[search.at])
            if search.found >= FEW:
                self._stride = stride = max(LEAST, furthest // search.found // SHARE)
            elif self._stride is None:  # perhaps the only one: the rest in a few strides, which grow
                stride = max(4 * (furthest + 1), (len(made) - begin) // FEW_STRIDES)
        self._clean = len(made) - 1 - furthest if search.found else self._clean + len(made)
        if self._stride is not None and self._clean > CALM * SHARE * self._stride:
            self._stride = None
        return search.applied


class _Search:
    """One batch's: ``applied`` records so far, ``found`` failures; the last one ``at`` that place of the part in hand.

    ``at`` is None where the part failed as a whole, and none of its records alone. Then ``too_many`` is how many of
    them took longer than a statement may, if it was that; None also where it waited for a row's lock.
    """

    def __init__(
        self,
        tx: HandlerConnection,
        pipeline: Pipeline,
        batch: OpenBatch,
        made: Sequence[DecodedRecord],
        *,
        patient: bool,
    ) -> None:
        self._tx, self._pipeline, self._batch, self._made, self._patient = tx, pipeline, batch, made, patient
        self.applied = self.found = 0
        self.at: int | None = None
        self.too_many: int | None = None
        self._proven: set[int | None] = set()  # sinks that wrote a row of an applied record; None: one was applied
        tx.begin_parts()

    def run(self, part: Sequence[DecodedRecord]) -> Failed | None:
        """Apply these records, all or none."""
        try:
            self._write(part)
        except Failed as failed:
            if self._patient and failed.fault is Fault.TRANSIENT and not too_long(failed):
                raise
            self._tx.undo_part()
            return failed
        self.applied += len(part)
        self._tx.keep_part()
        self._prove(part)
        return None

    def _write(self, part: Sequence[DecodedRecord]) -> None:
        write(self._tx, self._pipeline, part, spans_of(part) if self._pipeline.handle is not None else ())
        if self._batch.deferred:
            self._check_deferred()

    def _prove(self, part: Sequence[DecodedRecord]) -> None:
        if len(self._proven) <= len(self._pipeline.sinks):
            self._proven.add(None)
            self._proven.update(n for n in range(len(self._pipeline.sinks)) if any(one.rows[n] for one in part))

    def narrow(self, part: Sequence[DecodedRecord], failed: Failed) -> int:
        """Find what failed in a part, and give the verdict; returns how many records from its front are settled."""
        self.at = self.too_many = None
        low, high, is_known = 0, len(part), True  # part[low:high] fails, if that is known; what is below is applied
        too_many = high if too_long(failed) and not waited(failed) else None
        while not failed.named and high - low > 1:
            middle = (low + high) // 2
            below = self.run(part[low:middle])
            if below is None:
                low, is_known = middle, False
                continue
            high, failed, is_known = middle, below, True
            if too_long(failed):
                too_many = None if waited(failed) else high - low
        if not is_known and not failed.named:  # alone, it may succeed: not every error is one record's fault
            alone = self.run(part[low:high])
            if alone is None:
                self.too_many = too_many
                return high
            failed = alone
        if not failed.named:
            self._decide([part[low].raw], failed, low)
            return high
        named = {raw.id for raw in failed.named}
        self._decide(failed.named, failed, max(n for n, one in enumerate(part) if one.raw.id in named))
        return low

    def _cause(self, raws: Sequence[RawRecord], failed: Failed) -> Cause:
        """Whose fault it is that these were refused; raises the error where it is no record's."""
        if failed.fault is Fault.DATA:
            return failed.cause
        if too_long(failed):
            for error in {failed.error, _original(failed.error)}:
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
        failing, sink = {raw.id for raw in raws}, self._sink(failed)
        others = [
            one
            for one in self._made
            if one.raw.id not in failing and (sink is None or one.rows[sink]) and self._batch.wants(one.raw)
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
        self._tx.undo_part()
        return is_applied

    def _decide(self, raws: Sequence[RawRecord], failed: Failed, at: int) -> None:
        self.at, cause = at, self._cause(raws, failed)
        for raw in raws:
            self.found += 1
            fail(self._pipeline, self._batch, raw, failed.error_of(raw), cause)

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


def too_long(failed: Failed) -> bool:
    """Whether the server cancelled a statement, mostly for the time that it took."""
    return sqlstate(failed.error) == QUERY_CANCELED


_ROW = re.compile(r"\(\d+,\d+\)")  # a row's place, as the server writes it in any language


def waited(failed: Failed) -> bool:
    """Whether the statement that was cancelled waited for a lock of one row: that says nothing of its size."""
    error = _original(failed.error)
    return isinstance(error, psycopg.Error) and _ROW.search(error.diag.context or "") is not None


def _original(error: BaseException) -> BaseException:
    """The driver's error, where SQLAlchemy has wrapped it."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def spans_of(part: Sequence[DecodedRecord]) -> list[Span]:
    """The offsets that a part covers, as a handler is told them."""
    starts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for one in part:
        at = one.raw.topic, one.raw.partition
        starts.setdefault(at, one.raw.offset)
        ends[at] = one.raw.offset + 1
    return [Span(Partition(*at), start, ends[at]) for at, start in starts.items()]
