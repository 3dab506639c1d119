"""Writes records to Parquet files and reads them back, with every field that a worker sees."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from seekpoint.errors import ArchiveDamaged
from seekpoint.jobs.export.manifest import Entry, Written
from seekpoint.jobs.export.storage import HashingStream, Storage
from seekpoint.kafka.client import Unreadable
from seekpoint.kafka.ranges import CHUNK, Piece, Range, read_range
from seekpoint.records import Partition, RawRecord, Record

ROWS = 50_000  # of a row group

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        # For people. What is beyond it, or was never there, is null; `timestamp_ms` has all that Kafka has.
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        # null where the client cannot read them
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)


class LocalWriter:
    """Writes each range here, in turn."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._kafka = kafka

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        """Write them in the order given."""
        storage = Storage(root)
        for range_ in ranges:
            yield write_range(self._kafka, storage, run, range_)


def write_range(kafka: Mapping[str, Any], storage: Storage, run: UUID, range_: Range) -> Written:
    """Write the range's records to a file of its own; none, if there are none.

    Raises what ``kafka.ranges.read_range`` raises, and then leaves no file.
    """
    return write(storage, file_name(range_, run, uuid4()), range_, read_range(kafka, range_))


def write(storage: Storage, file: str, range_: Range, pieces: Iterable[Piece]) -> Written:
    """Write the pieces to a new file; where there are no records, there is none.

    An error leaves no file, unless the process ends with it.
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
        raise FileNotFoundError(f"{storage.path(file)} was written, and is not there")
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
        writer.write_batch(first)  # each of them is a row group
        for batch in others:
            records += batch.num_rows
            writer.write_batch(batch)
    return records


def _marks(range_: Range) -> dict[str, str]:
    """What a file says of itself, whatever it is called."""
    return {
        "seekpoint.topic": range_.partition.topic,
        "seekpoint.topic_id": str(range_.topic_id),
        "seekpoint.partition": str(range_.partition.number),
        "seekpoint.from_offset": str(range_.start),
        "seekpoint.to_offset": str(range_.end),
    }


def read(storage: Storage, entry: Entry, start: int, end: int) -> Iterator[Piece]:
    """The records of ``[start, end)`` that the entry's file has. Raises ArchiveDamaged, before the first or later."""
    with _telling(storage, entry):
        size = storage.size(entry.file)
    if size is None:
        raise damaged(storage, entry, "it is not there: bring it back from a copy of the archive")
    if size != entry.bytes:
        raise damaged(storage, entry, f"it has {size} bytes, and {entry.bytes} were written: it was cut, or replaced")
    # One handle: the bytes that are parsed are those that were compared, also where the file is replaced meanwhile.
    with _telling(storage, entry), storage.fs.open_input_file(storage.path(entry.file)) as stream:
        # Before pyarrow parses it: checksums of pages leave out headers and footer, where a flipped bit makes other
        # records of the same pages, or ends the process.
        if entry.sha256 is not None:
            if hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
                raise damaged(storage, entry, "its SHA-256 is not that of what was written: bring it back from a copy")
            stream.seek(0)
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        _require_its_own(storage, entry, file)
        wanted = [n for n in range(file.num_row_groups) if _overlaps(file.metadata.row_group(n), start, end)]
        for batch in file.iter_batches(CHUNK, wanted):
            if piece := _piece(entry.partition, batch, start, end):
                yield piece


def damaged(storage: Storage, entry: Entry, why: str) -> ArchiveDamaged:
    """The error for one file."""
    return ArchiveDamaged(entry.partition, entry.start, entry.end, storage.path(entry.file), why)


@contextmanager
def _telling(storage: Storage, entry: Entry) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = f"it cannot be read ({type(error).__name__}: {error}): bring it back from a copy, or fix the storage"
        raise damaged(storage, entry, why) from error


def _require_its_own(storage: Storage, entry: Entry, file: pq.ParquetFile) -> None:
    said = {
        key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items() if b"seekpoint" in key
    }
    marks = _marks(Range(entry.partition, entry.topic_id, entry.start, entry.end))
    if said != marks:
        theirs = ", ".join(f"{key.partition('.')[2]} {said.get(key)}" for key in marks if said.get(key) != marks[key])
        why = (
            f"it is another file's content ({theirs}; topic id {entry.topic_id} was written): bring the right one back"
        )
        raise damaged(storage, entry, why)
    if (found := file.metadata.num_rows) != entry.records:
        why = f"it has {found} records, and {entry.records} were written: bring the right one back"
        raise damaged(storage, entry, why)
    if not file.schema_arrow.equals(SCHEMA):
        raise damaged(storage, entry, "its columns are not those of an export: bring the right one back")


def _overlaps(group: Any, start: int, end: int) -> bool:
    offsets = group.column(SCHEMA.get_field_index("offset")).statistics
    return offsets is None or not offsets.has_min_max or (offsets.min < end and offsets.max >= start)


def _piece(partition: Partition, batch: pa.RecordBatch, start: int, end: int) -> Piece | None:
    names = ("offset", "timestamp_ms", "key", "value", "headers", "leader_epoch")
    records: list[RawRecord] = []
    unreadable: list[tuple[RawRecord, Unreadable]] = []
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
    """A new file's unique place below the root, which :func:`range_of` parses."""
    at = range_.partition
    return (
        f"{at.topic}/{range_.topic_id}/{at.number}/{range_.start:020}-{range_.end:020}-{run.hex}-{attempt.hex}.parquet"
    )


_NAMED = re.compile(r"([^/]+)/([0-9a-f-]{36})/(\d+)/(\d{20})-(\d{20})-([0-9a-f]{32})-[0-9a-f]{32}\.parquet")


def range_of(file: str) -> tuple[Range, UUID] | None:
    """The range and the export's run that :func:`file_name` was given; None for a file that is none of ours."""
    if (found := _NAMED.fullmatch(file)) is None:
        return None
    topic, topic_id, number, start, end, run = found.groups()
    return Range(Partition(topic, int(number)), UUID(topic_id), int(start), int(end)), UUID(run)


BYTES = 32 * 2**20  # of keys, values and headers, after which a batch ends earlier: it is held in memory
_NO_TIME = -1  # what some producers write for it
_LAST_TIME = 9_223_372_036_854_775  # milliseconds: what microseconds in 64 bits hold


def record_batches(pieces: Iterable[Piece], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """The records in order, at most ``rows`` in a batch; headers that the client cannot read are null.

    Columns are those of ``schema``, by their names. Raises what iterating over the pieces raises.
    """
    records: list[RawRecord] = []
    unreadable: set[int] = set()
    size = 0
    for piece in pieces:
        unreadable.update(record.offset for record, _ in piece.unreadable)
        for record in piece:
            records.append(record)
            size += _size(record)
            if len(records) >= rows or size >= BYTES:
                yield _batch(records, unreadable, schema)
                records, size = [], 0
    if records:
        yield _batch(records, unreadable, schema)


def _size(record: RawRecord) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _batch(records: Sequence[RawRecord], unreadable: set[int], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "timestamp": [_microseconds(record.timestamp_ms) for record in records],
        "headers": [None if record.offset in unreadable else record.headers for record in records],
    }
    for field in schema:
        columns.setdefault(field.name, list(map(attrgetter(field.name), records)))
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _microseconds(milliseconds: int | None) -> int | None:
    """None for no time, and for one that 64 bits cannot hold."""
    if milliseconds is None or milliseconds == _NO_TIME or not -_LAST_TIME <= milliseconds <= _LAST_TIME:
        return None
    return milliseconds * 1000
