"""Which tests ``make test`` leaves to ``make test-all``, and that a mark on a short test needs a reason."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from support.long_tests import choose
from support.pytest_run import run_pytest

DRAWS = range(12)
MARKED = """
import pytest

@pytest.mark.long
def test_short(): ...

@pytest.mark.long("a reason")
def test_of_a_reason(): ...
"""


@pytest.mark.parametrize("draw", DRAWS)
def test_one_of_the_surroundings_is_drawn_for_each_case(draw: int) -> None:
    bads, strategies = [object() for _ in range(4)], ["sink", "handler", "arrow"]
    cases = [{"bad": bad, "strategy": strategy} for bad, strategy in product(bads, strategies)]
    chosen = [cases[n] for n in sorted(choose(cases, {"strategy"}, draw))]
    assert [case["bad"] for case in chosen] == bads
    assert {case["strategy"] for case in chosen} == set(strategies), "they differ from case to case"


def test_the_surroundings_differ_from_test_to_test() -> None:
    cases = [{"strategy": strategy} for strategy in ("sink", "handler", "arrow")]
    assert {n for draw in DRAWS for n in choose(cases, {"strategy"}, draw)} == {0, 1, 2}


@pytest.mark.parametrize("draw", DRAWS)
def test_of_what_is_combined_each_value_is_chosen(draw: int) -> None:
    rows = [
        ("a", 1),
        ("b", 1),
        ("c", 2),
        ("d", None),
        ("e", 1),
    ]  # of one parametrize: the second follows from the first
    cases = [{"bad": bad, "code": code, "late": late} for late, (bad, code) in product([False, True, None], rows)]
    chosen = [cases[n] for n in choose(cases, (), draw)]
    assert {case["bad"] for case in chosen} == {"a", "b", "c", "d", "e"}
    assert len(chosen) == 5
    assert {case["late"] for case in chosen} == {False, True, None}


def test_a_list_that_was_written_is_kept_whole() -> None:
    rows = [("before", False, 1), ("after", False, 2), ("after", True, 3), ("delayed", True, 4)]
    cases = [{"when": when, "away": away, "calls": calls} for when, away, calls in rows]
    assert choose(cases, (), 5) == {0, 1, 2, 3}
    assert choose([{"when": "before"}], (), 5) == {0}


@pytest.mark.long("runs pytest")
def test_a_run_fails_for_a_short_test_that_is_marked_without_a_reason(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    both = run_pytest(tmp_path, "-p", "support.long_tests")
    assert both.returncode == 1, both.stdout
    assert "2 passed" in both.stdout
    assert "test_marked.py::test_short: 0.0" in both.stdout
    assert "test_of_a_reason:" not in both.stdout
    assert run_pytest(tmp_path, "-p", "support.long_tests", "-k", "reason").returncode == 0
