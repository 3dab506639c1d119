"""Finds the offsets of lost ranges that no worker has applied, either before or after the range was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition

Span = tuple[int, int]
GONE = {"retention", "rewritten", "recreated"}
"""Reasons of ranges whose records the log may no longer have. Any other reason is an operator's text for a reset."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A row of lost_range; ``end`` is None if it is not known."""

    partition: Partition
    topic_id: UUID
    start: int
    end: int | None
    reason: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Reset:
    """An operator's change of a position from ``start`` to ``to``.

    ``takes_back``: the records from ``to`` on lost their rows, together with the previous reset.
    """

    partition: Partition
    start: int
    to: int
    time: datetime
    takes_back: bool = False


def not_applied(
    lost: Sequence[Lost], resets: Sequence[Reset], ids: Mapping[Partition, UUID], firsts: Mapping[Partition, int]
) -> Iterator[tuple[Partition, Span]]:
    """The parts of lost ranges that no worker has applied; only of topics with these ``ids``.

    ``resets`` are in order of time; ``firsts`` are the first applied offsets before any reset.
    """
    for lost_range in lost:
        partition = lost_range.partition
        if ids.get(partition) != lost_range.topic_id:
            continue
        partition_resets = [reset for reset in resets if reset.partition == partition]
        end = LARGEST_BIGINT if lost_range.end is None else lost_range.end
        if lost_range.reason not in GONE:
            earlier = [
                other.time for other in lost if other.partition == partition and other.topic_id != lost_range.topic_id
            ]
            applied = list(_applied(partition_resets, firsts[partition], max(earlier, default=None)))
        else:  # the log may begin after them: only those read again after a later reset are applied
            applied = [
                (reset.to, LARGEST_BIGINT)
                for reset in partition_resets
                if reset.time > lost_range.time and reset.to < end
            ]
        for span in without((lost_range.start, end), applied):
            yield partition, span


def _applied(resets: Iterable[Reset], first: int, since: datetime | None) -> Iterator[Span]:
    """The spans read between resets and after the last reset, without those before a topic's recreation (``since``)."""
    begin = first if since is None else None
    applied: list[Span] = []
    for reset in resets:
        if since is not None and reset.time <= since:
            continue
        if reset.takes_back:
            applied = [(start, min(end, reset.to)) for start, end in applied]
        else:
            if begin is not None:
                applied.append((begin, reset.start))
            begin = reset.to
    yield from applied
    if begin is not None:
        yield begin, LARGEST_BIGINT


def without(span: Span, others: Iterable[Span]) -> Iterator[Span]:
    """The parts of a span that none of the others has."""
    start, end = span
    for begin, until in sorted(other for other in others if other[0] < other[1]):
        if begin > start:
            yield from [(start, min(begin, end))] if start < end else []
        start = max(start, until)
    if start < end:
        yield start, end
