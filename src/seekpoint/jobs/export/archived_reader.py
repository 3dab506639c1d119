"""Reads a range of which retention has deleted a part: that part from the archive, the rest from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from sqlalchemy import Engine

from seekpoint.errors import RangeLost
from seekpoint.jobs.export.archive import Archive, up_to
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Piece, Range, read_range
from seekpoint.records import offsets_of


class ArchivedReader:
    """Reads ranges of a log whose beginning is in ``archive``; without one, of the log alone.

    What both have is read from the log. ``kafka`` is the workers' own configuration. Making one does no I/O.
    """

    def __init__(self, kafka: Mapping[str, Any], archive: Archive | None = None) -> None:
        self._kafka, self._archive = kafka, archive

    @classmethod
    def of(cls, kafka: Mapping[str, Any], archive: str | None, engine: Engine) -> Self:
        """The reader of a run with this archive, as :meth:`Archive.spec` describes it; None: the run has none."""
        return cls(kafka, None if archive is None else Archive.of(archive, engine))

    def read(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, in pieces; they count once the iteration has ended without an error.

        Retention may pass while it is read: then it continues in the archive. Raises what ``kafka.ranges.read_range``
        and ``Archive.read_range`` raise: RangeLost where neither has the next record.
        """
        if self._archive is None:
            yield from read_range(self._kafka, range_)
            return
        outlook, left = RangeChecks(self._kafka), range_
        while left.start < left.end:
            archived, left = up_to(left, _log_start(outlook, left))
            yield from self._archive.read_range(archived)
            position = left.start
            try:
                for piece in read_range(self._kafka, left):
                    yield piece
                    position = offsets_of(piece.records)[-1] + 1
                return
            except RangeLost:
                left = replace(left, start=position)
                if _log_start(outlook, left) <= position:
                    raise  # it is not retention


def _log_start(outlook: RangeChecks, range_: Range) -> int:
    """Where the log begins now. Raises TopicRecreated, and RangeLost where there is no such topic any more."""
    outlook.check(outlook.ask([range_.partition.topic]), range_.partition, range_.topic_id, range_.start)
    return outlook.readable.starts([range_.partition])[range_.partition].offset
