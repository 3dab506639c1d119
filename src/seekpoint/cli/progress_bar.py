"""How far a long command is, on stderr: a bar where that is a terminal, a line every few seconds where it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY = 5.0  # seconds between two lines
UNCOUNTED = {"comparing"}  # one statement for each table: there are no records to count
SURE = 5.0  # seconds of a step before which its rate says nothing of its end: Spark starts, connections are made
KEYS = {"warming up"}  # what is counted in keys, not in records


class Shown:
    """What a job calls with ``(what, done, total)``, in records (or keys); ``total`` 0: not known. For a ``with``.

    With ``as_json`` nothing is shown, unless stderr is a terminal.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        console = Console(stderr=True)
        self._bar = _bar(console) if console.is_terminal else None
        self._quiet = as_json and self._bar is None
        self._task: TaskID | None = None
        self._heard: set[str] = set()
        self._what, self._before, self._began, self._told_at = "", 0, monotonic(), -EVERY
        self._done = 0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._quiet:
            return
        now = monotonic()
        is_new = what != self._what
        if is_new or done < self._done:  # what was done by then was done by others, or before; or of another table
            self._what, self._before, self._began = what, done, now
        self._done = done
        unit = "keys" if what in KEYS else "records"
        said = "" if what in UNCOUNTED else told(done, total, done - self._before, now - self._began, unit)
        if self._bar is not None:
            self._on_terminal(what, done, total, said)
        elif self._is_news(what, said, is_new=is_new, is_last=done == total > 0, now=now):
            self._told_at = now
            self._heard.add(what)
            typer.echo(f"{what}: {said}" if said else what, err=True)

    def _is_news(self, what: str, said: str, *, is_new: bool, is_last: bool, now: float) -> bool:
        """A step that repeats, such as a retried cut-over, is reported once, or with its numbers."""
        if not said:
            return what not in self._heard
        return is_new or is_last or now - self._told_at >= EVERY

    def say(self, sentence: str) -> None:
        """A line of its own, which stays."""
        if self._bar is not None:
            self._bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self._quiet:
            typer.echo(sentence, err=True)

    def _on_terminal(self, what: str, done: int, total: int, said: str) -> None:
        assert self._bar is not None
        if self._task is None:
            self._task = self._bar.add_task(what, said=said)
        self._bar.update(self._task, description=what, completed=done, total=total or None, said=said)


def told(done: int, total: int, here: int, seconds: float, unit: str = "records") -> str:
    """How much of it, how fast (so many ``here``), how long it will take at that rate; empty if nothing is known.

    The rest of the time is not estimated in the first seconds.
    """
    if not done and not total:
        return ""
    of = f" of {total:,}" if total > done else ""
    parts = [f"{done:,}{of} {unit}"]
    rate = here / seconds if seconds > 0 else 0.0
    if rate >= 1:
        parts.append(f"{rate:,.0f}/s")
        if total > done and seconds >= SURE:
            parts.append(f"{lasting((total - done) / rate)} left")
    return ", ".join(parts)


def lasting(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def ago_of(at: datetime | None) -> str:
    """How long ago a time was; empty where there is none."""
    return "" if at is None else f"{lasting((datetime.now(UTC) - at).total_seconds())} ago"


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
