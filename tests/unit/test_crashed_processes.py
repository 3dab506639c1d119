"""A run in which a test process crashes ends, and is red."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from support.docs_pages import ROOT
from support.pytest_run import run_pytest

# One process has the last tests of the queue, or none, when the other one crashes: xdist alone hangs there.
SUITE = """
import os, pytest

@pytest.mark.parametrize("number", range(30))
def test_number(number):
    if number == {number}:
        os._exit(3)
"""
AT_THE_END = """
import os

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        os._exit(5)
"""


def run(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Run 30 tests, of which this one ends its process, with the suite's own way to treat that."""
    (folder / "test_numbers.py").write_text(SUITE.format(number=number))
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "--max-worker-restart=0" in options
    return run_pytest(
        folder, "-p", "support.crashed_processes", "-n", "2", "--dist=loadgroup", "--max-worker-restart=0"
    )


@pytest.mark.long("runs pytest with two processes")
def test_a_crash_in_a_test_ends_the_run_and_names_the_test(tmp_path: Path) -> None:
    done = run(tmp_path, 25)
    assert done.returncode == 1, done.stdout
    assert "test_numbers.py::test_number[25]" in done.stdout
    assert "test processes that crashed" in done.stdout


@pytest.mark.long("runs pytest with two processes")
def test_a_crash_after_the_last_test_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(AT_THE_END)
    done = run(tmp_path, 99)
    assert "30 passed" in done.stdout
    assert done.returncode == 1, done.stdout
