"""Records as Arrow batches: of a Parquet file's row groups, and of what Spark's tasks read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from seekpoint.kafka.ranges import Piece
from seekpoint.records import RawRecord

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
