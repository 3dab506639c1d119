"""What a run says while it lasts, and the tables at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from questions import GROUPS, Question
from report import RATE, Row

_MARK = {True: "met", False: "[bold red]missed[/]", None: "not said"}


class Progress:
    """Says what runs, and how long the rest may take: as long as it took before."""

    def __init__(self, plan: Sequence[tuple[int, Question]], console: Console) -> None:
        self._console, self._left = console, [question.name for _, question in plan]
        self._rounds = max((n for n, _ in plan), default=0)
        self._took: dict[str, float] = {}

    @contextmanager
    def asking(self, n: int, question: Question) -> Iterator[None]:
        """While one question runs."""
        self._label = f"round {n} of {self._rounds}: {question.name}"
        began = time.monotonic()
        with self._console.status(f"{self._label} ({self._remaining()})"):
            yield
        self._took[question.name] = time.monotonic() - began
        self.skip()

    def skip(self) -> None:
        """One question less to come."""
        self._left.pop(0)

    def tell(self, row: Row) -> None:
        """One line for a row."""
        if "skipped" in row:
            said = f"- {row['skipped']}"
        elif RATE in row:
            said = f"{row[RATE]:>11,} records/s"
        else:
            said = "  ".join(f"{k} {v}" for k, v in _figures(row).items())
        case = f" {row['case']}" if "case" in row else ""
        self._console.print(f"{self._label:<52}{case} {said}  ({self._remaining()})", markup=False, highlight=False)

    def _remaining(self) -> str:
        if not self._took:
            return "time left not known yet"
        usual = sum(self._took.values()) / len(self._took)
        seconds = sum(self._took.get(name, usual) for name in self._left)
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    hidden = {"run", "round", "records", "busy_percent", "whole_seconds", "load_of_machine"}
    return {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool) and k not in hidden}


def tables(report: Row, console: Console) -> None:
    """A table for each group, and the goals."""
    runs = report["runs"]
    servers = ", ".join(runs[-1]["servers"]) if runs else ""
    for group, about in GROUPS.items():
        lines = [line for line in report["summary"] if line["group"] == group]
        if any(RATE in line or "skipped" in line for line in lines):
            console.print(_rates(lines, f"{about}; {servers}"))
        if others := [line for line in lines if RATE not in line and "skipped" not in line]:
            for line in others:
                told = "  ".join(f"{name} {value:g}" for name, value in _figures(line["figures"]).items())
                console.print(f"{line['question']}, {line.get('case', '')}: {told}", markup=False, highlight=False)
    shown = Table(title="goals")
    for name in ("goal", "bar", "figure", "", "how"):
        shown.add_column(name, justify="right" if name in {"bar", "figure"} else "left")
    measured = [goal for goal in report["goals"] if goal["figure"] is not None]
    for goal in measured:
        figure = "-" if goal["figure"] is None else f"{goal['figure']:g}"
        shown.add_row(goal["goal"], goal["bar"], figure, _MARK[goal["met"]], goal["how"])
    if measured:
        console.print(shown)
    if left := len(report["goals"]) - len(measured):
        console.print(f"{left} goals were not measured: bench-report.json names them")


def _rates(lines: Sequence[Row], title: str) -> Table:
    shown = Table(title=title)
    for name in ("question", "rounds", "records/s", "least", "most", "ratios within a round", "what it is"):
        shown.add_column(name, justify="right" if name in {"rounds", "records/s", "least", "most"} else "left")
    for line in lines:
        name = f"{line['question']}, {line['case']}" if "case" in line else line["question"]
        if "skipped" in line:
            shown.add_row(name, "0", "-", "", "", "", line["skipped"])
        elif RATE in line:
            ratios = "; ".join(f"{ratio:g} of {base}" for base, ratio in line.get("ratios", {}).items())
            what = line.get("guarantee") or line.get("mode", "")
            shown.add_row(
                name, str(line["rounds"]), f"{line[RATE]:,}", f"{line['min']:,}", f"{line['max']:,}", ratios, what
            )
    return shown
