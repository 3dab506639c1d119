"""One batch through sinks and handler, inside the transaction that advances its offsets.

Two roads. With exactly one sink and no handler, rows stream into the open COPY: a chunk is decoded while the
server works on the one before. Anything else closes the batch first; sinks write in declared order, then the
handler runs. A record that cannot be decoded or shaped into a row never reaches the server: it is a *cut*.
Where the database refuses a row and does not say which, the next attempt *searches*: by halves, under savepoints.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from seekpoint.codecs import Bytes
from seekpoint.errors import ConfigError, HandlerMisuse, Poison, PoisonStop
from seekpoint.guard import LentConnection, is_data_fault
from seekpoint.intake import OpenBatch, poison_stop
from seekpoint.pipeline import Handler, Pipeline, Row, RowRefused, Sink, ValueSink
from seekpoint.records import AnyRecord, Batch, RawRecord

CHECK_DEFERRED = text("SET CONSTRAINTS ALL IMMEDIATE")

Rows = tuple[Row, ...]


class SinkRefused(Exception):  # noqa: N818 -- control: the batch is run again without the record
    """The database refused a row of this record; nothing of the transaction remains."""

    def __init__(self, stop: PoisonStop) -> None:
        super().__init__(str(stop))
        self.stop = stop


def apply(tx: LentConnection, pipeline: Pipeline, batch: OpenBatch) -> int:
    """Write the batch; returns how many records were applied.

    Raises SinkRefused for a record that the database refuses, and whatever the handler raises.
    """
    if pipeline.handle is None and len(pipeline.sinks) == 1 and not batch.searching:
        return _stream(tx, pipeline, pipeline.sinks[0], batch)
    return _whole(tx, pipeline, batch)


def _stream(tx: LentConnection, pipeline: Pipeline, sink: Sink, batch: OpenBatch) -> int:
    applied = 0
    try:
        with sink.open(tx) as writer:
            for raw in batch.chunks():
                rows = _rows_at_once(pipeline, sink, raw)
                if rows is not None:
                    writer.write(rows)
                    applied += len(raw)
                    continue
                made = _rows(pipeline, raw, batch)
                writer.write([row for _, (rows,) in made for row in rows])
                applied += len(made)
    except RowRefused as refused:
        written = (record for raw in batch.kept() for record, (rows,) in _rows(pipeline, raw, batch) for _ in rows)
        raise _blame(sink, written, refused) from refused
    return applied


def _whole(tx: LentConnection, pipeline: Pipeline, batch: OpenBatch) -> int:
    made = [one for raw in batch.chunks() for one in _rows(pipeline, raw, batch)]
    alone = pipeline.handle is None and len(pipeline.sinks) == 1
    for n, sink in enumerate(pipeline.sinks):
        lines = [(record, row) for record, rows in made for row in rows[n]]
        if batch.searching:
            _search(tx, sink, lines, deferred=alone)
        else:
            _write(tx, sink, lines)
    if pipeline.handle is not None and made:  # of no records, an executemany would insert a row of defaults
        _handle(tx, pipeline.handle, Batch([record for record, _ in made], batch.spans))
    return len(made)


def _write(tx: LentConnection, sink: Sink, lines: Sequence[tuple[AnyRecord, Row]]) -> None:
    try:
        with sink.open(tx) as writer:
            writer.write([row for _, row in lines])
    except RowRefused as refused:
        raise _blame(sink, (record for record, _ in lines), refused) from refused


def _search(tx: LentConnection, sink: Sink, lines: Sequence[tuple[AnyRecord, Row]], *, deferred: bool) -> None:
    """Write the rows; where the database refuses some and does not say which, halve them until one is left.

    ``deferred`` constraints are checked too, where nothing comes after this sink that could fulfil them.
    """
    try:
        with tx.begin_nested():
            _write(tx, sink, lines)
            if deferred:
                tx.execute(CHECK_DEFERRED)
    except SinkRefused:
        raise
    except Exception as error:
        if not is_data_fault(error):
            raise
        if len(lines) == 1:
            raise SinkRefused(_refusal(sink, lines[0][0], error)) from error
        half = len(lines) // 2
        _search(tx, sink, lines[:half], deferred=deferred)
        _search(tx, sink, lines[half:], deferred=deferred)


def _handle(tx: LentConnection, handle: Handler, batch: Batch[Any, Any]) -> None:
    try:
        returned: object = handle(tx, batch)  # type: ignore[func-returns-value]
    except Poison as poison:
        if not poison.records:
            raise
        raise SinkRefused(poison_stop(_named(poison, batch), poison)) from poison
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
        raise HandlerMisuse(
            f"the handler returned a {type(returned).__name__}, which nobody runs: call a plain function"
        )
    tx.check()


def _named(poison: Poison, batch: Batch[Any, Any]) -> AnyRecord:
    """The first record of the batch that it names; to leave out any other would change nothing, for ever."""
    ours = {record.id for record in batch}
    named = [r for r in poison.records if getattr(r, "id", None) in ours]
    if not named:
        raise HandlerMisuse(f"{poison!r} names no record of this batch: name those that the batch gave you") from poison
    return min(named, key=lambda r: r.offset)


def _rows_at_once(pipeline: Pipeline, sink: Sink, raw: Sequence[RawRecord]) -> list[Row] | None:
    """A row for each record of a chunk, from the values alone; None where the records must be looked at one by one."""
    if not isinstance(sink, ValueSink) or not isinstance(pipeline.key, Bytes):  # other keys may be undecodable
        return None
    if not all(map(sink.takes, pipeline.codecs)):
        return None
    try:
        return sink.value_rows(pipeline.values(raw))
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001 -- found again, with its record, one by one
        return None


def _rows(pipeline: Pipeline, raw: Sequence[RawRecord], batch: OpenBatch) -> list[tuple[AnyRecord, list[Rows]]]:
    """Each record that is not cut, with its rows for each sink; one that has none to give is cut (I4)."""
    made: list[tuple[AnyRecord, list[Rows]]] = []
    for one in raw:
        if batch.cuts and not batch.wants(one):
            continue
        try:
            record = pipeline.decode(one)
            rows: list[Rows] = [tuple(s.rows(record)) if s.takes(one.topic) else () for s in pipeline.sinks]
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a codec or row= raises is that record's fault
            batch.cut(poison_stop(one, error))
            continue
        made.append((record, rows))
    return made


def _blame(sink: Sink, written: Iterable[AnyRecord], refused: RowRefused) -> Exception:
    """Names the record that the refused row came from; ``written`` names a record for each row, in order."""
    if refused.line is None:
        return refused.cause
    for line, record in enumerate(written, 1):
        if line == refused.line:
            return SinkRefused(_refusal(sink, record, refused.cause))
    return ConfigError(f"{sink!r}: row= made other rows when it was asked again; it must depend on its record alone")


def _refusal(sink: Sink, record: AnyRecord, error: Exception) -> PoisonStop:
    cause = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
    return poison_stop(record, cause, f"the database refused its row for {', '.join(sink.tables)}")
