"""Writes records to Parquet files and reads them back, with all fields that a worker sees."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from seekpoint.errors import ArchiveDamaged
from seekpoint.jobs.export.manifest import Entry, Written
from seekpoint.kafka.client import Unreadable
from seekpoint.kafka.ranges import CHUNK, Piece, Range, read_range
from seekpoint.records import Partition, RawRecord, Record, size_with_headers
from seekpoint.storage import HashingStream, Storage

ROWS = 50_000  # per row group

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        # For people; null if it is missing or out of range. `timestamp_ms` has exactly Kafka's value.
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        # null if the client cannot read them
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)


class LocalWriter:
    """Writes ranges in this process, one after another."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._kafka = kafka

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        """Write the ranges in the given order."""
        storage = Storage(root)
        for range_ in ranges:
            yield write_range(self._kafka, storage, run, range_)


def write_range(kafka: Mapping[str, Any], storage: Storage, run: UUID, range_: Range) -> Written:
    """Write the range's records to a new file; no file if there are no records.

    Raises the errors of ``kafka.ranges.read_range``, without leaving a file.
    """
    return write(storage, file_name(range_, run, uuid4()), range_, read_range(kafka, range_))


def write(storage: Storage, file: str, range_: Range, pieces: Iterable[Piece]) -> Written:
    """Write the pieces to a new file; no file if there are no records.

    After an error no file is left, unless the process crashes.
    """
    groups = record_batches(pieces, SCHEMA, ROWS)
    first = next(groups, None)
    if first is None:
        return Written(range_, "", 0, 0, None)
    try:
        with storage.create(file) as stream:
            hashing = HashingStream(stream)
            records = _write(hashing, range_, first, groups)
    except BaseException:
        storage.remove(file)
        raise
    storage.keep(file)
    size = storage.size(file)
    if size is None:
        raise FileNotFoundError(f"{storage.path(file)} was written, but is missing")
    return Written(range_, file, records, size, hashing.sha256)


def _write(stream: Any, range_: Range, first: pa.RecordBatch, others: Iterable[pa.RecordBatch]) -> int:
    records: int = first.num_rows
    with pq.ParquetWriter(
        stream,
        SCHEMA.with_metadata(_marks(range_)),
        compression="zstd",
        use_dictionary=["topic", "partition", "leader_epoch"],
        write_statistics=["partition", "offset", "timestamp", "timestamp_ms"],
        write_page_checksum=True,
    ) as writer:
        writer.write_batch(first)  # each batch is a row group
        for batch in others:
            records += batch.num_rows
            writer.write_batch(batch)
    return records


def _marks(range_: Range) -> dict[str, str]:
    """The metadata that identifies a file independently of its name."""
    return {
        "seekpoint.topic": range_.partition.topic,
        "seekpoint.topic_id": str(range_.topic_id),
        "seekpoint.partition": str(range_.partition.number),
        "seekpoint.from_offset": str(range_.start),
        "seekpoint.to_offset": str(range_.end),
    }


def read(storage: Storage, entry: Entry, start: int, end: int) -> Iterator[Piece]:
    """The records of ``[start, end)`` in the entry's file. Raises ArchiveDamaged, before the first record or later."""
    with _telling(storage, entry):
        size = storage.size(entry.file)
    if size is None:
        raise damaged(storage, entry, "it is missing: restore it from a copy of the archive")
    if size != entry.bytes:
        why = f"it has {size} bytes, and {entry.bytes} were written: it was cut or replaced, so restore it from a copy"
        raise damaged(storage, entry, why)
    # One handle, so that the parsed bytes are the compared ones even if the file is replaced meanwhile.
    with _telling(storage, entry), storage.fs.open_input_file(storage.path(entry.file)) as stream:
        # Checked before pyarrow parses the file, because page checksums do not cover headers and footer, where a
        # flipped bit changes records or crashes the process.
        if entry.sha256 is not None:
            if hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
                raise damaged(storage, entry, "its SHA-256 is not that of the written file: restore it from a copy")
            stream.seek(0)
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        _require_its_own(storage, entry, file)
        row_groups = [n for n in range(file.num_row_groups) if _overlaps(file.metadata.row_group(n), start, end)]
        for batch in file.iter_batches(CHUNK, row_groups):
            if piece := _piece(entry.partition, batch, start, end):
                yield piece


def damaged(storage: Storage, entry: Entry, why: str) -> ArchiveDamaged:
    """The error for a damaged file."""
    return ArchiveDamaged(entry.partition, entry.start, entry.end, storage.path(entry.file), why)


@contextmanager
def _telling(storage: Storage, entry: Entry) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = f"it cannot be read ({type(error).__name__}: {error}): restore it from a copy, or fix the storage"
        raise damaged(storage, entry, why) from error


def _require_its_own(storage: Storage, entry: Entry, file: pq.ParquetFile) -> None:
    stored_marks = {
        key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items() if b"seekpoint" in key
    }
    marks = _marks(Range(entry.partition, entry.topic_id, entry.start, entry.end))
    if stored_marks != marks:
        theirs = ", ".join(
            f"{key.partition('.')[2]} {stored_marks.get(key)}" for key in marks if stored_marks.get(key) != marks[key]
        )
        why = f"it has another file's content ({theirs}; topic id {entry.topic_id} was written): restore the right file"
        raise damaged(storage, entry, why)
    if (count := file.metadata.num_rows) != entry.records:
        why = f"it has {count} records, and {entry.records} were written: restore the right file"
        raise damaged(storage, entry, why)
    if not file.schema_arrow.equals(SCHEMA):
        raise damaged(storage, entry, "its columns are not those of an export: restore the right file")


def _overlaps(group: Any, start: int, end: int) -> bool:
    offsets = group.column(SCHEMA.get_field_index("offset")).statistics
    return offsets is None or not offsets.has_min_max or (offsets.min < end and offsets.max >= start)


def _piece(partition: Partition, batch: pa.RecordBatch, start: int, end: int) -> Piece | None:
    names = ("offset", "timestamp_ms", "key", "value", "headers", "leader_epoch")
    records: list[RawRecord] = []
    unreadable: list[tuple[RawRecord, Exception]] = []
    columns = (batch.column(name).to_pylist() for name in names)
    for offset, milliseconds, key, value, headers, epoch in zip(*columns, strict=True):
        if not start <= offset < end:
            continue
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        record: RawRecord = Record(*partition, offset, milliseconds, key, value, pairs, epoch)
        records.append(record)
        if headers is None:
            unreadable.append((record, Unreadable(record, ValueError("a name in them is not UTF-8"))))
    return Piece(records, unreadable) if records else None


def file_name(range_: Range, run: UUID, attempt: UUID) -> str:
    """A new file's unique path below the root, which :func:`range_of` parses."""
    partition = range_.partition
    folder = f"{partition.topic}/{range_.topic_id}/{partition.number}"
    return f"{folder}/{range_.start:020}-{range_.end:020}-{run.hex}-{attempt.hex}.parquet"


_NAMED = re.compile(r"([^/]+)/([0-9a-f-]{36})/(\d+)/(\d{20})-(\d{20})-([0-9a-f]{32})-[0-9a-f]{32}\.parquet")


def range_of(file: str) -> tuple[Range, UUID] | None:
    """The range and the run in a path of :func:`file_name`; None for another file."""
    if (match := _NAMED.fullmatch(file)) is None:
        return None
    topic, topic_id, number, start, end, run = match.groups()
    return Range(Partition(topic, int(number)), UUID(topic_id), int(start), int(end)), UUID(run)


BYTES = 32 * 2**20  # bytes of keys, values and headers: a larger batch ends early, because memory holds it
_NO_TIME = -1  # which some producers write instead of a timestamp
LAST_TIME = 9_223_372_036_854_775  # milliseconds: the maximum for microseconds in 64 bits


def record_batches(pieces: Iterable[Piece], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """The records in order, in batches of at most ``rows``; headers that the client cannot read are null.

    Columns are those of ``schema``, by name. Raises the errors of iterating over the pieces.
    """
    for records, unreadable in in_batches(pieces, rows):
        yield columns_of(records, unreadable, schema)


def in_batches(pieces: Iterable[Piece], rows: int) -> Iterator[tuple[list[RawRecord], Mapping[int, Exception]]]:
    """The records in order, at most ``rows`` at a time, and the errors of unreadable headers by offset."""
    records: list[RawRecord] = []
    unreadable: dict[int, Exception] = {}
    size = 0
    for piece in pieces:
        unreadable.update((record.offset, error) for record, error in piece.unreadable)
        for record in piece:
            records.append(record)
            size += size_with_headers(record)
            if len(records) >= rows or size >= BYTES:
                yield records, unreadable
                records, size = [], 0
    if records:
        yield records, unreadable


def columns_of(records: Sequence[RawRecord], unreadable: Collection[int], schema: pa.Schema) -> pa.RecordBatch:
    """The records as columns; headers at ``unreadable`` offsets are null."""
    columns: dict[str, list[Any]] = {
        "timestamp": [_microseconds(record.timestamp_ms) for record in records],
        "headers": [None if record.offset in unreadable else record.headers for record in records],
    }
    for field in schema:
        columns.setdefault(field.name, list(map(attrgetter(field.name), records)))
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _microseconds(milliseconds: int | None) -> int | None:
    """The time in microseconds; None without a time, or if 64 bits do not hold it."""
    if milliseconds is None or milliseconds == _NO_TIME or not -LAST_TIME <= milliseconds <= LAST_TIME:
        return None
    return milliseconds * 1000
