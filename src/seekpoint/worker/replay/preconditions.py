"""Checks which dead letters may be replayed, by which pipeline and in which order; explains refusals. No I/O."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from seekpoint.errors import ConfigError, Fenced, GroupPaused, HandlerOutdated
from seekpoint.kafka.client import Unreadable
from seekpoint.ledger import Position
from seekpoint.ledger.dead_letters import DeadLetter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Cause, State


def keeps_order(pipeline: Pipeline, dead_letter: DeadLetter) -> bool:
    """Whether this key's records are replayed in order: the pipeline keeps key order, or the record was blocked."""
    return dead_letter.key is not None and (pipeline.keep_key_order or dead_letter.state is State.BLOCKED)


def check_group(group: Row[Any], pipeline: Pipeline, *, while_paused: bool) -> None:
    """Raise unless the group's row lets this handler write."""
    if group.version > pipeline.version:
        raise HandlerOutdated(
            f"group {pipeline.group!r} is at handler version {group.version}, this pipeline is version "
            f"{pipeline.version}: replay with version {group.version}"
        )
    if group.version < pipeline.version:
        raise ConfigError(
            f"group {pipeline.group!r} is at handler version {group.version}, this pipeline is version "
            f"{pipeline.version}: start a worker of version {pipeline.version} first, which raises the group's; two "
            "versions must not write at the same time"
        )
    if group.paused and not while_paused:  # the operator who paused the group expects that nothing writes to its tables
        raise GroupPaused(pipeline.group, group.paused_reason, group.paused_by)


def check_topic(dead_letter: DeadLetter, pipeline: Pipeline) -> None:
    """Raise ConfigError if the pipeline has no codec for the dead letter."""
    if dead_letter.topic not in pipeline.codecs:
        raise ConfigError(
            f"dead letter {dead_letter.id} is of topic {dead_letter.topic!r}, which {pipeline!r} does not read: "
            "replay it with a pipeline that does, or choose other dead letters with topic="
        )


def replay_refusal(dead_letter: DeadLetter, position: Position | None) -> Fenced | None:
    """Why a dead letter may not be replayed, by its state and its partition's position; None if it may."""
    name = f"dead letter {dead_letter.id_and_place}"
    if not dead_letter.is_open:
        return closed(dead_letter)
    if position is not None and position.topic_id != dead_letter.topic_id:
        return Fenced(
            f"{name} is from an earlier topic {dead_letter.topic!r}, which was deleted and created again: its offset "
            "now belongs to another record, and a handler could confuse the two. Export it and produce it again, or "
            "discard it"
        )
    if position is not None and position.next_offset <= dead_letter.offset:
        return Fenced(f"{name}: the position is before it, at {position.next_offset}, so it will be read again")
    if dead_letter.cause is Cause.DECODE and dead_letter.error.startswith(f"{Unreadable.__name__}: "):
        return Fenced(
            # The stored error quotes the headers, and refusals must not show contents of records.
            f"{name} is incomplete: its headers cannot be read, and were not stored. Produce the record again with "
            "other headers, and discard this one"
        )
    return None


def not_first_of_key(dead_letter: DeadLetter, first: DeadLetter | None) -> Fenced:
    """The refusal of a dead letter that is not the first of its key."""
    other = "an earlier one of its key" if first is None else f"{first.id} (offset {first.offset})"
    return Fenced(
        f"dead letter {dead_letter.id_and_place} comes after {other}, and records of one key are applied in order: "
        f"replay or discard {'that one' if first is None else first.id} first"
    )


def again(dead_letter: DeadLetter) -> Fenced:
    """The refusal of a dead letter that was dead-lettered again after it was seen."""
    time = f"{dead_letter.dead_lettered_at:%Y-%m-%d %H:%M:%S %Z}"
    return Fenced(
        f"dead letter {dead_letter.id_and_place} was read again and dead-lettered at {time}: look at it first"
    )


def not_edited(dead_letter: DeadLetter) -> Fenced:
    """The refusal to undo the edit of a dead letter that was not edited."""
    return Fenced(f"dead letter {dead_letter.id_and_place} is not edited: a replay applies it as the log has it")


def closed(dead_letter: DeadLetter) -> Fenced:
    """The refusal to do anything with a dead letter that is not open, with who closed it, when and why."""
    name = f"dead letter {dead_letter.id_and_place}"
    if dead_letter.state is State.SKIPPED:
        return Fenced(
            f"{name} was skipped, and its value is not kept: to apply the record, reset the partition to "
            f"{dead_letter.offset}; that reads everything after it again, too"
        )
    when = "" if dead_letter.closed_at is None else f" at {dead_letter.closed_at:%Y-%m-%d %H:%M:%S %Z}"
    why = f": {dead_letter.closed_reason}" if dead_letter.closed_reason else ""
    return Fenced(f"{name} was {dead_letter.state.value} by {dead_letter.closed_by or 'unknown'}{when}{why}")
