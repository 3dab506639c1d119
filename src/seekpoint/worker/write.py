"""Writes decoded records: sinks in their declared order, then the handler. Where a record may be at fault: Failed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import psycopg
from sqlalchemy import Result as StatementResult

from seekpoint.errors import ConfigError, HandlerMisuse, Poison
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.pipeline import shown_handler
from seekpoint.pipeline.sink import Handler, RowRefused, Sink
from seekpoint.pipeline.writers import PROCESS_EXITS, PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import driver_error, fault_of, is_database_error
from seekpoint.records import Cause, RawRecord, Span, add_note
from seekpoint.worker.decode import DecodedChunk, DecodedRecord, decode_each
from seekpoint.worker.failed import Failed
from seekpoint.worker.open_batch import OpenBatch, Written


def write(
    tx: HandlerConnection, writers: PipelineWriters, made: Sequence[DecodedRecord], spans: Sequence[Span]
) -> Sequence[int]:
    """Sinks in their declared order, then the handler; returns how many rows each sink was given.

    Raises Failed where a record is at fault.
    """
    counts: list[int] = []
    for n, (sink, writer) in enumerate(zip(writers.pipeline.sinks, writers.sinks, strict=True)):
        written = (one.raw for one in made for _ in one.rows[n])
        rows = [row for one in made for row in one.rows[n]]
        with _blaming(sink, n, written), writer.open(tx) as opened:
            opened.write(rows)
        counts.append(writer.count(rows))
    handle = writers.pipeline.handle
    if handle is not None and made:  # of no records, an executemany would insert a row of defaults
        _handle(tx, handle, made, spans)
    return counts


def stream(
    tx: HandlerConnection, writers: PipelineWriters, chunks: Iterable[DecodedChunk], batch: OpenBatch
) -> Written:
    """The rows of the only sink, as the chunks come."""
    [sink], [writer] = writers.pipeline.sinks, writers.sinks
    applied = count = 0
    with _blaming(sink, 0, _written(writers, batch)), writer.open(tx) as opened:
        for raw, at_once, records in chunks:
            rows = [row for one in records for row in one.rows[0]] if at_once is None else at_once
            opened.write(rows)
            applied += len(raw if at_once is not None else records)
            count += writer.count(rows)
    return Written(applied, [count])


def _written(writers: PipelineWriters, batch: OpenBatch) -> Iterator[RawRecord]:
    """The record of each row that was streamed, made again: nothing of it was kept. Begins when it is asked."""
    for raw in batch.buffer.replay():
        for one in decode_each(writers, raw, batch, batch.admitted):
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
