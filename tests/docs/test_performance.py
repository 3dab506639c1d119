"""The pages about speed quote the committed report, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import page
from questions import GROUPS
from report import summary
from support.docs_pages import named, prose


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(page.COPY.read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_report(report: dict[str, Any], path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("<!-- /bench -->") > 10
    assert page.render(report, text) == text, "run: python benchmarks/page.py docs/assets/bench-report.json"


def test_the_plots_are_those_of_the_report(report: dict[str, Any]) -> None:
    drawn = page.plots(report)
    assert drawn, "nothing was measured"
    assert {name: (page.ASSETS / name).read_text(encoding="utf-8") for name in drawn} == drawn
    assert {path.name for path in page.ASSETS.glob("*.svg")} == set(drawn)
    shown = set(re.findall(r"\(assets/([\w-]+\.svg)\)", named("docs/performance.md")))
    assert shown == set(drawn)


def test_the_kept_report_is_written_as_the_page_writes_it(report: dict[str, Any]) -> None:
    assert page.shown(report) == page.COPY.read_text(encoding="utf-8")


def test_the_summary_is_that_of_its_rows(report: dict[str, Any]) -> None:
    against: dict[str, list[str]] = {}
    for line in report["summary"]:
        against.setdefault(line["question"], []).extend(line.get("ratios", {}))
    assert summary(report["rows"], against) == report["summary"]


def test_what_misses_its_goal_has_a_reason(report: dict[str, Any]) -> None:
    missed = [goal for goal in report["goals"] if goal["met"] is False]
    assert all(goal["limit"] for goal in missed), [goal["goal"] for goal in missed if not goal["limit"]]
    text = named("docs/internals/benchmarks.md")
    assert all(goal["limit"] in text for goal in missed)


def test_the_kept_report_has_the_goals_of_today(report: dict[str, Any]) -> None:
    assert page.with_verdicts(report) == report, "run: python benchmarks/page.py docs/assets/bench-report.json"


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.stem)
def test_the_prose_names_no_rate(path: Path) -> None:
    """Figures are in the tables: one in a sentence would outlive its run."""
    text = path.read_text(encoding="utf-8")
    without_tables = re.sub(r"<!-- (?:bench|rates|figures):.*?<!-- /bench -->", "", text, flags=re.DOTALL)
    assert not re.findall(r"\d[\d,.]*\s*(?:k|M)?\s*(?:records|rows|msg)/s|\d(?:\.\d+)?x\b", prose(without_tables))


def test_goals_and_machines_come_after_the_figures() -> None:
    parts = re.findall(r"<!-- bench:([\w-]+) -->", named("docs/internals/benchmarks.md"))
    assert parts[-2:] == ["goals", "setting"]
    assert set(parts[:-2]) == {*GROUPS, "profile"}
