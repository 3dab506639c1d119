"""One batch through sinks and handler, inside the transaction that advances its offsets.

There are three ways. A small batch of one ``Append`` is closed before BEGIN; its rows are sent with hold and advance
(:func:`small_batch`). Else, with exactly one sink and no handler, rows stream into the open COPY: a chunk is decoded
while the server works on the one before. Anything else closes the batch first; sinks write in declared order, then the
handler runs. Where records fail, the batch is applied in parts (:mod:`seekpoint.worker.parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import Row
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.round_trip import Statement
from seekpoint.sinks.append import Append
from seekpoint.sinks.small_append import MOST_BYTES, MOST_RECORDS_IN_ONE_INSERT, insert_of_all, knows_plain_table
from seekpoint.worker.bisect import Strides
from seekpoint.worker.decode import DecodedChunk, decoded_chunks, decoded_records
from seekpoint.worker.failed import FIRST, Mode
from seekpoint.worker.open_batch import BatchResult, OpenBatch, Written
from seekpoint.worker.parts import apply_parts
from seekpoint.worker.write import stream, write


def apply(tx: HandlerConnection, pipeline: Pipeline, batch: OpenBatch, mode: Mode, strides: Strides) -> BatchResult:
    """Write the batch as a whole, or in parts where records fail.

    Raises Failed where a record may be at fault; misuse, and a lost connection, as they are.
    """
    rows_of = pipeline.rows_at_once if mode.is_bisecting else pipeline.streamed_rows
    chunks = decoded_chunks(pipeline, batch.chunks(), batch, rows_of)
    if mode.is_bisecting:
        records, keeps_locks = decoded_records(chunks), _only_append(pipeline) is not None
        return BatchResult.of(
            batch, apply_parts(tx, pipeline, records, batch, mode, strides=strides, keeps_locks=keeps_locks)
        )
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
    for raw, at_once, records in decoded_chunks(pipeline, batch.chunks(), batch, pipeline.rows_at_once):
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
        return stream(tx, pipeline, pipeline.sinks[0], chunks, batch)
    made = decoded_records(chunks)
    return Written(len(made), write(tx, pipeline, made, batch.spans))
