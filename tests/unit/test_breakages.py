"""The breakages of ``make mutants`` fit the code as it is: one that does not is found without running its tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mutants.breakages import Breakage
from mutants.run import BREAKAGES, ROOT, edited

UNDEFINED = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821,F822,F823,E9", "-"]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_fits_exactly_and_its_tests_exist(breakage: Breakage) -> None:
    for file, text in edited(breakage).items():
        if not file.endswith(".py"):
            continue
        checked = subprocess.run(UNDEFINED, input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{file}: any test fails on an undefined name: {checked.stdout}"
    for test in breakage.tests:
        path, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_names_are_unique() -> None:
    names = [breakage.name for breakage in BREAKAGES]
    assert len(set(names)) == len(names)
