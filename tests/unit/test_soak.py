"""Runs of the suite are noted in a file, which a later start continues."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.docs_pages import ROOT

COMMIT, EARLIER = "b" * 40, "a" * 40


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, at a clean commit; its runs of the suite all pass at once."""
    spec = importlib.util.spec_from_file_location("soak", ROOT / "tests/soak.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "_git", lambda *words: COMMIT if words[0] == "rev-parse" else "")
    monkeypatch.setattr(program, "_run", lambda kind, commit, processes, knobs: (run(kind, commit, knobs=knobs), ""))
    return program


def run(kind: str, commit: str, failed: str | None = None, knobs: int = 3) -> dict[str, Any]:
    return {
        "kind": kind,
        "commit": commit,
        "seed": 7,
        "knobs": knobs,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1,
        "exit_code": int(failed is not None),
        "last_line": "1 failed" if failed else "1 passed",
        "failed": [failed] if failed else [],
    }


def test_only_what_this_commit_lacks_is_run_and_every_commit_is_listed(
    soak: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "soak.jsonl"
    earlier = [run("test", EARLIER), run("all", EARLIER, failed="FAILED tests/x.py::test_x")]
    there = [*earlier, run("test", COMMIT), run("busy", COMMIT)]
    file.write_text("".join(json.dumps(noted) + "\n" for noted in there))
    arguments = ["--test", "3", "--busy", "1", "--all", "1", "--file", str(file)]
    assert soak.main(arguments) == 0, "a failure of another commit is listed, and is not this one's"
    noted = [json.loads(line) for line in file.read_text().splitlines()]
    assert noted[:4] == there
    assert [(line["kind"], line["commit"], line["knobs"]) for line in noted[4:]] == [
        ("test", COMMIT, 4),
        ("all", COMMIT, 5),
    ], "the knobs' seeds follow each other"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        f"{EARLIER}: 1 test, 0 busy, 1 all; 1 failed",
        "  all, seed 7, knobs 3, 2026-01-02T03:04:05+00:00: 1 failed",
        "    FAILED tests/x.py::test_x",
        f"{COMMIT}: 2 test, 1 busy, 1 all; 0 failed",
    ]
    assert soak.main(arguments) == 0
    assert len(file.read_text().splitlines()) == 6, "started again, it has nothing to do"


def test_a_failure_of_this_commit_is_the_exit_code(soak: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "soak.jsonl"
    file.write_text(json.dumps(run("test", COMMIT, failed="FAILED tests/x.py::test_x")) + "\n")
    assert soak.main(["--test", "1", "--busy", "0", "--all", "0", "--file", str(file)]) == 1


def test_the_output_of_a_run_that_failed_is_kept(
    soak: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = run("test", COMMIT, failed="FAILED tests/x.py::test_x", knobs=0)
    monkeypatch.setattr(soak, "_run", lambda *_, knobs: (failed, "E  assert False"))
    assert soak.main(["--test", "1", "--busy", "0", "--all", "0", "--file", str(tmp_path / "soak.jsonl")]) == 1
    assert (tmp_path / "soak-0.log").read_text() == "E  assert False"
