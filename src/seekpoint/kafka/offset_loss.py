"""Why a stored position is out of range: retention, truncation or other brokers.

Decided by the ends of the log, never by the text of the client's message.
"""

from __future__ import annotations

from collections.abc import Mapping

from seekpoint.errors import OffsetLost, TopicUnknown
from seekpoint.kafka.watermarks import Edge, Watermarks
from seekpoint.records import Partition


def classify(
    positions: Mapping[Partition, int], watermarks: Watermarks, moves: Mapping[Partition, str]
) -> dict[Partition, OffsetLost]:
    """Why each position was refused; ``moves`` are resets that put it there. Raises KafkaUnavailable."""
    starts, ends = watermarks.starts(list(positions)), watermarks.ends(list(positions))
    return {p: lost(p, offset, starts[p], ends[p], moves.get(p)) for p, offset in positions.items()}


def lost(partition: Partition, offset: int, start: Edge, end: Edge, move: str | None = None) -> OffsetLost:
    """The error with what happened to ``offset`` and the choices; ``move`` says who reset the position to it."""
    call, log = f"Ledger.reset_offset({partition.topic!r}, {partition.number}", f"log=({start.offset}, {end.offset})"
    elsewhere = f"elsewhere: {call}, to=<offset>, log=None, reason=...) moves it without a look at the log"
    stop = "stop: leave it; nothing is read or written until it is decided"
    if offset < start.offset:
        why = f"{'retention has passed it' if move is None else move}: the first offset left is {start.offset}, up to "
        why += f"{start.offset - offset} records are lost"
        choices = (
            f"give them up: {call}, to={start.offset}, {log}, lost='retention', reason=...) records the range",
            "bring them back: restore the rows from an archive, then move",
        )
    elif offset > end.offset:
        cause = "the log was truncated, or belongs to other brokers" if move is None else move
        why = f"it is past the end of the log ({end.offset}): {cause}"
        choices = (
            f"go back: {call}, to={end.offset}, {log}, reason=...) reads what is written from now on",
            "check that these are the brokers that were read before",
        )
    else:
        why = (
            "the log was truncated before it and written again (the leader epoch stored with it is unknown or older): "
            "what was applied may not be what the log holds now"
        )
        choices = (
            f"accept: {call}, to={offset}, {log}, reason=...) continues here",
            f"read again: {call}, to=<offset before the truncation>, {log}, reason=...)",
        )
    return OffsetLost(partition, offset, why, choices=(*choices, elsewhere, stop))


def unknown(partition: Partition, offset: int) -> TopicUnknown:
    """The error for a topic that the brokers have not known for some seconds."""
    return TopicUnknown(
        partition,
        offset,
        f"topic {partition.topic!r} does not exist any more, or the brokers that answer do not know it; reading "
        "resumes by itself when they answer the topic's id again",
        choices=("create it again and decide then", "take it out of the pipeline's topics", "stop: leave it"),
    )
