"""The consequences of a reset, in words: the offsets that are read again or never, and the effect on tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from seekpoint.admin.purges import by_state
from seekpoint.admin.reset_plan import Reset
from seekpoint.records import State, numbered


def consequences(
    resets: Sequence[Reset],
    group: Row[Any],
    runs: Sequence[Row[Any]],
    dead: Mapping[str, int],
    doubt: str | None,
    *,
    twice: Sequence[str],
) -> tuple[str, ...]:
    """The consequences of a reset, one sentence each.

    ``group`` is the group's row, with its pipeline's declaration; ``runs`` are its open reloads; ``dead`` has the
    numbers of dead letters from the targets on, by state. ``twice`` are tables whose sums would count records twice.
    """
    moves = [reset for reset in resets if reset.direction != "none"]
    sentences = [sentence for reset in moves for sentence in _of_partition(reset)]
    declared = group.declared or {}
    backward = sorted({reset.topic for reset in moves if reset.direction == "backward"})
    sentences += [sentence for topic in backward for sentence in _of_topic(topic, declared.get(topic))]
    if twice:
        sentences.append(
            f"sums in {', '.join(twice)} would count records twice: refused, unless --rebuild MODULE:NAME rebuilds the "
            "pipeline's tables, as of the targets, in the same transaction"
        )
    sentences += _of_dead_letters(dead)
    if moves:
        for run in runs:
            sentences.append(
                f"{run.strategy} run {run.id} ({run.state}, driven by {run.driver}) is open: the reset ends it"
            )
        if group.paused:
            sentences.append(
                f"the group is paused by {group.paused_by or 'unknown'}: its workers read from there once it is resumed"
            )
    if doubt is not None:
        sentences.append(doubt)
    return tuple(dict.fromkeys(sentences))


def _of_partition(reset: Reset) -> Iterator[str]:
    move, count = f"{reset.topic_partition} {reset.position} → {reset.target}", abs(reset.target - reset.position)
    if reset.direction == "forward":
        if reset.is_exact:
            yield f"{move}: the failed record is skipped, and recorded as a lost range with reason operator"
        else:
            yield (
                f"{move}: {_offsets(count)} not read; those not applied before the reset are recorded as a lost range "
                "with reason operator"
            )
    elif reset.is_past_end and reset.log is not None:
        yield f"{move}: the log ends at {reset.log[1]}, before the position; records written from there on are read"
    elif count == 0:  # --to-current
        yield f"{reset.topic_partition} → {reset.target}: records that workers apply until the reset are read again"
    else:
        yield f"{move}: {_offsets(count)} read again; records that are applied until the reset are read again, too"
    if reset.gone:
        effect = "records them as a lost range" if reset.direction == "forward" else "does not read them again"
        yield (
            f"{reset.topic_partition}: the log begins at {reset.target}: up to {_offsets(reset.gone)} gone; --apply "
            f"needs --accept-loss, and {effect}"
        )


def _offsets(count: int) -> str:
    return "1 offset is" if count == 1 else f"{count:,} offsets are"


def _of_dead_letters(dead: Mapping[str, int]) -> Iterator[str]:
    if dead:
        yield f"{numbered(sum(dead.values()), 'dead letter')} will be superseded, and read again: {by_state(dead)}"
    if given_up := sum(dead.get(state.value, 0) for state in (State.DISCARDED, State.SKIPPED)):
        yield f"{given_up:,} of these records were given up (discarded or skipped), and are applied again"


def _of_topic(topic: str, declared: Any) -> Iterator[str]:
    """The effect on existing rows if a topic's records are read again."""
    if not declared:
        yield f"the effect on tables is not known: no worker has declared how it writes the records of {topic}"
        return
    for sink in declared["sinks"]:
        tables = ", ".join(sink["tables"])
        if sink.get("aggregates"):
            yield f"{tables} ({sink['kind']}) adds each record that is read again"
        elif "guarded" not in sink:
            yield (
                f"{tables} ({sink['kind']}) will have two rows of each record that is read again: delete the existing "
                "ones first, or rebuild the table with a reload"
            )
        elif sink.get("keeps_first"):
            yield f"{tables} ({sink['kind']}) keeps the first row of each key that it has"
        elif sink["guarded"]:
            yield f"{tables} ({sink['kind']}) keeps the newest row of each key"
        else:
            yield (
                f"{tables} ({sink['kind']}) has older values until the records are read again: an Upsert with "
                "offset_column= keeps newer ones"
            )
    if declared["handler"] is not None:
        yield f"the handler {declared['handler']} runs again for these records"
