"""Dead letters on a terminal: tables, one whole letter, and what can be done next. Nothing in them reaches it raw."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seekpoint.admin import Planned, portable
from seekpoint.cli.errors import masked
from seekpoint.ledger.dead_letters import DeadLetter, name_bytes
from seekpoint.records import State, utc

SHOWN = 2048  # bytes of a value that are shown, unless the whole is asked for
CELL = 100  # characters of an error in a table
NUMERIC = frozenset({"id", "partition", "offset", "tried", "replays"})
_ERRORS = ("error", "traceback", "replay_error", "replay_traceback")


def as_line(dead_letter: DeadLetter, group: str, *leave_out: str) -> dict[str, Any]:
    """The letter for machines; no password that an error may quote."""
    found = portable(dead_letter, group)
    for name in _ERRORS:
        if found[name] is not None:
            found[name] = masked(found[name])
    return {name: value for name, value in found.items() if name not in leave_out}


def as_place(dead_letter: DeadLetter, **more: Any) -> dict[str, Any]:
    """Which letter it is, for machines, and what is to be said of it."""
    where = {
        "id": dead_letter.id,
        "topic": dead_letter.topic,
        "partition": dead_letter.partition,
        "offset": dead_letter.offset,
    }
    return where | {"state": dead_letter.state.value} | more


# -- tables -----------------------------------------------------------------------------------------------


def print_whole(table: Table) -> None:
    """Print it as wide as it is: in a pipe or a narrow terminal, offsets and ids must not be cut."""
    console = Console()
    whole = console.measure(table, options=console.options.update(max_width=100_000)).maximum
    console.width = max(console.width, whole)
    console.print(table)


def table(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Collection[str] = NUMERIC,
) -> Table:
    """A table whose cells are shown as they are: no markup, no control characters; numbers to the right."""
    heading = None if title is None else Text(plain(title))
    made = Table(title=heading, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, justify="right" if name in numeric else "left")
    for row in rows:
        made.add_row(*(Text(plain("" if cell is None else str(cell))) for cell in row))
    return made


def listed(group: str, dead_letters: Iterable[DeadLetter]) -> Table:
    """The letters of a group, one per line."""
    columns = ("id", "topic", "partition", "offset", "state", "cause", "tried", "replays", "dead-lettered at", "error")
    return table(
        f"dead letters of {group}",
        columns,
        (
            (
                *(one.id, one.topic, one.partition, one.offset, one.state, one.cause, one.attempts, one.replays),
                moment(one.dead_lettered_at),
                cut(one.replay_error if one.replay_error and one.is_open else one.error),
            )
            for one in dead_letters
        ),
    )


def planned(title: str, plan: Iterable[Planned]) -> Table:
    """What would be done, one letter per line."""
    return table(
        title,
        ("id", "topic", "partition", "offset", "state", "what would be done"),
        (
            (
                *(
                    one.dead_letter.id,
                    one.dead_letter.topic,
                    one.dead_letter.partition,
                    one.dead_letter.offset,
                    one.dead_letter.state,
                ),
                _would(one),
            )
            for one in plan
        ),
    )


def _would(one: Planned) -> str:
    if one.refusal is not None:
        return f"refused: {one.refusal}"
    return "replayed" if one.after is None else f"replayed after {one.after}, whose key it has"


# -- one letter -------------------------------------------------------------------------------------------


def shown(dead_letter: DeadLetter, group: str, *, full: bool) -> Iterator[str]:
    """The whole letter, line by line; the value is cut unless ``full``."""
    yield f"dead letter {dead_letter.id} of group {plain(group)}: {dead_letter.state.value}"
    written = moment(utc(dead_letter.timestamp_ms)) or "no timestamp"
    yield _field("record", f"{plain(dead_letter.topic)}/{dead_letter.partition} offset {dead_letter.offset}, {written}")
    yield _field("topic id", str(dead_letter.topic_id))
    yield _field("key", _one_line(dead_letter.key))
    for n, (name, value) in enumerate(dead_letter.headers):
        yield _field("headers" if n == 0 else "", f"{_name(name)}: {_one_line(value)}")
    times = "once" if dead_letter.attempts == 1 else f"{dead_letter.attempts} times"
    state = "" if dead_letter.sqlstate is None else f", SQLSTATE {plain(dead_letter.sqlstate)}"
    yield _field("cause", f"{dead_letter.cause.value}{state}; tried {times} by handler version {dead_letter.version}")
    yield _field(
        "kept", f"{moment(dead_letter.dead_lettered_at)} by process {dead_letter.dead_lettered_by or 'unknown'}"
    )
    yield _field("error", plain(masked(dead_letter.error)))
    yield from _block(dead_letter.traceback)
    if dead_letter.replays:
        yield _field("replays", f"{dead_letter.replays}, the last one at {moment(dead_letter.replayed_at)}")
    if dead_letter.replay_error is not None:
        yield _field("failed", plain(masked(dead_letter.replay_error)))
        yield from _block(dead_letter.replay_traceback)
    if dead_letter.closed_at is not None:
        why = f": {plain(dead_letter.closed_reason)}" if dead_letter.closed_reason else ""
        yield _field("closed", f"{moment(dead_letter.closed_at)} by {plain(dead_letter.closed_by or 'unknown')}{why}")
    yield from _value(dead_letter, full=full)


def choices(dead_letter: DeadLetter, group: str, first: DeadLetter | None) -> Iterator[str]:
    """What can be done about it, as lines; ``first`` is the first open letter of its key."""
    name = shlex.quote(group)
    back = f"move the partition back to offset {dead_letter.offset}: what lies behind is read again, too"
    match dead_letter.state:
        case State.DEAD_LETTERED | State.BLOCKED:
            if first is not None and first.id != dead_letter.id and dead_letter.state is State.BLOCKED:
                yield f"replay or discard {first.id} first: it is blocked behind that one (offset {first.offset})"
            else:
                yield "fix what the error names, then replay it: "
                yield f"  seekpoint dead-letters replay MODULE:PIPELINE {dead_letter.id} --apply"
            yield f"give it up: seekpoint dead-letters discard {dead_letter.id} --reason '…' --apply"
            yield f"keep a copy: seekpoint dead-letters export {name} -o dead-letters.jsonl"
        case State.SKIPPED:
            yield f"its value was not kept; to apply it, {back}"
        case State.DISCARDED:
            yield f"it was given up; to apply it all the same, {back}"
        case State.SUPERSEDED:
            yield "nothing: the partition was moved back, and its record is read again"
        case State.REPLAYED:
            yield "nothing: it is applied"


def _value(dead_letter: DeadLetter, *, full: bool) -> Iterator[str]:
    value = dead_letter.value
    if value is None:
        yield _field("value", "not kept" if dead_letter.state is State.SKIPPED else "null")
        return
    part = value if full else value[:SHOWN]
    rest = f", the first {SHOWN:,} here (--full shows all)" if len(part) < len(value) else ""
    text = _readable(part if full else _whole_characters(part))
    kind = "as bytes" if text is None else "UTF-8"
    yield _field("value", f"{len(value):,} bytes{rest}, {kind}:")
    lines = hex_dump(part) if text is None else (f"  {line}" for line in text.split("\n"))
    yield from lines


def hex_dump(data: bytes) -> Iterator[str]:
    """Sixteen bytes per line: where, what, and the printable ones."""
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  {at:08x}  {row.hex(' '):<47}  {seen}"


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character that was cut off."""
    for end in range(len(data), max(len(data) - 4, 0), -1):
        if data[end - 1] < 0x80:
            return data[:end]
        if data[end - 1] >= 0xC0:  # the first byte of a character: is all of it there?
            width = 2 if data[end - 1] < 0xE0 else 3 if data[end - 1] < 0xF0 else 4
            return data if len(data) - end + 1 == width else data[: end - 1]
    return data


def _readable(data: bytes) -> str | None:
    """The bytes as text, if they are text that a terminal shows and does not obey."""
    try:
        text = data.decode()
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
    return plain(name_bytes(header).decode("utf-8", "backslashreplace"))


def _field(name: str, said: str) -> str:
    return f"  {name:<9} {said}"


def _block(text: str | None) -> Iterator[str]:
    for line in masked(text or "").rstrip().splitlines():
        yield f"            {plain(line)}"


def cut(text: str) -> str:
    """The beginning of an error, without passwords."""
    told = masked(text)
    return told if len(told) <= CELL else f"{told[: CELL - 1]}…"


def numbered(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def plain(text: str) -> str:
    """The text with everything written out that a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def moment(at: datetime | None) -> str:
    """A time, to the second; empty where there is none."""
    return "" if at is None else at.isoformat(" ", "seconds")
