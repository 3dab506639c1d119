"""Applies one batch through sinks and handler, inside the transaction that advances its offsets.

There are three ways. A small batch for one ``Append`` is closed before BEGIN, and its rows are sent with hold and
advance (:func:`small_batch`). Otherwise, with one sink and no handler, rows stream into the open COPY: a chunk is
decoded while the server works on the previous one. In all other cases the batch is closed first; sinks write in
declared order, then the handler runs. To find records that fail, the batch is applied in parts
(:mod:`seekpoint.worker.parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from seekpoint.pipeline.sink import Row
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.connection import HandlerConnection
from seekpoint.postgres.round_trip import Statement
from seekpoint.sinks.small_append import MOST_BYTES, MOST_RECORDS_IN_ONE_INSERT
from seekpoint.worker.bisect import Strides
from seekpoint.worker.decode import DecodedChunk, decoded_chunks, decoded_records
from seekpoint.worker.failed import FIRST, Mode
from seekpoint.worker.open_batch import BatchResult, OpenBatch, Written
from seekpoint.worker.parts import apply_parts
from seekpoint.worker.write import stream, write


def apply(
    tx: HandlerConnection, writers: PipelineWriters, batch: OpenBatch, mode: Mode, strides: Strides
) -> BatchResult:
    """Write the batch as a whole, or in parts if ``mode`` is bisecting.

    Raises Failed if a record may be at fault. HandlerMisuse and the error of a lost connection are raised unchanged.
    """
    rows_of = writers.rows_at_once if mode.is_bisecting else writers.streamed_rows
    chunks = decoded_chunks(writers, batch.chunks(), batch, rows_of)
    if mode.is_bisecting:
        records, keeps_locks = decoded_records(chunks), _keeps_locks(writers)
        return BatchResult.of(
            batch, apply_parts(tx, writers, records, batch, mode, strides=strides, keeps_locks=keeps_locks)
        )
    return BatchResult.of(batch, _apply_whole(tx, writers, chunks, batch))


class SmallBatch(NamedTuple):
    """A closed batch, and the statements that write its rows, to be sent with the ledger's last statement."""

    result: BatchResult
    statements: Sequence[Statement]


def small_batch(tx: HandlerConnection, writers: PipelineWriters, batch: OpenBatch, mode: Mode) -> SmallBatch | None:
    """Decode a batch that closes with few records; None if it must be applied step by step. Sends nothing.

    Only for a first attempt that applies every record: dead letters, stops and attempts need further statements.
    """
    if (
        not _keeps_locks(writers)
        or mode != FIRST
        or (statements_of := writers.sinks[0].statements(tx)) is None
        or not batch.closes_within(MOST_RECORDS_IN_ONE_INSERT, MOST_BYTES)
    ):
        return None
    applied, rows = 0, list[Row]()
    for raw, at_once, records in decoded_chunks(writers, batch.chunks(), batch, writers.rows_at_once):
        applied += len(raw if at_once is not None else records)
        rows += [row for record in records for row in record.rows[0]] if at_once is None else at_once
    if batch.outcome.is_filtering or (statements := statements_of(rows)) is None:
        return None
    return SmallBatch(BatchResult.of(batch, Written(applied, [len(rows)])), statements)


def _keeps_locks(writers: PipelineWriters) -> bool:
    """Whether only our own ROLLBACK TO can release a lock, because no user code gets the connection.

    Only then may rows be sent after the advance: a handler's COMMIT would make offsets durable before their rows (I1).
    """
    return writers.pipeline.handle is None and len(writers.sinks) == 1 and writers.sinks[0].keeps_locks


def _apply_whole(
    tx: HandlerConnection, writers: PipelineWriters, chunks: Iterable[DecodedChunk], batch: OpenBatch
) -> Written:
    """Write the batch as a whole."""
    if writers.pipeline.handle is None and len(writers.sinks) == 1:
        return stream(tx, writers, chunks, batch)
    decoded = decoded_records(chunks)
    return Written(len(decoded), write(tx, writers, decoded, batch.spans))
