"""``benchmarks/run.py`` with few records: real questions, a whole report, and a second run that resumes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from goals import GOALS
from support.docs_pages import ROOT

RECORDS = "5000"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--records", RECORDS, *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # as `make bench` starts it
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=250)


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "bench-report.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.long
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")  # skipped or failed where no server can be started
def test_a_run_reports_rows_ratios_and_goals_and_can_be_resumed(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "floor,append", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(tmp_path)
    assert [(row["question"], row["round"], row["run"]) for row in report["rows"]] == [
        ("floor", 1, 1),
        ("append", 1, 1),
    ]
    for row in report["rows"]:
        assert row["records"] == int(RECORDS)
        assert row["records_per_second"] == pytest.approx(row["records"] / row["seconds"], rel=0.05)
    floor, append = report["summary"]
    assert append["ratios"] == {
        "floor": [pytest.approx(append["records_per_second"] / floor["records_per_second"], abs=0.001)] * 3
    }
    assert len(report["goals"]) == len(GOALS)
    assert all(goal["met"] is None for goal in report["goals"]), "one round is no median"
    text = json.dumps(report)
    assert str(ROOT) not in text
    assert str(tmp_path) not in text

    again = run(tmp_path, "--only", "floor,append", "--rounds", "2", "--resume", "bench-report.json")
    assert again.returncode == 0, again.stdout + again.stderr
    report = report_of(tmp_path)
    asked = [(row["question"], row["round"], row["run"]) for row in report["rows"]]
    assert asked[2:] == [("floor", 1, 2), ("append", 1, 2)]
    assert [line["rounds"] for line in report["summary"]] == [2, 2]

    nothing_left = run(tmp_path, "--only", "floor", "--rounds", "2", "--resume", "bench-report.json")
    assert nothing_left.returncode == 0, nothing_left.stderr
    assert "nothing is missing" in nothing_left.stdout
    assert report_of(tmp_path) == report


@pytest.mark.long
@pytest.mark.usefixtures("seekpoint_dsn", "seekpoint_broker")  # skipped or failed where no server can be started
def test_small_transactions_are_compared_with_a_plain_insert(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "small", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = report_of(tmp_path)["rows"]
    for name in ("unit, Append", "unit, handler", "plain insert"):
        figures = [row for row in rows if row["mode"].startswith(f"{name}, ")]
        assert len(figures) == 6, "1, 10 and 100 records a transaction, synchronous and not"
        assert all(("to_plain_insert" in row) == name.startswith("unit") for row in figures)


def test_what_there_is_no_question_of_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nonsense")
    assert done.returncode == 2
    assert "no group or question is called nonsense" in done.stderr


def test_a_report_of_other_records_cannot_be_resumed(tmp_path: Path) -> None:
    earlier_run = {"run": 1, "machine": {"cores": 0}, "records": 1, "kind": "payments", "cores_used": 4}
    (tmp_path / "other.json").write_text(json.dumps({"rows": [], "runs": [earlier_run]}), encoding="utf-8")
    done = run(tmp_path, "--only", "floor", "--resume", "other.json")
    assert done.returncode != 0
    assert "begin a new report" in done.stderr


def test_a_plan_names_what_the_goals_need_and_asks_nothing(tmp_path: Path) -> None:
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        pytest.skip("needs two processors")
    done = run(tmp_path, "--only", "goals", "--processors", ",".join(map(str, processors)), "--plan")
    assert done.returncode == 0, done.stderr
    assert "append, 1\n" in done.stdout
    assert re.search(r"\d+ runs, about \d+ (min|s) left", done.stdout), done.stdout
    assert not list(tmp_path.iterdir())


def test_a_processor_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "floor", "--processors", "0,100000")
    assert done.returncode == 2
    assert "this process may not use 100000" in done.stderr
