"""One batch through sinks and handler, inside the transaction that advances its offsets.

Two roads. With exactly one sink and no handler, rows stream into the open COPY: a chunk is decoded while the
server works on the one before. Anything else closes the batch first; sinks write in declared order, then the
handler runs. A record that cannot be decoded or shaped into a row never reaches the server: it is a *cut*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from seekpoint.errors import ConfigError, Poison, PoisonStop
from seekpoint.guard import LentConnection
from seekpoint.intake import OpenBatch
from seekpoint.pipeline import Handler, Pipeline, Row, RowRefused, Sink
from seekpoint.records import AnyRecord, Batch, Partition, RawRecord

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
    if pipeline.handle is None and len(pipeline.sinks) == 1:
        return _stream(tx, pipeline, pipeline.sinks[0], batch)
    return _whole(tx, pipeline, batch)


def _stream(tx: LentConnection, pipeline: Pipeline, sink: Sink, batch: OpenBatch) -> int:
    applied = 0
    try:
        with sink.open(tx) as writer:
            for raw in batch.chunks():
                made = _rows(pipeline, raw, batch)
                writer.write([row for _, (rows,) in made for row in rows])
                applied += len(made)
    except RowRefused as refused:
        written = (record for raw in batch.kept() for record, (rows,) in _rows(pipeline, raw, batch) for _ in rows)
        raise SinkRefused(_blame(sink, written, refused)) from refused
    return applied


def _whole(tx: LentConnection, pipeline: Pipeline, batch: OpenBatch) -> int:
    made = [one for raw in batch.chunks() for one in _rows(pipeline, raw, batch)]
    made = [one for one in made if not _is_cut(one[0], batch)]  # a record that one sink cannot take, none gets
    for n, sink in enumerate(pipeline.sinks):
        try:
            with sink.open(tx) as writer:
                writer.write([row for _, rows in made for row in rows[n]])
        except RowRefused as refused:
            raise SinkRefused(_blame(sink, (record for record, rows in made for _ in rows[n]), refused)) from refused
    if pipeline.handle is not None:
        _handle(tx, pipeline.handle, Batch([record for record, _ in made], batch.spans))
    return len(made)


def _handle(tx: LentConnection, handle: Handler, batch: Batch[Any, Any]) -> None:
    try:
        handle(tx, batch)
    except Poison as poison:
        if not poison.records:
            raise
        first = min(poison.records, key=lambda r: r.offset)
        raise SinkRefused(_stop(first, poison)) from poison
    tx.check()


def _rows(pipeline: Pipeline, raw: Sequence[RawRecord], batch: OpenBatch) -> list[tuple[AnyRecord, list[Rows]]]:
    """Each record that is not cut, with its rows for each sink; a record that has none to give is cut."""
    made: list[tuple[AnyRecord, list[Rows]]] = []
    for one in raw:
        if batch.cuts and _is_cut(one, batch):
            continue
        try:
            record = pipeline.decode(one)
            rows: list[Rows] = [tuple(s.rows(record)) if s.takes(one.topic) else () for s in pipeline.sinks]
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a codec or row= raises is that record's fault
            batch.cut(_stop(one, error))
            continue
        made.append((record, rows))
    return made


def _is_cut(record: AnyRecord, batch: OpenBatch) -> bool:
    cut = batch.cuts.get(Partition(record.topic, record.partition))
    return cut is not None and record.offset >= cut.offset


def _blame(sink: Sink, written: Iterable[AnyRecord], refused: RowRefused) -> PoisonStop:
    """Which record the refused row came from; ``written`` names a record for each row, in order."""
    for line, record in enumerate(written, 1):
        if line == refused.line:
            return _stop(record, refused.cause, f"the database refused its row for {', '.join(sink.tables)}")
    raise ConfigError(f"{sink!r}: row= made other rows when it was asked again; it must depend on its record alone")


def _stop(record: AnyRecord, error: Exception, what: str = "it cannot be applied") -> PoisonStop:
    said = " ".join(str(error).split())
    call = f"Ledger.move({record.topic!r}, {record.partition}, to={record.offset + 1}"
    return PoisonStop(
        Partition(record.topic, record.partition),
        record.offset,
        f"{what}: {type(error).__name__}: {said}",
        choices=(
            "mend the codec, row= or handler, and start the worker again",
            f"skip it: {call}, lost='poison', reason=...)",
        ),
    )
