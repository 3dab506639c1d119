"""The result of ``make demo-cdc``: it fails if a row differs, or if a fault did not happen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from demo.cdc import show
from demo.cdc.report import CONNECT_KILLS, KILLS, Report
from demo.cli import app

SOUND = Report(10, 0, 0, 3, 0, 20, 30, KILLS, CONNECT_KILLS, 1.5, "servers")


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (SOUND, None),
        (replace(SOUND, missing=1), "1 rows of the source are not in the copy as they are"),
        (replace(SOUND, strange=2), "2 rows of the copy are not in the source as they are"),
        (replace(SOUND, odd=1), "1 dead letters are not of a deleted row"),
        (replace(SOUND, kills=KILLS - 1), f"{KILLS - 1} of {KILLS} kills happened inside a transaction"),
        (replace(SOUND, connect_kills=0), f"0 of {CONNECT_KILLS} kills of Connect happened"),
    ],
)
def test_what_differs_fails_the_demo(
    report: Report, problem: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setattr(show, "perform", lambda *_, **__: report)
    result = CliRunner().invoke(app, ["demo-cdc", "--json"])
    assert result.exit_code == (0 if problem is None else 1)
    assert json.loads(result.stdout)["rows"] == 10
    assert result.stderr == ("" if problem is None else f"error: {problem}\n")
