"""Prints tables, JSON, and text without control characters."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seekpoint.cli.masking import masked, plain
from seekpoint.durations import format_ago, format_duration

CELL = 100  # characters of an error in a table


def answer(report: Any, *lines: str, as_json: bool) -> None:
    """Print the report as JSON, or the lines."""
    if as_json:
        typer.echo(json.dumps(report, indent=2, default=_for_json))
    else:
        for line in lines:
            typer.echo(plain(line, keep="\t"))


@contextmanager
def said_after(seconds: float, text: str) -> Iterator[None]:
    """Print a line on stderr if the block takes longer than ``seconds``."""
    timer = threading.Timer(seconds, typer.echo, [text], {"err": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _for_json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Collection[str]
) -> None:
    """Print rows without interpreting markup, and without control characters; numbers are aligned to the right.

    Never cuts lines: in a pipe or a narrow terminal, offsets and ids must stay complete.
    """
    heading = None if title is None else Text(plain(title))
    table = Table(title=heading, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in numeric else "left")
    for row in rows:
        table.add_row(*(Text("" if cell is None else plain(str(cell))) for cell in row))
    console = Console()
    width = console.measure(table, options=console.options.update(max_width=100_000)).maximum
    console.width = max(console.width, width)
    console.print(table)


def moment(time: datetime | None) -> str:
    """The time in UTC, to the second; empty without a time."""
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(time: datetime | None) -> str:
    """How long ago a time was; empty without a time."""
    return "" if time is None else format_ago(time)


def headroom(records: int | None, seconds: float | None) -> str:
    """The time until retention reaches a position, or the records until then; empty if both are unknown."""
    if seconds is not None:
        return format_duration(seconds)
    return "" if records is None else f"{records} records"


def field(name: str, text: str) -> str:
    """A line of a description: a name and its text."""
    return f"  {name:<9} {plain(text)}"


def cut(error: str | None, most: int = CELL) -> str:
    """The first ``most`` characters of an error, without passwords."""
    line = masked(error or "").replace("\n", " ")
    return line if len(line) <= most else f"{line[: most - 1]}…"
