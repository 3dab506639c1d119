"""One test for a table: every row is checked, and one message lists each row that failed."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Row = TypeVar("Row")
Fixtures = ParamSpec("Fixtures")


def for_each(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[Concatenate[Row, Fixtures], None]], Callable[Fixtures, None]]:
    """Makes a check of one row the test of all ``rows``; its message has the name and the failure of each that failed.

    The row is the check's first parameter; the others are fixtures, which all rows share. Without rows it fails, so a
    table that can no longer be read is noticed.
    """

    table = list(rows)

    def decorate(check: Callable[Concatenate[Row, Fixtures], None]) -> Callable[Fixtures, None]:
        @wraps(check)
        def test(*args: Fixtures.args, **fixtures: Fixtures.kwargs) -> None:
            failures = []
            for row in table:
                try:
                    check(row, *args, **fixtures)
                except Exception as error:  # noqa: BLE001 -- the rows after it are checked, too
                    failures.append(f"\n{name(row)}: {_described(error, check)}")
            if failures or not table:
                raise AssertionError(f"{len(failures)} of {len(table)} rows fail{''.join(failures)}")

        _, *parameters = inspect.signature(check).parameters.values()
        vars(test)["__signature__"] = inspect.Signature(parameters)  # pytest reads from it which fixtures it asks for
        return test

    return decorate


def _described(error: Exception, check: Callable[..., Any]) -> str:
    """The error's text, with the line of the test's file where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == check.__code__.co_filename]
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"line {lines[-1] if lines else '?'}: {kind}{error}"
