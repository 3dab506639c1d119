"""Numbers the records that an attempt reads: offsets have gaps, so they do not show which records are adjacent."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection

from seekpoint.jobs.staging.savepoints import LeftOut, nothing_left_out
from seekpoint.jobs.tables.sql_templates import run
from seekpoint.jobs.tables.staging_schema import Staging, unlogged
from seekpoint.jobs.tables.targets import Path
from seekpoint.kafka.ranges import Piece
from seekpoint.records import NewDeadLetter, offsets_of


class Ordinals:
    """The ordinals, from 0, of the records of one range, which are added in the order of their offsets."""

    def __init__(self) -> None:
        self._starts, self._first = array("q"), array("q")  # of each run of offsets without a gap
        self._end, self._count = -1, 0

    def counted(self, pieces: Iterable[Piece], left_out: LeftOut) -> Iterator[Piece]:
        """Yield the pieces, and add their records that are not left out."""
        for piece in pieces:
            is_whole = left_out is nothing_left_out
            self.add(offsets_of(piece.records if is_whole else [raw for raw in piece.records if not left_out(raw)]))
            yield piece

    def add(self, offsets: Sequence[int]) -> None:
        """Add the next records."""
        if not offsets:
            return
        has_gap = offsets[-1] - offsets[0] >= len(offsets)
        parts: Iterable[Sequence[int]] = ([offset] for offset in offsets) if has_gap else [offsets]
        for part in parts:
            if part[0] != self._end:
                self._starts.append(part[0])
                self._first.append(self._count)
            self._end = part[-1] + 1
            self._count += len(part)

    def of(self, offset: int) -> int:
        """The ordinal of the record at this offset."""
        part = bisect_right(self._starts, offset) - 1
        return self._first[part] + offset - self._starts[part]


def ordinals_table(staging: Staging) -> Path:
    """The table of the run's failed records: ``attempt, record_offset, ordinal``."""
    return staging.schema, "ordinals"


def make_ordinals(connection: Connection, staging: Staging) -> None:
    """Create the table, in the first step of a run."""
    run(
        connection,
        "CREATE {unlogged} TABLE {table} (attempt text, record_offset bigint, ordinal bigint)",
        unlogged=unlogged(staging.schema),
        table=ordinals_table(staging),
    )


def keep_ordinals(
    connection: Connection, staging: Staging, attempt: str, ordinals: Ordinals, dead_letters: Sequence[NewDeadLetter]
) -> None:
    """Store the ordinals of an attempt's dead letters."""
    if not dead_letters:
        return
    offsets = [dead_letter.record.offset for dead_letter in dead_letters]
    run(
        connection,
        "INSERT INTO {table} SELECT {attempt}, * FROM unnest({offsets}::bigint[], {ordinals}::bigint[])",
        table=ordinals_table(staging),
        attempt=attempt,
        offsets=offsets,
        ordinals=[ordinals.of(offset) for offset in offsets],
    )
