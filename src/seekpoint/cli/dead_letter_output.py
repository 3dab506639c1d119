"""Dead letters on a terminal: tables, one dead letter in full, and what can be done next."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from seekpoint import remedies
from seekpoint.admin import DeadLetterCause, Planned, portable
from seekpoint.cli.errors import masked, plain
from seekpoint.cli.output import cut, field, moment, print_table
from seekpoint.ledger.dead_letters import DeadLetter, name_bytes
from seekpoint.records import State, utc

NOTHING = "no open dead letters meet these conditions: there is nothing to do"
SHOWN = 2048  # bytes of a value that are shown without `--full`
NUMERIC = frozenset({"id", "partition", "offset", "tried", "replays"})
PLACE = ("id", "topic", "partition", "offset", "state")
_ERRORS = ("error", "traceback", "replay_error", "replay_traceback")


def as_line(dead_letter: DeadLetter, group: str, *leave_out: str) -> dict[str, Any]:
    """The dead letter for machines; no password that an error may quote."""
    found = portable(dead_letter, group)
    found |= {name: masked(found[name]) for name in _ERRORS if found[name] is not None}
    return {name: value for name, value in found.items() if name not in leave_out}


def as_cause(one: DeadLetterCause, group: str) -> dict[str, Any]:
    """The dead letters of one cause, for machines; no password that an error may quote."""
    times = {"first_at": one.first_at.isoformat(), "last_at": one.last_at.isoformat()}
    return asdict(one) | times | {"topics": list(one.topics), "error": masked(one.error), "group": group}


def as_place(dead_letter: DeadLetter, **more: Any) -> dict[str, Any]:
    """Which dead letter it is, for machines, and what is to be said of it."""
    return {name: getattr(dead_letter, name) for name in PLACE} | more


# -- tables -----------------------------------------------------------------------------------------------


def print_list(group: str, dead_letters: Iterable[DeadLetter]) -> None:
    """The dead letters of a group, one per line."""
    columns = (*PLACE, "cause", "tried", "replays", "dead-lettered at", "error")
    rows = (
        (
            *as_place(one).values(),
            one.cause,
            one.attempts,
            one.replays,
            moment(one.dead_lettered_at),
            cut(one.replay_error if one.replay_error and one.is_open else one.error),
        )
        for one in dead_letters
    )
    print_table(f"dead letters of {group}", columns, rows, numeric=NUMERIC)


def print_causes(group: str, causes: Iterable[DeadLetterCause]) -> None:
    """How many dead letters of the group failed in each way, one way per line."""
    columns = ("count", "cause", "exception", "line", "first at", "last at", "first id", "one of the errors")
    rows = (
        (
            *(one.count, one.cause, one.exception or "", one.error_line or ""),
            *(moment(one.first_at), moment(one.last_at), one.first_id, cut(one.error)),
        )
        for one in causes
    )
    print_table(f"dead letters of {group} by cause", columns, rows, numeric=frozenset({"count", "first id"}))


def print_plan(plan: Iterable[Planned]) -> None:
    """What would be done, one dead letter per line."""
    rows = ((*as_place(one.dead_letter).values(), _would(one)) for one in plan)
    print_table("dry run", (*PLACE, "what would be done"), rows, numeric=NUMERIC)


def _would(one: Planned) -> str:
    if one.refusal is not None:
        return f"refused: {one.refusal}"
    return "replayed" if one.after is None else f"replayed after {one.after}, whose key it has"


# -- one dead letter --------------------------------------------------------------------------------------


def shown(dead_letter: DeadLetter, group: str, *, full: bool) -> Iterator[str]:
    """The whole dead letter, line by line; the value is cut unless ``full``."""
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
    if dead_letter.replays:
        yield field("replays", f"{dead_letter.replays}, the last one at {moment(dead_letter.replayed_at)}")
    if dead_letter.replay_error is not None:
        yield field("failed", masked(dead_letter.replay_error))
        yield from _block(dead_letter.replay_traceback)
    if dead_letter.closed_at is not None:
        why = f": {dead_letter.closed_reason}" if dead_letter.closed_reason else ""
        yield field("closed", f"{moment(dead_letter.closed_at)} by {dead_letter.closed_by or 'unknown'}{why}")
    yield from _value(dead_letter, full=full)


def choices(dead_letter: DeadLetter, group: str, first: DeadLetter | None) -> Iterator[str]:
    """What can be done about it, as lines; ``first`` is the first open dead letter of its key."""
    name = shlex.quote(group)
    back = (
        f"reset the partition to offset {dead_letter.offset}, and what comes after it is read again, too: "
        f"{remedies.reset_to(group, dead_letter.at, dead_letter.offset)}"
    )
    match dead_letter.state:
        case State.DEAD_LETTERED | State.BLOCKED:
            if first is not None and first.id != dead_letter.id and dead_letter.state is State.BLOCKED:
                yield f"replay or discard {first.id} first: it is blocked behind it (offset {first.offset})"
            else:
                yield "fix what the error names, then replay it: "
                yield f"  seekpoint dead-letters replay MODULE:PIPELINE {dead_letter.id} --apply"
            yield f"close it unapplied: seekpoint dead-letters discard {dead_letter.id} --reason '…' --apply"
            yield f"keep a copy: seekpoint dead-letters export {name} -o dead-letters.jsonl"
        case State.SKIPPED:
            yield f"its value was not kept; to apply it, {back}"
        case State.DISCARDED:
            yield f"it was discarded; to apply it all the same, {back}"
        case State.SUPERSEDED:
            yield "nothing: the partition was reset, and its record is read again"
        case State.REPLAYED:
            yield "nothing: it is applied"


def _value(dead_letter: DeadLetter, *, full: bool) -> Iterator[str]:
    value = dead_letter.value
    if value is None:
        yield field("value", "not kept" if dead_letter.state is State.SKIPPED else "null")
        return
    part = value if full else value[:SHOWN]
    is_cut = len(part) < len(value)
    rest = f", the first {SHOWN:,} here (--full shows all)" if is_cut else ""
    text = _readable(part, is_cut=is_cut)
    yield field("value", f"{len(value):,} bytes{rest}, {'as bytes' if text is None else 'UTF-8'}:")
    yield from hex_dump(part) if text is None else (f"  {line}" for line in text.split("\n"))


def hex_dump(data: bytes) -> Iterator[str]:
    """Sixteen bytes per line: where, what, and the printable ones."""
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  {at:08x}  {row.hex(' '):<47}  {seen}"


def _readable(data: bytes, *, is_cut: bool = False) -> str | None:
    """The bytes as text, if a terminal would only show it; of data that ``is_cut``, half a character is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\t" for char in text) else None


def _one_line(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = _readable(data)
    cut_off = f" … ({len(data):,} bytes)" if len(data) > 200 else ""
    if text is None or "\n" in text:
        return f"0x{data[:100].hex()}{cut_off}"
    return f'"{text[:200]}"{cut_off}'


def _name(header: str) -> str:
    return name_bytes(header).decode("utf-8", "backslashreplace")


def _block(text: str | None) -> Iterator[str]:
    for line in masked(text or "").rstrip().splitlines():
        yield f"            {plain(line)}"
