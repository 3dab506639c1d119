"""Which offsets of lost ranges no worker has applied: neither before they were given up nor after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from seekpoint.ledger.tables import LARGEST_BIGINT
from seekpoint.records import Partition

Span = tuple[int, int]
GONE = {"retention", "rewritten", "recreated"}
"""Reasons of ranges whose records may not be in the log any more. Others are of resets, in an operator's words."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A row of the table of lost ranges; ``end`` is None where it is not known."""

    partition: Partition
    topic_id: UUID
    start: int
    end: int | None
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Reset:
    """A position that an operator has put from one offset to another."""

    partition: Partition
    start: int
    to: int
    at: datetime


def not_applied(
    lost: Sequence[Lost], resets: Sequence[Reset], ids: Mapping[Partition, UUID], firsts: Mapping[Partition, int]
) -> Iterator[tuple[Partition, Span]]:
    """What these ranges have of the topics ``ids``, without what was applied.

    ``resets`` are in their order; ``firsts`` are the first offsets that were applied before any of them.
    """
    for one in lost:
        at = one.partition
        if ids.get(at) != one.topic_id:
            continue
        mine = [reset for reset in resets if reset.partition == at]
        end = LARGEST_BIGINT if one.end is None else one.end
        if one.reason not in GONE:
            earlier = [each.at for each in lost if each.partition == at and each.topic_id != one.topic_id]
            applied = list(_applied(mine, firsts[at], max(earlier, default=None)))
        else:  # records may be gone that a worker has passed: only what was put back since is read
            applied = [(reset.to, LARGEST_BIGINT) for reset in mine if reset.at > one.at and reset.to < end]
        for span in _without((one.start, end), applied):
            yield at, span


def _applied(resets: Iterable[Reset], first: int, since: datetime | None) -> Iterator[Span]:
    """What was read between two resets, and after the last; of the topic that was created again at ``since``."""
    begin = first if since is None else None
    for reset in resets:
        if since is None or reset.at > since:
            if begin is not None:
                yield begin, reset.start
            begin = reset.to
    if begin is not None:
        yield begin, LARGEST_BIGINT


def _without(span: Span, others: Iterable[Span]) -> Iterator[Span]:
    """What is left of a span."""
    start, end = span
    for begin, until in sorted(each for each in others if each[0] < each[1]):
        if begin > start:
            yield from [(start, min(begin, end))] if start < end else []
        start = max(start, until)
    if start < end:
        yield start, end
