"""A table in one test: each row is checked, and the message has all that failed."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from support.every_row import for_each

NUMBERS = {"one": 1, "two": 2, "three": 3, "none": None, "four": 4}
FILE = "tests/unit/test_failures.py"


def refuse_four(number: int) -> None:
    """Its own module's asserts have no text where pytest does not rewrite it."""
    if number == 4:
        raise AssertionError


def test_every_failure_is_in_the_message_with_its_row_and_line() -> None:
    looked_at = []

    @for_each(NUMBERS, name=str.upper)
    def check(word: str) -> None:
        looked_at.append(word)
        number = NUMBERS[word]
        refuse_four(number or 0)
        assert number != 2, "an even number"
        assert number + 1 < 4, f"{number} is too large"  # type: ignore[operator]

    with pytest.raises(AssertionError) as caught:
        check()
    assert looked_at == list(NUMBERS)
    opening, *failures = str(caught.value).splitlines()
    assert opening == "4 of 5 rows fail"
    line = inspect.getsourcelines(check)[1]
    assert f"TWO: {FILE}:{line + 5}: an even number" in failures
    assert f"THREE: {FILE}:{line + 6}: 3 is too large" in failures
    (of_another_kind,) = [failure for failure in failures if failure.startswith("NONE: ")]
    assert "TypeError: unsupported operand" in of_another_kind
    statement = inspect.getsourcelines(refuse_four)[1] + 3
    assert failures[-1] == f"FOUR: {FILE}:{statement}: raise AssertionError"


def test_a_table_without_rows_fails() -> None:
    @for_each(list[str]())
    def check(word: str) -> None:
        raise AssertionError(word)

    with pytest.raises(AssertionError, match="0 of 0 rows"):
        check()


@for_each(NUMBERS)
def test_the_other_parameters_are_fixtures(word: str, tmp_path: Path) -> None:
    assert tmp_path.is_dir()
