"""Computes the report from the rows: medians, ratios within a round, and the goals. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str | None]
"""A question, and the case if its script has several."""

RATE = "records_per_second"
CPU = "cpu_us_per_record"  # of the client's process
MEDIAN_OF = 3  # rounds that a median needs
_NO_FIGURES = {
    "run",
    "round",
    "records",
    "batch",
    "parallelism",
    "workers",
    "busy_percent",
    "whole_seconds",
    "load_of_machine",
    "cpu_seconds_together",
    RATE,
}


def by_key(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """The rows of each question and case."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["question"], row.get("case")), []).append(row)
    return groups


def pairs(rows: Sequence[Row], of: Key, to: Key, figure: str = RATE) -> list[float]:
    """Ratios of two questions' figures, one for each round in which both were measured: never across runs."""

    def measured(key: Key) -> dict[tuple[int, int], float]:
        return {
            (row["run"], row["round"]): row[figure]
            for row in rows
            if (row["question"], row.get("case")) == key and row.get(figure)
        }

    ours, theirs = measured(of), measured(to)
    return [ours[round_] / theirs[round_] for round_ in ours if round_ in theirs]


def spread(numbers: Sequence[float]) -> list[float]:
    """Median, least and most."""
    return [round(number, 3) for number in (statistics.median(numbers), min(numbers), max(numbers))]


def summary(rows: Sequence[Row], against: Mapping[str, Sequence[str]]) -> list[Row]:
    """A line for each question and case; ``against`` names the questions or cases that it is compared with."""
    lines = []
    for (question, case), several in by_key(rows).items():
        good = [row for row in several if "skipped" not in row]
        line: Row = {"question": question, "group": several[0]["group"], "rounds": len(good)}
        if case is not None:
            line["case"] = case
        if not good:
            lines.append({**line, "skipped": several[-1]["skipped"]})
            continue
        line |= {key: good[-1][key] for key in ("subject", "mode", "version", "guarantee") if key in good[-1]}
        if rates := [row[RATE] for row in good if RATE in row]:
            line |= {RATE: round(statistics.median(rates)), "min": min(rates), "max": max(rates)}
        if used := [1e6 * row["cpu_seconds"] / row["records"] for row in good if row.get("cpu_seconds")]:
            line |= {CPU: round(statistics.median(used), 2), "cpu_us_range": _range(used, 2)}
        line["figures"], line["figures_range"] = _figures(good)
        bases: dict[str, Key] = {
            base: (base, None) if case is None else (question, base)
            for base in against.get(question, ())
            if base != case
        }
        ratios = {base: pairs(rows, (question, case), key) for base, key in bases.items()}
        line["ratios"] = {base: spread(numbers) for base, numbers in ratios.items() if numbers}
        lines.append(line)
    return lines


def _figures(good: Sequence[Row]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The medians of all other figures that are numbers, and the least and most of figures that differ."""
    names = [name for name in good[-1] if name not in _NO_FIGURES and all(_is_number(row.get(name)) for row in good)]
    several = {name: [row[name] for row in good] for name in names}
    medians = {name: round(statistics.median(values), 4) for name, values in several.items()}
    return medians, {name: _range(values, 4) for name, values in several.items() if len(set(values)) > 1}


def _range(values: Sequence[float], digits: int) -> list[float]:
    return [round(min(values), digits), round(max(values), digits)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
