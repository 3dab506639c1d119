"""Decodes a batch's records, and makes their rows for each sink.

A record that cannot be decoded, or made into a row, is never sent: the failure policy decides at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from seekpoint.codecs.json import explained
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.pipeline.sink import Row
from seekpoint.pipeline.writers import IN_KEY, PROCESS_EXITS, PipelineWriters
from seekpoint.records import AnyRecord, Cause, Partition, RawRecord, notes
from seekpoint.worker.failed import Failed
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch

Rows = tuple[Row, ...]


class DecodedRecord(NamedTuple):
    """A record and its rows for each sink. ``record`` is the raw one if the rows were made without decoding."""

    raw: RawRecord
    record: AnyRecord
    rows: Sequence[Rows]


# A chunk's raw records; its rows, if they were made all at once; else its decoded records.
DecodedChunk = tuple[Sequence[RawRecord], Sequence[Row] | None, Sequence[DecodedRecord]]


def decode_record(writers: PipelineWriters, raw: RawRecord, unreadable: Exception | None = None) -> DecodedRecord:
    """Decode a record, and make its rows for each sink; ``unreadable`` is the client's error for it.

    Raises Failed for any error of a codec or ``row=`` except CodecUnavailable and ConfigError.
    """
    cause = Cause.DECODE
    try:
        if unreadable is not None:
            raise unreadable
        record = writers.decode(raw)
        cause = Cause.ROW
        rows = writers.rows(record)
    except (CodecUnavailable, ConfigError, *PROCESS_EXITS):
        raise
    except BaseException as error:
        is_value = cause is Cause.DECODE and IN_KEY not in notes(error)
        raise Failed(explained(error, raw.value) if is_value else error, cause) from error
    return DecodedRecord(raw, record, rows)


def decode_each(
    writers: PipelineWriters,
    raw: Sequence[RawRecord],
    batch: OpenBatch,
    admitted: Callable[[Sequence[RawRecord]], Iterable[RawRecord]],
) -> Iterator[DecodedRecord]:
    """Each record with its rows for each sink; the failure policy decides about those that fail."""
    unreadable = batch.buffer.unreadable
    for record in admitted(raw):
        unread = unreadable.get((Partition(record.topic, record.partition), record.offset)) if unreadable else None
        try:
            decoded = decode_record(writers, record, unread)
        except Failed as failed:
            fail(writers.pipeline, batch.outcome, record, failed.error, failed.cause)
        else:
            yield decoded


def decoded_chunks(
    writers: PipelineWriters,
    chunks: Iterable[Sequence[RawRecord]],
    batch: OpenBatch,
    rows_of: Callable[[Sequence[RawRecord]], Sequence[Row] | None],
) -> Iterator[DecodedChunk]:
    """Decode each chunk: all rows in one call if the sink can make them so, else record by record."""
    for raw in chunks:
        decoded = decode_each(writers, raw, batch, batch.admitted)  # lazy: begins when the result is iterated
        rows = None if batch.buffer.unreadable else rows_of(raw)
        yield raw, rows, [] if rows is not None else [*decoded]


def decoded_records(chunks: Iterable[DecodedChunk]) -> list[DecodedRecord]:
    """Collect the records that are to be applied; draws the batch to its end."""
    decoded: list[DecodedRecord] = []
    for raw, rows, records in chunks:
        if rows is not None:
            decoded += [DecodedRecord(record, record, ((row,),)) for record, row in zip(raw, rows, strict=True)]
        decoded += records
    return decoded
