"""What follows from a reset, in words: what is read again or not at all, and what becomes of the tables' rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from seekpoint.admin.reset_plan import Reset
from seekpoint.records import State


def consequences(
    resets: Sequence[Reset], group: Row[Any], runs: Sequence[Row[Any]], dead: Mapping[str, int], doubt: str | None
) -> tuple[str, ...]:
    """One sentence each.

    ``group`` is the group's row, with what its pipeline declares; ``runs`` its open reloads; ``dead`` the numbers of
    dead letters from the targets on, by state.
    """
    moves = [reset for reset in resets if reset.direction != "none"]
    found = [said for reset in moves for said in _of_partition(reset)]
    declared = group.declared or {}
    backward = sorted({reset.topic for reset in moves if reset.direction == "backward"})
    found += [said for topic in backward for said in _of_topic(topic, declared.get(topic))]
    found += _of_dead_letters(dead)
    if moves:
        for run in runs:
            found.append(
                f"{run.strategy} run {run.id} ({run.state}, driven by {run.driver}) is open: the reset ends it"
            )
        if group.paused:
            found.append(
                f"the group is paused by {group.paused_by or 'unknown'}: its workers read from there once resumed"
            )
    if doubt is not None:
        found.append(doubt)
    return tuple(dict.fromkeys(found))


def _of_partition(reset: Reset) -> Iterator[str]:
    here, many = f"{reset.at} {reset.position} → {reset.target}", abs(reset.target - reset.position)
    if reset.direction == "forward":
        if reset.is_exact:
            yield f"{here}: the record that failed is skipped; it is kept as a lost range, reason operator"
        else:
            yield (
                f"{here}: {_offsets(many)} not read; those from the position at that time are kept as a lost range, "
                "reason operator"
            )
    elif reset.is_past_end and reset.log is not None:
        yield f"{here}: the log ends at {reset.log[1]}, before the position; what is written from there on is read"
    elif many == 0:  # --to-current
        yield f"{reset.at} → {reset.target}: what workers apply until this is carried out is read again"
    else:
        yield f"{here}: {_offsets(many)} read again, and what is applied until then"
    if reset.gone:
        kept = "keeps them as a lost range" if reset.direction == "forward" else "does not read them again"
        yield (
            f"{reset.at}: the log begins at {reset.target}: up to {_offsets(reset.gone)} gone; --apply needs "
            f"--accept-loss, and {kept}"
        )


def _offsets(many: int) -> str:
    return "1 offset is" if many == 1 else f"{many:,} offsets are"


def _of_dead_letters(dead: Mapping[str, int]) -> Iterator[str]:
    if dead:
        by_state = ", ".join(f"{many:,} {state}" for state, many in sorted(dead.items()))
        yield f"{sum(dead.values()):,} dead letters become superseded, and their records are read again: {by_state}"
    if given_up := sum(dead.get(state.value, 0) for state in (State.DISCARDED, State.SKIPPED)):
        yield f"{given_up:,} of these records were given up (discarded or skipped), and are applied again"


def _of_topic(topic: str, declared: Any) -> Iterator[str]:
    """What reading records of a topic again does to rows that are there."""
    if not declared:
        yield f"what writes the records of {topic} is not known: no worker has declared it"
        return
    for sink in declared["sinks"]:
        tables = ", ".join(sink["tables"])
        if "guarded" not in sink:
            yield (
                f"{tables} ({sink['kind']}) will have two rows of each record that is read again: delete the first "
                "ones before, or rebuild the table with a reload"
            )
        elif sink["guarded"]:
            yield f"{tables} ({sink['kind']}) keeps the newest row of each key"
        else:
            yield (
                f"{tables} ({sink['kind']}) has older values until the records are read again: an Upsert with "
                "offset_column= keeps newer ones"
            )
    if declared["handler"] is not None:
        yield f"the handler {declared['handler']} runs again for these records"
