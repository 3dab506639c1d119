"""A batch's records, decoded, with their rows for each sink.

A record that cannot be decoded or shaped into a row never reaches the server: the failure policy decides at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from seekpoint.codecs.json import explained
from seekpoint.errors import CodecUnavailable, ConfigError
from seekpoint.pipeline.sink import Row
from seekpoint.pipeline.writers import PROCESS_EXITS, PipelineWriters
from seekpoint.records import AnyRecord, Cause, Partition, RawRecord
from seekpoint.worker.failed import Failed
from seekpoint.worker.failure_policy import fail
from seekpoint.worker.open_batch import OpenBatch

Rows = tuple[Row, ...]


class DecodedRecord(NamedTuple):
    """A record, decoded, with its rows for each sink. ``record`` is the raw one where no code reads it."""

    raw: RawRecord
    record: AnyRecord
    rows: Sequence[Rows]


# The raw records of a chunk, their rows where they were made at once, and else each record, decoded.
DecodedChunk = tuple[Sequence[RawRecord], Sequence[Row] | None, Sequence[DecodedRecord]]


def decode_record(writers: PipelineWriters, raw: RawRecord, unreadable: Exception | None = None) -> DecodedRecord:
    """One record, decoded, with its rows for each sink; ``unreadable`` is what the client said of it.

    Raises Failed where the record is at fault: that is, by whatever a codec or ``row=`` raises.
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
        raise Failed(explained(error, raw.value) if cause is Cause.DECODE else error, cause) from error
    return DecodedRecord(raw, record, rows)


def decode_each(
    writers: PipelineWriters,
    raw: Sequence[RawRecord],
    batch: OpenBatch,
    admitted: Callable[[Sequence[RawRecord]], Iterable[RawRecord]],
) -> Iterator[DecodedRecord]:
    """Each record with its rows for each sink; for one that has none, the failure policy decides."""
    unreadable = batch.buffer.unreadable
    for one in admitted(raw):
        unread = unreadable.get((Partition(one.topic, one.partition), one.offset)) if unreadable else None
        try:
            decoded = decode_record(writers, one, unread)
        except Failed as failed:
            fail(writers.pipeline, batch.outcome, one, failed.error, failed.cause)
        else:
            yield decoded


def decoded_chunks(
    writers: PipelineWriters,
    chunks: Iterable[Sequence[RawRecord]],
    batch: OpenBatch,
    rows_of: Callable[[Sequence[RawRecord]], Sequence[Row] | None],
) -> Iterator[DecodedChunk]:
    """Each chunk, decoded: its rows at once, where values alone make them; else its records, one by one."""
    for raw in chunks:
        each = decode_each(writers, raw, batch, batch.admitted)  # begins where its records are asked for
        rows = None if batch.buffer.unreadable else rows_of(raw)
        yield raw, rows, [] if rows is not None else [*each]


def decoded_records(chunks: Iterable[DecodedChunk]) -> list[DecodedRecord]:
    """Every record of the batch that is to be applied, which closes it."""
    made: list[DecodedRecord] = []
    for raw, rows, records in chunks:
        if rows is not None:
            made += [DecodedRecord(one, one, ((row,),)) for one, row in zip(raw, rows, strict=True)]
        made += records
    return made
