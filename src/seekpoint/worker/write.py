"""Writes decoded records: sinks in declared order, then the handler. Raises Failed if a record may be at fault."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import psycopg
from sqlalchemy import Result as StatementResult

from seekpoint.errors import ConfigError, HandlerMisuse, Poison
from seekpoint.pipeline.batch import Batch
from seekpoint.pipeline.handler import shown_handler
from seekpoint.pipeline.sink import RowRefused, Sink, WentBack
from seekpoint.pipeline.writers import PROCESS_EXITS, PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.sqlstates import driver_error, fault_of, is_database_error
from seekpoint.records import Cause, RawRecord, Span, add_note
from seekpoint.worker.decode import DecodedChunk, DecodedRecord, decode_each
from seekpoint.worker.failed import Failed
from seekpoint.worker.open_batch import OpenBatch, Written


def write(
    tx: HandlerConnection, writers: PipelineWriters, records: Sequence[DecodedRecord], spans: Sequence[Span]
) -> Sequence[int]:
    """Run the sinks in their declared order, then the handler; returns how many rows each sink got.

    Raises Failed if a record may be at fault.
    """
    counts = [0] * len(writers.sinks)
    for n in writers.taking({record.raw.topic for record in records}):
        sink, writer = writers.pipeline.sinks[n], writers.sinks[n]
        written = (record.raw for record in records for _ in record.rows[n])
        rows = [row for record in records for row in record.rows[n]]
        with _blaming(sink, n, written), writer.open(tx) as opened:
            opened.write(rows)
        counts[n] = writer.count(rows)
    if writers.handler is not None and records:  # without records, an executemany would insert a row of defaults
        _handle(tx, writers, records, spans)
    return counts


def stream(
    tx: HandlerConnection, writers: PipelineWriters, chunks: Iterable[DecodedChunk], batch: OpenBatch
) -> Written:
    """Write the rows of a pipeline's only sink, as the chunks come."""
    [sink], [writer] = writers.pipeline.sinks, writers.sinks
    applied = count = 0
    with _blaming(sink, 0, _written(writers, batch)), writer.open(tx) as opened:
        for raw, at_once, records in chunks:
            rows = [row for record in records for row in record.rows[0]] if at_once is None else at_once
            opened.write(rows)
            applied += len(raw if at_once is not None else records)
            count += writer.count(rows)
    return Written(applied, [count])


def _written(writers: PipelineWriters, batch: OpenBatch) -> Iterator[RawRecord]:
    """The record of each streamed row; decodes lazily a second time, because decoded records are not kept."""
    for raw in batch.buffer.replay():
        for decoded in decode_each(writers, raw, batch, batch.admitted):
            yield from repeat(decoded.raw, len(decoded.rows[0]))


@contextmanager
def _blaming(sink: Sink, number: int, written: Iterable[RawRecord]) -> Iterator[None]:
    """Raise Failed for an error that may be a record's fault; ``written`` has the record of each row, in order."""
    try:
        yield
    except RowRefused as refused:
        raise _refused(sink, number, written, refused) from refused
    except Exception as error:
        if (fault := fault_of(error)) is None:
            raise
        raise Failed(_of(sink, error), Cause.DATABASE, fault=fault, sink=number) from error


def _refused(sink: Sink, number: int, written: Iterable[RawRecord], refused: RowRefused) -> Exception:
    """The error that names the refused row's record; ``written`` has the record of each row, in order."""
    if refused.line is None:
        return Failed(_of(sink, refused.cause), Cause.DATABASE, sink=number)
    for line, raw in enumerate(written, 1):
        if line == refused.line:
            cause = Cause.ORDER if isinstance(refused.cause, WentBack) else Cause.DATABASE
            return Failed(_of(sink, refused.cause), cause, [raw], sink=number)
    return ConfigError(f"{sink!r}: row= returned other rows for the same record: it must depend on its record only")


def _of(sink: Sink, error: Exception) -> Exception:
    """The error, with a note that names the sink's tables: not every message of the database names them."""
    add_note(driver_error(error), f"in a row for {', '.join(sink.tables)}")
    return error


def _handle(
    tx: HandlerConnection, writers: PipelineWriters, records: Sequence[DecodedRecord], spans: Sequence[Span]
) -> None:
    assert writers.handler is not None
    name = shown_handler(writers.pipeline.handle)
    try:
        with tx.lent(name):
            returned = writers.handler(tx, Batch([record.record for record in records], spans))
            tx.check()
            _require_nothing(name, returned)
    except (ConfigError, *PROCESS_EXITS):
        raise
    except BaseException as error:
        if poison := poisons(error):
            raise _poisoned(error, poison, records) from error
        error = _counted_error(error, writers.pipeline.retry.on)
        if isinstance(error, ConfigError):
            raise error
        if _is_kept_off(error):
            raise HandlerMisuse(
                f"{name} used pgconn while statements that it had sent were not answered yet ({error}): end the "
                "connection's pipeline() first"
            ) from error
        if isinstance(driver_error(error), psycopg.errors.PipelineAborted):  # the handler caught the first error
            raise tx.error_was_caught() from error
        if not is_database_error(error):
            raise Failed(error, Cause.HANDLER) from error
        if (fault := fault_of(error)) is None:
            raise error
        raise Failed(error, Cause.DATABASE, fault=fault) from error


def _require_nothing(name: str, returned: object) -> None:
    """Raise HandlerMisuse if the handler returned anything but None or the result of a statement."""
    if returned is not None and not isinstance(returned, StatementResult):
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
            returned.close()  # otherwise Python reports later that it was never awaited
        raise HandlerMisuse(
            f"{name} returned {_an(type(returned).__name__)}, which is never run, read or awaited: do the work "
            "inside the handler, and return None. (Loop over a map, a filter or a generator; call a partial; ask a "
            "Future for its result(); run a coroutine with asyncio.run)"
        )


def _an(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _is_kept_off(error: BaseException) -> bool:
    """Whether libpq refused a call because some answers are outstanding."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None and "pipeline mode" in str(error)


def poisons(error: BaseException) -> list[Poison]:
    """The error if it is Poison, or the errors of a group if all of them are Poison; else none."""
    leaves = _leaves(error)
    poison = [leaf for leaf in leaves if isinstance(leaf, Poison)]
    return poison if len(poison) == len(leaves) else []


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group and of groups in it; for any other error, the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _counted_error(error: BaseException, on: type[Exception] | tuple[type[Exception], ...]) -> BaseException:
    """The first error of an exception group (asyncio.TaskGroup) that is not Poison; any other error unchanged.

    ``on`` (``Retry.on``) may name the group's class; then the group is not divided.
    """
    groups = [named for named in (on if isinstance(on, tuple) else (on,)) if issubclass(named, BaseExceptionGroup)]
    if not isinstance(error, BaseExceptionGroup) or isinstance(error, tuple(groups)):
        return error
    leaves = _leaves(error)
    first = next(leaf for leaf in leaves if not isinstance(leaf, Poison))
    if len(leaves) > 1:
        add_note(first, f"the first of {len(leaves)} errors: {error}")
    return first


def _poisoned(error: BaseException, poison: Sequence[Poison], records: Sequence[DecodedRecord]) -> Failed:
    """Blame each named record with the first Poison that names it; if none is named, bisection finds it later."""
    blamed: dict[str, Poison] = {}
    named: dict[str, RawRecord] = {}
    for raised in poison:
        for raw in _named(raised, records):
            blamed.setdefault(raw.id, raised)
            named.setdefault(raw.id, raw)
    return Failed(poison[0] if len(poison) == 1 else error, Cause.POISON, list(named.values()), blamed=blamed)


def _named(poison: Poison, records: Sequence[DecodedRecord]) -> list[RawRecord]:
    """The batch's records that it names. Raises HandlerMisuse if it names only others: retries would not end."""
    if not poison.records:
        return []
    poison_ids = {getattr(record, "id", None) for record in poison.records}
    if not (named := [record.raw for record in records if record.raw.id in poison_ids]):
        raise HandlerMisuse(
            f"{poison!r} names no record of this batch: pass records of the batch that the handler got"
        ) from poison
    return named
