"""Reading a range that the log has in part: what retention took comes from the archive, the rest from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from seekpoint.errors import RangeLost
from seekpoint.export.archive import Archive, up_to
from seekpoint.kafka.ranges import Piece, Range, log_starts, read_range


def chained(kafka: Mapping[str, Any], archive: str | None, engine: Engine) -> ChainedReader:
    """The reader of a run whose archive is on record as :meth:`Archive.spec` tells it; None: it has none."""
    return ChainedReader(kafka, None if archive is None else Archive.of(archive, engine))


class ChainedReader:
    """Reads ranges of a log whose beginning is in ``archive``; without one, of the log alone.

    What both have is read from the log. ``kafka`` is the workers' own configuration. Making one does no I/O.
    """

    def __init__(self, kafka: Mapping[str, Any], archive: Archive | None = None) -> None:
        self._kafka, self._archive = kafka, archive

    def read(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, in pieces; they count once the iteration has ended without an error.

        Retention may pass while it is read: then it goes on in the archive. Raises what ``kafka.ranges.read_range``
        and ``Archive.read_range`` raise: RangeLost where neither has the next record.
        """
        if self._archive is None:
            yield from read_range(self._kafka, range_)
            return
        left = range_
        while left.start < left.end:
            archived, left = up_to(left, log_starts(self._kafka, [range_.partition])[range_.partition])
            yield from self._archive.read_range(archived)
            position = left.start
            try:
                for piece in read_range(self._kafka, left):
                    yield piece
                    position = piece.records[-1].offset + 1
                return
            except RangeLost:
                if log_starts(self._kafka, [range_.partition])[range_.partition] <= position:
                    raise  # it is not retention
                left = replace(left, start=position)
