"""Planning ranges: check that the log has them, and divide them among tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seekpoint.errors import RangeLost, RangeStuck
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Range

SMALLEST = 300_000  # offsets: a task costs 0.1 s before its first record, and so many take half a second
MOST_TASKS = 1_000  # a schedule, and what is staged by each of them, stays small


def check(kafka: Mapping[str, Any], ranges: Collection[Range]) -> None:
    """Ask the brokers whether all of these can be read, before the first is; empty ranges always can.

    Raises RangeLost (the log begins later), RangeStuck (it cannot be read as far as that), TopicRecreated,
    KafkaUnavailable.
    """
    asked = [range_ for range_ in ranges if range_.start < range_.end]
    if not asked:
        return
    checks = RangeChecks(kafka)
    answer = checks.ask({range_.partition.topic for range_ in asked})
    for range_ in asked:
        checks.check(answer, range_.partition, range_.topic_id, range_.start)
    partitions = sorted({range_.partition for range_ in asked})
    starts, ends = checks.readable.starts(partitions), checks.readable.ends(partitions)
    for range_ in asked:
        at, start, end = range_.partition, starts[range_.partition].offset, ends[range_.partition].offset
        if start > range_.start:
            raise RangeLost(
                at,
                range_.start,
                f"retention has passed it: the first offset left is {start}. Begin there, which leaves "
                f"{start - range_.start} records out, or read them from an archive",
            )
        if end < range_.end:
            raise RangeStuck(
                at,
                range_.start,
                range_.end,
                f"what can be read now ends at {end}. Take that as the end: the requested one is after an open "
                "transaction, or the log was truncated, or the end is of other brokers",
            )


def split(ranges: Collection[Range], *, smallest: int = SMALLEST, most: int = MOST_TASKS) -> list[list[Range]]:
    """The ranges, divided into tasks of about ``smallest`` offsets, larger if there would be more than ``most`` tasks.

    No offset is left out, and none is in two tasks; a task's ranges are of partitions in their order.
    """
    width = sum(range_.records_at_most for range_ in ranges)
    size = max(smallest, -(-width // max(most, 1)), 1)
    tasks: list[list[Range]] = []
    room = 0
    for piece in _cut(ranges, size):
        if piece.records_at_most > room:
            tasks.append([])
            room = size
        tasks[-1].append(piece)
        room -= piece.records_at_most
    return tasks


def _cut(ranges: Collection[Range], size: int) -> Iterator[Range]:
    """Pieces of equal width, none of them wider than ``size``."""
    for range_ in sorted(ranges):
        parts = -(-range_.records_at_most // size)
        for n in range(parts):
            begin = range_.start + range_.records_at_most * n // parts
            yield replace(range_, start=begin, end=range_.start + range_.records_at_most * (n + 1) // parts)
