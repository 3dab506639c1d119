"""Prints dead letters on a terminal: tables, one dead letter in full, and the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from seekpoint import remedies
from seekpoint.admin import DeadLetterCause, Edited, Planned
from seekpoint.cli.masking import masked, plain
from seekpoint.cli.output import answer, cut, field, moment, print_table
from seekpoint.ledger.dead_letters import DeadLetter, name_bytes
from seekpoint.records import State, readable, utc
from seekpoint.worker.replay.group_dead_letters import portable

NOTHING = "no open dead letters meet these conditions: there is nothing to do"
SHOWN = 2048  # bytes of a value that are shown without `--full`
NUMERIC = frozenset({"id", "partition", "offset", "tried", "replays"})
PLACE = ("id", "topic", "partition", "offset", "state")
_ERRORS = ("error", "traceback", "replay_error", "replay_traceback")


def as_line(dead_letter: DeadLetter, group: str, *leave_out: str) -> dict[str, Any]:
    """The dead letter for JSON, without passwords that its error may quote."""
    fields = portable(dead_letter, group)
    fields |= {name: masked(fields[name]) for name in _ERRORS if fields[name] is not None}
    return {name: value for name, value in fields.items() if name not in leave_out}


def as_cause(cause: DeadLetterCause, group: str) -> dict[str, Any]:
    """One cause's dead letters for JSON, without passwords that an error may quote."""
    times = {"first_at": cause.first_at.isoformat(), "last_at": cause.last_at.isoformat()}
    return asdict(cause) | times | {"topics": list(cause.topics), "error": masked(cause.error), "group": group}


def as_place(dead_letter: DeadLetter, **more: Any) -> dict[str, Any]:
    """The dead letter's id and place for JSON, with further fields."""
    return {name: getattr(dead_letter, name) for name in PLACE} | more


# -- tables -----------------------------------------------------------------------------------------------


def print_list(group: str, dead_letters: Iterable[DeadLetter]) -> None:
    """The dead letters of a group, one per line."""
    columns = (*PLACE, "cause", "tried", "replays", "dead-lettered at", "error")
    rows = (
        (
            *as_place(dead_letter).values(),
            dead_letter.cause,
            dead_letter.attempts,
            dead_letter.replays,
            moment(dead_letter.dead_lettered_at),
            cut(dead_letter.replay_error if dead_letter.replay_error and dead_letter.is_open else dead_letter.error),
        )
        for dead_letter in dead_letters
    )
    print_table(f"dead letters of {group}", columns, rows, numeric=NUMERIC)


def print_causes(group: str, causes: Iterable[DeadLetterCause]) -> None:
    """Print the number of the group's dead letters by cause, one cause per line."""
    columns = ("count", "cause", "exception", "line", "first at", "last at", "first id", "one of the errors")
    rows = (
        (
            *(cause.count, cause.cause, cause.exception or "", cause.error_line or ""),
            *(moment(cause.first_at), moment(cause.last_at), cause.first_id, cut(cause.error)),
        )
        for cause in causes
    )
    print_table(f"dead letters of {group} by cause", columns, rows, numeric=frozenset({"count", "first id"}))


def print_plan(plan: Iterable[Planned]) -> None:
    """Print the plan, one dead letter per line."""
    rows = ((*as_place(entry.dead_letter).values(), _would(entry)) for entry in plan)
    print_table("dry run", (*PLACE, "what would be done"), rows, numeric=NUMERIC)


def _would(entry: Planned) -> str:
    if entry.refusal is not None:
        return f"refused: {entry.refusal}"
    edited = f", with the value that {entry.dead_letter.edited_by} gave it" if entry.dead_letter.is_edited else ""
    return f"replayed{'' if entry.after is None else f' after {entry.after}, which has the same key'}{edited}"


def print_edited(edited: Edited, *, undo: bool, apply: bool, as_json: bool) -> None:
    """Print the edit, made or planned, with the value that a replay applies."""
    before, is_refused = edited.dead_letter, edited.refusal is not None
    report = as_place(before, refusal=edited.refusal, size=None if edited.value is None else len(edited.value))
    if edited.refusal is not None:
        lines = [f"refused: {masked(edited.refusal)}"]
    else:
        applied = "as the log has it" if undo else "edited"
        lines = [
            f"{'a replay applies' if apply else 'a replay would apply'} {before.id_and_place} {applied}: "
            + _one_line(edited.value),
            f"replay it: seekpoint dead-letters replay MODULE:PIPELINE {before.id} --apply"
            if apply
            else "dry run; --apply does it",
        ]
    answer({"applied": apply and not is_refused, "undo": undo, "edited": report}, *lines, as_json=as_json)


# -- one dead letter --------------------------------------------------------------------------------------


def shown(dead_letter: DeadLetter, group: str, *, full: bool) -> Iterator[str]:
    """The whole dead letter as lines; the value is cut unless ``full``."""
    yield f"dead letter {dead_letter.id} of group {plain(group)}: {dead_letter.state}"
    written = moment(utc(dead_letter.timestamp_ms)) or "no timestamp"
    yield field("record", f"{dead_letter.topic}/{dead_letter.partition} offset {dead_letter.offset}, {written}")
    yield field("topic id", str(dead_letter.topic_id))
    yield field("key", _one_line(dead_letter.key))
    for n, (name, value) in enumerate(dead_letter.headers):
        yield field("headers" if n == 0 else "", f"{_name(name)}: {_one_line(value)}")
    times = "once" if dead_letter.attempts == 1 else f"{dead_letter.attempts} times"
    state = "" if dead_letter.sqlstate is None else f", SQLSTATE {dead_letter.sqlstate}"
    yield field("cause", f"{dead_letter.cause}{state}; tried {times} by handler version {dead_letter.version}")
    yield field(
        "kept", f"{moment(dead_letter.dead_lettered_at)} by process {dead_letter.dead_lettered_by or 'unknown'}"
    )
    yield field("error", masked(dead_letter.error))
    if dead_letter.error_line is not None:
        yield field("line", dead_letter.error_line)
    yield from _block(dead_letter.traceback)
    if dead_letter.state is State.WAITING:
        yield field("retry at", moment(dead_letter.retry_at))
    if dead_letter.replays:
        yield field("replays", f"{dead_letter.replays}, the last one at {moment(dead_letter.replayed_at)}")
    if dead_letter.replay_error is not None:
        yield field("failed", masked(dead_letter.replay_error))
        yield from _block(dead_letter.replay_traceback)
    if dead_letter.closed_at is not None:
        why = f": {dead_letter.closed_reason}" if dead_letter.closed_reason else ""
        yield field("closed", f"{moment(dead_letter.closed_at)} by {dead_letter.closed_by or 'unknown'}{why}")
    yield from _value("value", dead_letter.value, dead_letter.state, full=full)
    if dead_letter.edited_at is not None:
        yield field(
            "edited", f"{moment(dead_letter.edited_at)} by {dead_letter.edited_by}: {dead_letter.edited_reason}"
        )
        yield from _value("applied" if dead_letter.state is State.REPLAYED else "to apply", dead_letter.edited_value,
                          dead_letter.state, full=full)  # fmt: skip


def choices(dead_letter: DeadLetter, group: str, first: DeadLetter | None) -> Iterator[str]:
    """The next steps for a dead letter, as lines; ``first`` is the first open dead letter of its key."""
    name = shlex.quote(group)
    back = (
        f"reset the partition to offset {dead_letter.offset} (later records are read again, too): "
        f"{remedies.reset_to(group, dead_letter.topic_partition, dead_letter.offset)}"
    )
    match dead_letter.state:
        case State.DEAD_LETTERED | State.BLOCKED:
            if first is not None and first.id != dead_letter.id and dead_letter.state is State.BLOCKED:
                yield f"replay or discard {first.id} (offset {first.offset}) first: this one is blocked behind it"
            else:
                yield "fix what the error names, then replay it: "
                yield f"  seekpoint dead-letters replay MODULE:PIPELINE {dead_letter.id} --apply"
            if dead_letter.is_edited:
                yield f"undo the edit: seekpoint dead-letters edit {dead_letter.id} --undo --reason '…' --apply"
            else:
                yield (
                    "give its record another value, then replay it: "
                    f"seekpoint dead-letters edit {dead_letter.id} --value-file FILE --reason '…' --apply"
                )
            yield f"close it without applying it: seekpoint dead-letters discard {dead_letter.id} --reason '…' --apply"
            yield f"keep a copy: seekpoint dead-letters export {name} -o dead-letters.jsonl"
        case State.WAITING:
            partition, retry_at = dead_letter.topic_partition, moment(dead_letter.retry_at)
            yield f"nothing: the owner of {partition} tries it again at {retry_at}"
            yield f"try it now: seekpoint dead-letters replay MODULE:PIPELINE {dead_letter.id} --apply"
            yield f"give it up: seekpoint dead-letters discard {dead_letter.id} --reason '…' --apply"
        case State.SKIPPED:
            yield f"its value was not kept; to apply it: {back}"
        case State.DISCARDED:
            yield f"it was discarded; to apply it anyway: {back}"
        case State.SUPERSEDED:
            yield "nothing: the partition was reset, so its record is read again"
        case State.REPLAYED:
            yield "nothing: it is applied"


def _value(name: str, value: bytes | None, state: State, *, full: bool) -> Iterator[str]:
    if value is None:
        yield field(name, "not kept" if state is State.SKIPPED else "null")
        return
    part = value if full else value[:SHOWN]
    is_cut = len(part) < len(value)
    hint = f", the first {SHOWN:,} here (--full shows all)" if is_cut else ""
    text = readable(part, is_cut=is_cut)
    yield field(name, f"{len(value):,} bytes{hint}, {'as bytes' if text is None else 'UTF-8'}:")
    yield from hex_dump(part) if text is None else (f"  {line}" for line in text.split("\n"))


def hex_dump(data: bytes) -> Iterator[str]:
    """Sixteen bytes per line: position, bytes, and the printable characters."""
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  {start:08x}  {row.hex(' '):<47}  {printable}"


def _one_line(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = readable(data)
    cut_off = f" … ({len(data):,} bytes)" if len(data) > 200 else ""
    if text is None:
        return f"0x{data[:100].hex()}{cut_off}"
    shown = text[:200].replace("\n", "\\n")  # an editor ends a file with a newline
    return f'"{shown}"{cut_off}'


def _name(header: str) -> str:
    return name_bytes(header).decode("utf-8", "backslashreplace")


def _block(text: str | None) -> Iterator[str]:
    for line in masked(text or "").rstrip().splitlines():
        yield f"            {plain(line)}"
