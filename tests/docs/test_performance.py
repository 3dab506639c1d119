"""The page about speed quotes the committed report, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import page
from questions import GROUPS
from report import summary
from support.docs_pages import named, prose


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.COPY.read_text(encoding="utf-8"))
    return found


def test_the_tables_are_those_of_the_report(report: dict[str, Any]) -> None:
    text = named("docs/performance.md")
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
    text = named("docs/performance.md")
    assert all(goal["limit"] in text for goal in missed)


def test_the_kept_report_has_the_goals_of_today(report: dict[str, Any]) -> None:
    assert page.with_verdicts(report) == report, "run: python benchmarks/page.py docs/assets/bench-report.json"


def test_the_prose_names_no_rate() -> None:
    """Figures are in the tables: one in a sentence would outlive its run."""
    told = re.sub(r"<!-- bench:.*?<!-- /bench -->", "", named("docs/performance.md"), flags=re.DOTALL)
    assert not re.findall(r"\d[\d,.]*\s*(?:k|M)?\s*(?:records|rows|msg)/s|\d(?:\.\d+)?x\b", prose(told))


def test_goals_and_machines_come_after_the_figures() -> None:
    parts = re.findall(r"<!-- bench:([\w-]+) -->", named("docs/performance.md"))
    assert parts[-2:] == ["goals", "setting"]
    assert set(parts[:-2]) == {*GROUPS, "profile"}
