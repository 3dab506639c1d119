"""Finds out why a stored position is out of range: retention, truncation or other brokers.

It decides by the log's ends, never by the text of the client's message.
"""

from __future__ import annotations

from collections.abc import Mapping

from seekpoint import remedies
from seekpoint.errors import OffsetLost, TopicUnknown
from seekpoint.kafka.watermarks import Edge, Watermarks
from seekpoint.records import Partition


def classify(
    group: str, positions: Mapping[Partition, int], watermarks: Watermarks, moves: Mapping[Partition, str]
) -> dict[Partition, OffsetLost]:
    """The error for each refused position of the group; ``moves`` describe resets to them. Raises KafkaUnavailable."""
    starts, ends = watermarks.starts(list(positions)), watermarks.ends(list(positions))
    return {
        partition: lost(group, partition, offset, (starts[partition], ends[partition]), moves.get(partition))
        for partition, offset in positions.items()
    }


def lost(
    group: str, partition: Partition, offset: int, edges: tuple[Edge, Edge], move: str | None = None
) -> OffsetLost:
    """The error for ``offset``, with the reason and the choices; ``move`` says who reset the position to it."""
    start, end = edges
    choices: tuple[str, ...]
    log_end: int | None = end.offset
    other = remedies.reset_to_offset(group, partition)
    elsewhere = f"elsewhere: {other} continues at that offset"
    stop = "stop: do nothing; the partition is not read until you decide"
    if offset < start.offset:
        why = f"{'retention has passed it' if move is None else move}: the first offset left is {start.offset}, up to "
        why += f"{start.offset - offset} records are lost"
        accept = remedies.accept_lost(group, partition)
        choices = (
            f"give them up: {accept} continues at the first offset left, and records the range",
            "bring them back: restore the rows from an archive, then reset the offset",
        )
    elif offset > end.offset:
        cause = "the log was truncated, or belongs to other brokers" if move is None else move
        why = f"it is past the end of the log ({end.offset}): {cause}"
        choices = (
            f"go back: {remedies.accept_lost(group, partition)} reads only new records",
            "check that these are the brokers that were read before",
        )
    else:
        why = (
            "the log was truncated before it and written again (the leader epoch stored with it is unknown or older): "
            "the applied records may not be those that the log now has"
        )
        log_end = None  # the log has grown since its truncation: where it ended then is not known
        accept = remedies.accept_truncated(group, partition)
        choices = (f"accept: {accept} continues where the log was truncated, and records the range up to here",)
        elsewhere = f"read again: {other}, with an offset before the truncation"
    return OffsetLost(partition, offset, why, choices=(*choices, elsewhere, stop), log_end=log_end)


def unknown(partition: Partition, offset: int) -> TopicUnknown:
    """The error for a topic that the brokers have not known for a few seconds."""
    return TopicUnknown(
        partition,
        offset,
        f"topic {partition.topic!r} does not exist any more, or the brokers that answer do not know it; the worker "
        "resumes reading when they know it again",
        choices=("create it again, then decide", "remove it from the pipeline's topics", "stop: do nothing"),
    )
