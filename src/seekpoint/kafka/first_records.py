"""Shortens a job's ranges to a limit of records or bytes; partitions get equal shares, and short ones stay whole.

Bytes are estimated from a sample of each topic's next records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range, read_range
from seekpoint.records import Partition, size_with_headers

SAMPLE = 100  # offsets read from each topic's longest range, to estimate the mean size


def require_max_records(max_records: int | None) -> None:
    """Raise ConfigError for a limit below 1, before a broker is asked."""
    if max_records is not None and max_records < 1:
        raise ConfigError(f"max_records={max_records}: must be a number of offsets, at least 1, or None for all")


def first_records(ranges: Sequence[Range], max_records: int | None) -> list[Range]:
    """The first offsets of the ranges, ``max_records`` in total; None: the whole ranges.

    Partitions get equal shares, so that a long one delays no other; if a short one needs less, the others share the
    remainder. A partition's ranges must be in the order of their offsets.
    """
    widths: dict[Partition, int] = {}
    for range_ in ranges:
        widths[range_.partition] = widths.get(range_.partition, 0) + range_.records_at_most
    if max_records is None or sum(widths.values()) <= max_records:
        return list(ranges)
    remaining, shares = max_records, {}
    for n, (partition, width) in enumerate(sorted(widths.items(), key=lambda item: item[1])):
        shares[partition] = min(width, -(-remaining // (len(widths) - n)))
        remaining -= shares[partition]
    first: list[Range] = []
    for range_ in ranges:
        width = min(range_.records_at_most, shares[range_.partition])
        shares[range_.partition] -= width
        if width:
            first.append(replace(range_, end=range_.start + width))
    return first


def require_max_bytes(max_bytes: int | None) -> None:
    """Raise ConfigError for a limit below 1, before a broker is asked."""
    if max_bytes is not None and max_bytes < 1:
        raise ConfigError(f"max_bytes={max_bytes}: must be a number of bytes, at least 1, or None for all")


def sampled_sizes(kafka: Mapping[str, Any], ranges: Sequence[Range]) -> dict[str, float]:
    """Estimate each topic's bytes per offset: the mean over the next offsets of its longest range.

    Raises the errors of :func:`read_range`.
    """
    sizes = {}
    ordered = sorted(ranges, key=lambda range_: (range_.partition.topic, range_.records_at_most))
    for topic, ranges_of_topic in groupby(ordered, lambda range_: range_.partition.topic):
        *_, longest = ranges_of_topic
        sample = replace(longest, end=min(longest.end, longest.start + SAMPLE))
        total = sum(size_with_headers(record) for piece in read_range(kafka, sample) for record in piece)
        sizes[topic] = total / max(sample.records_at_most, 1)
    return sizes


def first_bytes(ranges: Sequence[Range], sizes: Mapping[str, float], max_bytes: int) -> list[Range]:
    """The first offsets of the ranges (one per partition), about ``max_bytes`` in total by these mean ``sizes``.

    Partitions get shares as in :func:`first_records`. If no share has room for a record, the longest range gets one
    offset.
    """
    widths = {range_: range_.records_at_most * sizes[range_.partition.topic] for range_ in ranges}
    if sum(widths.values()) <= max_bytes:
        return list(ranges)
    remaining, counts = float(max_bytes), {}
    for n, (range_, width) in enumerate(sorted(widths.items(), key=lambda item: item[1])):
        share = min(width, remaining / (len(widths) - n))
        size = sizes[range_.partition.topic]
        counts[range_] = min(int(share / size), range_.records_at_most) if size else range_.records_at_most
        remaining -= counts[range_] * size
    if not any(counts.values()):
        counts[max(ranges, key=lambda range_: range_.records_at_most)] = 1
    return [replace(range_, end=range_.start + counts[range_]) for range_ in ranges if counts[range_]]
