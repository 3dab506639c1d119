"""The breakages of ``make mutants`` fit the code as it is: one that does not is found without running its tests."""

from __future__ import annotations

import pytest

from mutants.breakages import Breakage
from mutants.run import BREAKAGES, ROOT, edited


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_fits_exactly_and_its_tests_exist(breakage: Breakage) -> None:
    assert edited(breakage)
    for test in breakage.tests:
        path, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_names_are_unique() -> None:
    names = [breakage.name for breakage in BREAKAGES]
    assert len(set(names)) == len(names)
