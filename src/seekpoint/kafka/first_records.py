"""The first records of ranges that a job is allowed no more of: a share of each partition, the short ones whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition


def require_max_records(max_records: int | None) -> None:
    """Before anything is asked. Raises ConfigError."""
    if max_records is not None and max_records < 1:
        raise ConfigError(f"max_records is a number of offsets, at least 1, and not {max_records}; None is all of them")


def first_records(ranges: Sequence[Range], max_records: int | None) -> list[Range]:
    """The beginnings of the ranges, ``max_records`` offsets together; all of them for None.

    Each partition gets the same share, and what a shorter one does not need goes to the others, so that
    a partition with much to read delays no other. A partition's ranges are in the order of their offsets.
    """
    widths: dict[Partition, int] = {}
    for range_ in ranges:
        widths[range_.partition] = widths.get(range_.partition, 0) + range_.records_at_most
    if max_records is None or sum(widths.values()) <= max_records:
        return list(ranges)
    left, shares = max_records, {}
    for n, (partition, width) in enumerate(sorted(widths.items(), key=lambda item: item[1])):
        shares[partition] = min(width, -(-left // (len(widths) - n)))
        left -= shares[partition]
    first: list[Range] = []
    for range_ in ranges:
        width = min(range_.records_at_most, shares[range_.partition])
        shares[range_.partition] -= width
        if width:
            first.append(replace(range_, end=range_.start + width))
    return first
