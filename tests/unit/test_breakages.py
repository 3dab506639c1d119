"""The breakages of ``make mutants`` fit the code as it is: one that does not is found without running its test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutants.breakage import ROOT, Breakage, Edit, broken, read
from mutants.forks import Run
from mutants.run import verdict

BREAKAGES = read(ROOT / "tests" / "mutants")
MOST = 150  # each costs a test's time in `make mutants`
UNDEFINED = ["ruff", "check", "--isolated", "--quiet", "--output-format=concise", "--select", "F821,F822,F823"]


@pytest.mark.long("what `make mutants` needs")
def test_each_breakage_fits_and_its_test_exists(tmp_path: Path) -> None:
    failures = [f"{breakage.name}: {failure}" for breakage in BREAKAGES for failure in _failures(breakage, tmp_path)]
    # Any test fails on an undefined name. The folder below tmp_path is the breakage's name.
    checked = subprocess.run(
        [sys.executable, "-m", *UNDEFINED, "."], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not failures, "\n".join(failures)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_there_are_no_more_than_can_be_run() -> None:
    assert 0 < len(BREAKAGES) <= MOST


def test_a_breakage_that_does_not_fit_is_refused() -> None:
    run = ("worker/loop.py", "Loop.run")
    for edit, message in (
        (Edit(*run, "there is no such text", "", False), "has 0 times, not once"),
        (Edit(*run, "self", "", False), "times, not once"),
        (Edit("worker/loop.py", "Loop.runs", "self", "", False), "defines 0 times, not once: Loop.runs"),
        (Edit("ledger/sql/forget.sql", "remembers", "SET", "", False), "has no statement remembers"),
        (Edit("ledger/sql/forget.sql", "remember", "sets", "", False), "has 0 times, not once: 'sets'"),
        (Edit("worker/loops.py", "Loop.run", "self", "", False), "there is no worker/loops.py"),
        (Edit(*run, "def run(", "pass", True), "has no statement with 'def run('"),
        (Edit(*run, "def run(", "def run((", False), "cannot be parsed with 'def run(('"),
        (Edit(*run, "def run(", "def run( ", False), "does the same with 'def run( ' for 'def run('"),
    ):
        with pytest.raises(LookupError, match=re.escape(message)):
            broken(Breakage("one", (edit,), "tests/unit/test_breakages.py::test_there_are_no_more_than_can_be_run"))


def test_a_breakage_is_killed_by_a_test_that_ran(tmp_path: Path) -> None:
    for output, words, is_killed in (
        ("FAILED tests/a.py::test_b - AssertionError", "killed one by tests/a.py::test_b", True),
        ("___ ERROR at setup of test_b ___\nERROR tests/a.py::test_b - ServerFailed", "its test did not begin", False),
        ("E   NameError: name 'x' is not defined\nFAILED tests/a.py::test_b", "stale one", False),
        ("1 passed", "survived one", False),
    ):
        run = Run("one", ["tests/a.py::test_b"], tmp_path, tmp_path / "log", code=0 if "passed" in output else 1)
        run.log.write_text(output)
        assert (verdict(run)[0].startswith(words), verdict(run)[1]) == (True, is_killed), output


def _failures(breakage: Breakage, folder: Path) -> Iterator[str]:
    try:
        texts = broken(breakage)
    except LookupError as error:
        yield str(error)
        return
    for file, text in texts.items():
        copy = folder / breakage.name / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    path, _, name = breakage.test.partition("::")
    function = name.partition("[")[0]
    if not (ROOT / path).is_file() or f"def {function}(" not in (ROOT / path).read_text():
        yield f"there is no test {breakage.test}"
