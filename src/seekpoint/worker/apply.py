"""One batch through sinks and handler, inside the transaction that advances its offsets.

There are three ways. A small batch of one ``Append`` is closed before BEGIN; its rows are sent with hold and advance
(:func:`small_batch`). Else, with exactly one sink and no handler, rows stream into the open COPY: a chunk is decoded
while the server works on the one before. Anything else closes the batch first; sinks write in declared order, then the
handler runs. A record that cannot be decoded or shaped into a row never reaches the server: the failure policy decides
at once. What fails later is :class:`Failed`.

Where records fail, the batch is applied in parts, under savepoints, and those that fail are found by bisection. A
mistake of the program, and an error that may pass, are one record's only where another record was applied: else they
are no record's, and end the attempt. Where none has been applied yet, some are tried one by one, and undone.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from operator import add
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Result as StatementResult
from sqlalchemy import text

from seekpoint.codecs.arrow import Whole
from seekpoint.codecs.json import explained
from seekpoint.errors import CodecUnavailable, ConfigError, HandlerMisuse, Poison
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pipeline import PROCESS_EXITS, Pipeline, shown_handler
from seekpoint.pipeline.sink import Handler, Row, RowRefused, Sink
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.round_trip import Statement
from seekpoint.postgres.sqlstates import (
    QUERY_CANCELED,
    Fault,
    driver_error,
    fault_of,
    is_database_error,
    may_be_of_before_alter,
    may_be_of_input,
    may_be_one_records,
    sqlstate,
)
from seekpoint.records import AnyRecord, Cause, Partition, RawRecord, Span, add_note, one_line
from seekpoint.sinks.append import Append
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.sinks.small_append import MOST_BYTES, MOST_RECORDS_IN_ONE_INSERT, insert_of_all, knows_plain_table
from seekpoint.worker.bisect import PartFailure, Strides, bisect
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import BatchResult, OpenBatch, Written

Rows = tuple[Row, ...]

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")
ONE_TOO_LONG = (
    "one record alone takes longer than a statement may: raise statement_timeout for this worker's role or URL, or "
    "look for what its statement waits for"
)
PROBES = {Fault.PROGRAM: 32, Fault.TRANSIENT: 3}  # records tried for one that is applied; a wait costs a timeout each
TRIES = 3  # of one batch, at once; then it is given back, and the loop waits
_ROW = re.compile(r"\(\d+,\d+\)")  # a row's place, as the server writes it in any language


class DecodedRecord(NamedTuple):
    """A record, decoded, with its rows for each sink. ``record`` is the raw one where no code reads it."""

    raw: RawRecord
    record: AnyRecord
    rows: Sequence[Rows]


# The raw records of a chunk, their rows where they were made at once, and else each record, decoded.
DecodedChunk = tuple[Sequence[RawRecord], Sequence[Row] | None, Sequence[DecodedRecord]]


class Failed(Exception):  # noqa: N818 -- control: the batch is run again, by parts
    """Some record of what was written failed; nothing of it remains.

    ``named`` are those that failed, where they are known; else empty: it is one of them all. ``fault`` is what the
    error says: other than DATA, it may be no record's fault at all. ``sink`` is the number of the sink whose rows were
    refused; None where it was the handler, or is not known. ``blamed``: the error of each record, by its id, where
    there are several.
    """

    def __init__(
        self,
        error: BaseException,
        cause: Cause,
        named: Sequence[RawRecord] = (),
        *,
        fault: Fault = Fault.DATA,
        sink: int | None = None,
        blamed: Mapping[str, BaseException] = MappingProxyType({}),
    ) -> None:
        super().__init__(one_line(error))
        self.error, self.cause, self.named = error, cause, tuple(named)
        self.fault, self.sink, self._blamed = fault, sink, blamed

    def error_of(self, raw: RawRecord) -> BaseException:
        """What this record failed with."""
        return self._blamed.get(raw.id, self.error)

    @property
    def is_timeout(self) -> bool:
        """Whether the server cancelled a statement, mostly for the time that it took."""
        return sqlstate(self.error) == QUERY_CANCELED  # statement_timeout, mostly

    @property
    def is_of_before_alter(self) -> bool:
        """Whether the statement may be of before an ALTER: made again on another connection, it may succeed."""
        return self.cause is Cause.DATABASE and may_be_of_before_alter(self.error)

    @property
    def may_be_of_input(self) -> bool:
        """Whether the server may have been reading a value: an Upsert writes by COPY next, whose errors name it."""
        return self.fault is Fault.PROGRAM and self.sink is not None and may_be_of_input(sqlstate(self.error))

    @property
    def waited(self) -> bool:
        """Whether the statement that was cancelled waited for a lock of one row: that says nothing of its size."""
        error = driver_error(self.error)
        return isinstance(error, psycopg.Error) and _ROW.search(error.diag.context or "") is not None


@dataclass(frozen=True, slots=True)
class Mode:
    """How one attempt applies its batch.

    ``is_bisecting``: in parts, so that the records that fail are found. ``checks_deferred``: each part checks deferred
    constraints, as one of them has refused COMMIT. ``failed``: how the whole batch failed at the attempt before; it is
    not tried as a whole again.
    """

    attempt: int = 1
    is_bisecting: bool = False
    checks_deferred: bool = False
    failed: Failed | None = None

    @property
    def is_patient(self) -> bool:
        """Whether an error that may pass ends the attempt: the whole transaction is tried again first."""
        return self.attempt <= TRIES


FIRST = Mode()  # the first attempt, as a whole


def apply(tx: HandlerConnection, pipeline: Pipeline, batch: OpenBatch, mode: Mode, strides: Strides) -> BatchResult:
    """Write the batch as a whole, or in parts where records fail.

    Raises Failed where a record may be at fault; misuse, and a lost connection, as they are.
    """
    rows_of = pipeline.rows_at_once if mode.is_bisecting else pipeline.streamed_rows
    chunks = _decoded(pipeline, batch.chunks(), batch, rows_of)
    if mode.is_bisecting:
        return BatchResult.of(batch, _apply_parts(tx, pipeline, _records(chunks), batch, mode, strides=strides))
    return BatchResult.of(batch, _apply_whole(tx, pipeline, chunks, batch))


class SmallBatch(NamedTuple):
    """A closed batch whose rows' statements leave with the ledger's last one."""

    result: BatchResult
    statements: Sequence[Statement]


def small_batch(tx: HandlerConnection, pipeline: Pipeline, batch: OpenBatch, mode: Mode) -> SmallBatch | None:
    """Decode a batch of few records, all that are there; None if it is to be applied step by step. Sends nothing.

    Only at the first attempt, and where each record is to be applied as it is: dead letters, stops and attempts need
    statements of their own.
    """
    sink = _only_append(pipeline)
    if (
        sink is None
        or mode != FIRST
        or not knows_plain_table(tx, sink.path)
        or not batch.closes_within(MOST_RECORDS_IN_ONE_INSERT, MOST_BYTES)
    ):
        return None
    applied, rows = 0, list[Row]()
    for raw, at_once, records in _decoded(pipeline, batch.chunks(), batch, pipeline.rows_at_once):
        applied += len(raw if at_once is not None else records)
        rows += [row for one in records for row in one.rows[0]] if at_once is None else at_once
    if batch.outcome.is_filtering:
        return None
    if (statements := insert_of_all(tx, sink.path, sink.written, rows, sink.conversions)) is None:
        return None
    return SmallBatch(BatchResult.of(batch, Written(applied, [len(rows)])), statements)


def _only_append(pipeline: Pipeline) -> Append[Any, Any] | None:
    """The only sink, where no code of the user's has the connection.

    Then its rows may leave after the advance: after a COMMIT of a handler's, offsets would be durable before their rows
    (I1). And no ROLLBACK TO but our own releases a lock.
    """
    if pipeline.handle is not None or len(pipeline.sinks) != 1:
        return None
    sink: object = pipeline.sinks[0]
    return sink if type(sink) is Append else None


def _apply_whole(
    tx: HandlerConnection, pipeline: Pipeline, chunks: Iterable[DecodedChunk], batch: OpenBatch
) -> Written:
    """Write the batch as a whole."""
    if pipeline.handle is None and len(pipeline.sinks) == 1:
        return _stream(tx, pipeline, pipeline.sinks[0], chunks, batch)
    made = _records(chunks)
    return Written(len(made), write(tx, pipeline, made, batch.spans))


def _apply_parts(
    tx: HandlerConnection,
    pipeline: Pipeline,
    records: Sequence[DecodedRecord],
    batch: OpenBatch,
    mode: Mode,
    *,
    strides: Strides,
) -> Written:
    """Write what can be written, and decide about what cannot.

    Raises misuse, and database errors that are no record's fault, as they are; where ``mode.is_patient``, Failed at an
    error that may pass: the whole transaction is to be tried again first.
    """
    parts, failed = _Parts(tx, pipeline, records, batch, mode), mode.failed
    known = None if failed is None else PartFailure(failed, (), failed.is_timeout, failed.waited)
    for found in bisect(len(records), parts.run, strides, parts.admitted, known):
        parts.decide([records[n].raw for n in found.indexes], found.error)
    return Written(parts.applied, parts.rows)


def _decoded(
    pipeline: Pipeline,
    chunks: Iterable[Sequence[RawRecord]],
    batch: OpenBatch,
    rows_of: Callable[[Sequence[RawRecord]], Sequence[Row] | None],
) -> Iterator[DecodedChunk]:
    """Each chunk, decoded: its rows at once, where values alone make them; else its records, one by one."""
    for raw in chunks:
        each = _decode_each(pipeline, raw, batch, batch.admitted)  # begins where its records are asked for
        rows = None if batch.buffer.unreadable else rows_of(raw)
        yield raw, rows, [] if rows is not None else [*each]


def _records(chunks: Iterable[DecodedChunk]) -> list[DecodedRecord]:
    """Every record of the batch that is to be applied, which closes it."""
    made: list[DecodedRecord] = []
    for raw, rows, records in chunks:
        if rows is not None:
            made += [DecodedRecord(one, one, ((row,),)) for one, row in zip(raw, rows, strict=True)]
        made += records
    return made


def write(
    tx: HandlerConnection, pipeline: Pipeline, made: Sequence[DecodedRecord], spans: Sequence[Span]
) -> Sequence[int]:
    """Sinks in their declared order, then the handler; returns how many rows each sink was given.

    Raises Failed where a record is at fault.
    """
    counts: list[int] = []
    for n, sink in enumerate(pipeline.sinks):
        written = (one.raw for one in made for _ in one.rows[n])
        rows = [row for one in made for row in one.rows[n]]
        with _blaming(sink, n, written), sink.open(tx) as writer:
            writer.write(rows)
        counts.append(_count(sink, rows))
    if pipeline.handle is not None and made:  # of no records, an executemany would insert a row of defaults
        _handle(tx, pipeline.handle, made, spans)
    return counts


def _count(sink: Sink, rows: Sequence[Row]) -> int:
    """How many rows of the table these are: one may be a whole Arrow table."""
    if isinstance(sink, AppendArrow):
        return sum(row[0].num_rows if isinstance(row, Whole) else 1 for row in rows)
    return len(rows)


def check_deferred(tx: HandlerConnection) -> None:
    """Ask now what would be asked at COMMIT; and take the question back, as later parts may wait for it.

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
    for one in part:
        at = one.raw.topic, one.raw.partition
        starts.setdefault(at, one.raw.offset)
        ends[at] = one.raw.offset + 1
    return [Span(Partition(*at), start, ends[at]) for at, start in starts.items()]


def _stream(
    tx: HandlerConnection, pipeline: Pipeline, sink: Sink, chunks: Iterable[DecodedChunk], batch: OpenBatch
) -> Written:
    applied = count = 0
    with _blaming(sink, 0, _written(pipeline, batch)), sink.open(tx) as writer:
        for raw, rows, records in chunks:
            if rows is not None:
                writer.write(rows)
                applied += len(raw)
                count += _count(sink, rows)
                continue
            each = [row for one in records for row in one.rows[0]]
            writer.write(each)
            applied += len(records)
            count += _count(sink, each)
    return Written(applied, [count])


def _written(pipeline: Pipeline, batch: OpenBatch) -> Iterator[RawRecord]:
    """The record of each row that was streamed, made again: nothing of it was kept. Begins when it is asked."""
    for raw in batch.buffer.replay():
        for one in _decode_each(pipeline, raw, batch, batch.admitted):
            yield from repeat(one.raw, len(one.rows[0]))


@contextmanager
def _blaming(sink: Sink, number: int, written: Iterable[RawRecord]) -> Iterator[None]:
    """Turn what may be a record's fault into Failed; ``written`` names a record for each row, in order."""
    try:
        yield
    except RowRefused as refused:
        raise _refused(sink, number, written, refused) from refused
    except Exception as error:
        if (fault := fault_of(error)) is None:
            raise
        raise Failed(_of(sink, error), Cause.DATABASE, fault=fault, sink=number) from error


def decode_record(pipeline: Pipeline, raw: RawRecord, unreadable: Exception | None = None) -> DecodedRecord:
    """One record, decoded, with its rows for each sink; ``unreadable`` is what the client said of it.

    Raises Failed where the record is at fault: that is, by whatever a codec or ``row=`` raises.
    """
    cause = Cause.DECODE
    try:
        if unreadable is not None:
            raise unreadable
        record = pipeline.decode(raw)
        cause = Cause.ROW
        rows: list[Rows] = [tuple(s.rows(record)) if s.takes(raw.topic) else () for s in pipeline.sinks]
    except (CodecUnavailable, ConfigError, *PROCESS_EXITS):
        raise
    except BaseException as error:
        raise Failed(explained(error, raw.value) if cause is Cause.DECODE else error, cause) from error
    return DecodedRecord(raw, record, rows)


def _decode_each(
    pipeline: Pipeline,
    raw: Sequence[RawRecord],
    batch: OpenBatch,
    admitted: Callable[[Sequence[RawRecord]], Iterable[RawRecord]],
) -> Iterator[DecodedRecord]:
    """Each record with its rows for each sink; for one that has none, the failure policy decides."""
    unreadable = batch.buffer.unreadable
    for one in admitted(raw):
        unread = unreadable.get((Partition(one.topic, one.partition), one.offset)) if unreadable else None
        try:
            decoded = decode_record(pipeline, one, unread)
        except Failed as failed:
            fail(pipeline, batch.outcome, one, failed.error, failed.cause)
        else:
            yield decoded


def _refused(sink: Sink, number: int, written: Iterable[RawRecord], refused: RowRefused) -> Exception:
    """Names the record that the refused row came from; ``written`` names a record for each row, in order."""
    if refused.line is None:
        return Failed(_of(sink, refused.cause), Cause.DATABASE, sink=number)
    for line, raw in enumerate(written, 1):
        if line == refused.line:
            return Failed(_of(sink, refused.cause), Cause.DATABASE, [raw], sink=number)
    return ConfigError(f"{sink!r}: row= made other rows when it was asked again; it must depend on its record alone")


def _of(sink: Sink, error: Exception) -> Exception:
    """The error, with a note that names the sink's tables: not every message of the database does."""
    add_note(driver_error(error), f"in a row for {', '.join(sink.tables)}")
    return error


def _handle(tx: HandlerConnection, handle: Handler, made: Sequence[DecodedRecord], spans: Sequence[Span]) -> None:
    who = shown_handler(handle)
    try:
        with tx.lent(who):
            returned: object = handle(tx, Batch([one.record for one in made], spans))  # type: ignore[func-returns-value]
            tx.check()
            _require_nothing(who, returned)
    except (ConfigError, *PROCESS_EXITS):
        raise
    except BaseException as error:
        if poison := poisons(error):
            raise _poisoned(error, poison, made) from error
        if _is_kept_off(error):
            raise HandlerMisuse(
                f"{who} used pgconn while statements of its own had no answer yet ({error}): end the connection's "
                "pipeline() first"
            ) from error
        if isinstance(driver_error(error), psycopg.errors.PipelineAborted):  # it caught the first error of a pipeline
            raise tx.error_was_caught() from error
        if not is_database_error(error):
            raise Failed(error, Cause.HANDLER) from error
        if (fault := fault_of(error)) is None:
            raise
        raise Failed(error, Cause.DATABASE, fault=fault) from error


def _require_nothing(who: str, returned: object) -> None:
    """Raise HandlerMisuse for anything but None or the result of a statement."""
    if returned is not None and not isinstance(returned, StatementResult):
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
            returned.close()  # else Python reports that it was never awaited, far from here
        raise HandlerMisuse(
            f"{who} returned {_an(type(returned).__name__)}, which is never run, read or awaited: do the work "
            "inside the handler, and return None. (Loop over a map, a filter or a generator; call a partial; ask a "
            "Future for its result(); run a coroutine with asyncio.run)"
        )


def _an(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _is_kept_off(error: BaseException) -> bool:
    """Whether libpq refused a call of its own functions, for answers are outstanding."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None and "pipeline mode" in str(error)


def poisons(error: BaseException) -> list[Poison]:
    """The error, where it is Poison, or the leaves of a group in which all are; else none."""
    if isinstance(error, Poison):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return []
    found = [poisons(each) for each in error.exceptions]
    return [poison for each in found for poison in each] if all(found) else []


def _poisoned(error: BaseException, poison: Sequence[Poison], made: Sequence[DecodedRecord]) -> Failed:
    """Each record is blamed by the first that names it; of those that name none, one is searched for later."""
    blamed: dict[str, Poison] = {}
    named: dict[str, RawRecord] = {}
    for each in poison:
        for raw in _named(each, made):
            blamed.setdefault(raw.id, each)
            named.setdefault(raw.id, raw)
    return Failed(poison[0] if len(poison) == 1 else error, Cause.POISON, list(named.values()), blamed=blamed)


def _named(poison: Poison, made: Sequence[DecodedRecord]) -> list[RawRecord]:
    """The records of the batch that it names; to leave out any others would change nothing, for ever."""
    if not poison.records:
        return []
    names = {getattr(record, "id", None) for record in poison.records}
    if not (named := [one.raw for one in made if one.raw.id in names]):
        raise HandlerMisuse(f"{poison!r} names no record of this batch: name those that the batch gave you") from poison
    return named


class _Parts:
    """One batch's parts: ``applied`` counts the records that were written, ``rows`` each sink's rows."""

    def __init__(
        self,
        tx: HandlerConnection,
        pipeline: Pipeline,
        records: Sequence[DecodedRecord],
        batch: OpenBatch,
        mode: Mode,
    ) -> None:
        self._tx, self._pipeline, self._records, self._batch, self._mode = tx, pipeline, records, batch, mode
        self.applied = 0
        self.rows = [0] * len(pipeline.sinks)
        self._proven: set[int | None] = set()  # sinks that wrote a row of an applied record; None: one was applied
        tx.savepoints.begin(keeps_locks=_only_append(pipeline) is not None)

    def admitted(self, part: range, again: bool) -> Sequence[int]:
        """The records of a part that are to be applied; one that was not run yet has others only where stops are."""
        if again or self._batch.outcome.looks_ahead:
            return [n for n in part if self._batch.admits(self._records[n].raw)]
        return part

    def run(self, part: Sequence[int]) -> PartFailure[Failed] | None:
        """Apply the records of these indexes, all or none."""
        records = [self._records[n] for n in part]
        try:
            counts = self._write(records)
        except Failed as failed:
            if self._mode.is_patient and failed.fault is Fault.TRANSIENT and not failed.is_timeout:
                raise
            if self._mode.attempt == 1 and failed.is_of_before_alter:
                raise
            self._tx.savepoints.undo()
            return self._failure(failed, part)
        self.applied += len(records)
        self.rows = list(map(add, self.rows, counts))
        self._tx.savepoints.keep()
        self._prove(records)
        return None

    def _failure(self, failed: Failed, part: Sequence[int]) -> PartFailure[Failed]:
        """What the error says of the part in which it came."""
        at = {self._records[n].raw.id: n for n in part} if failed.named else {}
        return PartFailure(failed, tuple(at[raw.id] for raw in failed.named), failed.is_timeout, failed.waited)

    def _write(self, part: Sequence[DecodedRecord]) -> Sequence[int]:
        counts = write(self._tx, self._pipeline, part, part_spans(part) if self._pipeline.handle is not None else ())
        if self._mode.checks_deferred:
            check_deferred(self._tx)
        return counts

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
            # In a batch of its own it has no others to compare with: an outage of the whole server is no attempt of it.
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
        """Whether this record is applied by itself; nothing of it remains."""
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
