"""Prints a run's progress, and the tables at its end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

import page
from questions import GROUPS, Question
from report import RATE, Row


class Progress:
    """Shows what runs, and how long the rest may take, by the times of earlier runs (``usual``) and of this one."""

    def __init__(self, plan: Sequence[tuple[int, Question]], console: Console, usual: Mapping[str, float]) -> None:
        self._console, self._left = console, [question.name for _, question in plan]
        self._rounds = max((n for n, _ in plan), default=0)
        self._took: dict[str, float] = dict(usual)

    @contextmanager
    def asking(self, n: int, question: Question) -> Iterator[None]:
        """Show one question while it runs."""
        self._label = f"round {n} of {self._rounds}: {question.name}"
        began = time.monotonic()
        with self._console.status(f"{self._label} ({self.remaining()})"):
            yield
        self._took[question.name] = time.monotonic() - began
        self.skip()

    def skip(self) -> None:
        """Remove the next question from the plan."""
        self._left.pop(0)

    def tell(self, row: Row) -> None:
        """One line for a row."""
        if "skipped" in row:
            text = f"- {row['skipped']}"
        elif RATE in row:
            text = f"{row[RATE]:>11,} records/s"
        else:
            text = "  ".join(f"{k} {v}" for k, v in _figures(row).items())
        case = f" {row['case']}" if "case" in row else ""
        self._console.print(f"{self._label:<52}{case} {text}  ({self.remaining()})", markup=False, highlight=False)

    def remaining(self) -> str:
        """The time left, in words."""
        if not self._took:
            return "time left not known yet"
        usual = statistics.median(self._took.values())
        seconds = sum(self._took.get(name, usual) for name in self._left)
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


def durations(rows: Sequence[Row], runs: Sequence[Row], records: int) -> dict[str, float]:
    """Seconds of each question in these runs: medians, scaled to a run of ``records`` records."""
    sizes = {run["run"]: run["records"] for run in runs}
    seconds: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        if "whole_seconds" in row:
            # A question of few records takes as long in any run; one of the whole topic in proportion to its records.
            grows = row.get("records", 0) == sizes[row["run"]]
            factor = records / sizes[row["run"]] if grows else 1.0
            seconds.setdefault(row["question"], {})[row["run"], row["round"]] = row["whole_seconds"] * factor
    return {name: statistics.median(several.values()) for name, several in seconds.items()}


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    hidden = {"run", "round", "records", "busy_percent", "whole_seconds", "load_of_machine"}
    return {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool) and k not in hidden}


def tables(report: Row, console: Console) -> None:
    """The page's tables: one for each group that was measured, and the goals."""
    for group, about in GROUPS.items():
        if lines := [line for line in report["summary"] if line["group"] == group]:
            console.print(f"\n{about}", style="bold")
            console.print(Markdown(page.group_tables(lines)))
    measured = [goal for goal in report["goals"] if goal["figure"] is not None]
    if measured:
        console.print(Markdown(page.goals_table(measured)))
    if left := len(report["goals"]) - len(measured):
        console.print(f"{left} goals were not measured: they are in bench-report.json")
