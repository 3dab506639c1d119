"""The progress of a long command, on stderr: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

from time import monotonic
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from seekpoint.durations import format_duration

EVERY = 5.0  # seconds between two lines
UNCOUNTED = {"comparing"}  # steps with one statement for each table, and no records to count
SURE = 5.0  # seconds before a step's end is estimated: Spark has to start, and connections to be opened
KEYS = {"warming up"}  # steps that count keys


class Shown:
    """Shows a job's progress: call it with ``(step, done, total)`` in a ``with``; a ``total`` of 0 is unknown.

    ``unit`` is the noun for the counted things; with ``terminal_only`` nothing is shown unless stderr is a terminal.
    """

    def __init__(self, *, unit: str = "records", terminal_only: bool = False) -> None:
        console = Console(stderr=True)
        self._bar = _bar(console) if console.is_terminal else None
        self._unit, self._quiet = unit, terminal_only and self._bar is None
        self._heard: set[str] = set()
        self._what, self._before, self._began, self._reported_at = "", 0, monotonic(), -EVERY
        self._done = 0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._quiet:
            return
        now = monotonic()
        is_new = step != self._what
        if is_new or done < self._done:  # the rate must not include records of another process or table
            self._what, self._before, self._began = step, done, now
        self._done = done
        unit = "keys" if step in KEYS else self._unit
        text = "" if step in UNCOUNTED else progress_text(done, total, done - self._before, now - self._began, unit)
        if self._bar is not None:
            self._on_terminal(step, done, total, text)
        elif self._is_news(step, text, is_new=is_new, is_last=done == total > 0, now=now):
            self._reported_at = now
            self._heard.add(step)
            typer.echo(f"{step}: {text}" if text else step, err=True)

    def _is_news(self, step: str, text: str, *, is_new: bool, is_last: bool, now: float) -> bool:
        """Whether to print a line: a repeated step, such as a cut-over, is printed once, unless its numbers change."""
        if not text:
            return step not in self._heard
        return is_new or is_last or now - self._reported_at >= EVERY

    def say(self, sentence: str) -> None:
        """Print a line that the bar does not overwrite."""
        if self._bar is not None:
            self._bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self._quiet:
            typer.echo(sentence, err=True)

    def _on_terminal(self, step: str, done: int, total: int, text: str) -> None:
        assert self._bar is not None
        task = next(iter(self._bar.tasks), None)
        if task is None or (task.description, task.total is None) != (step, not total):
            if task is not None:  # Rich cannot make a known total unknown again
                self._bar.remove_task(task.id)
            self._bar.add_task(step, total=total or None, text=text)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total or None, text=text)


def progress_text(done: int, total: int, newly_done: int, seconds: float, unit: str = "records") -> str:
    """The amount done, the rate (``newly_done`` in ``seconds``) and the remaining time; empty if nothing is known.

    In the first seconds the remaining time is not estimated.
    """
    if not done and not total:
        return ""
    of = f" of {total:,}" if total > done else ""
    parts = [f"{done:,}{of} {unit}"]
    rate = newly_done / seconds if seconds > 0 else 0.0
    if rate >= 1:
        parts.append(f"{rate:,.0f}/s")
        if total > done and seconds >= SURE:
            parts.append(f"{format_duration((total - done) / rate)} left")
    return ", ".join(parts)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
