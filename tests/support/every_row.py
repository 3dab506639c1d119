"""One test for a table: every row is checked, and one message lists each row that failed."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from support.docs_pages import ROOT

Row = TypeVar("Row")
Fixtures = ParamSpec("Fixtures")


def check_each(rows: Iterable[Row], check: Callable[[Row], object], name: Callable[[Row], object] = str) -> None:
    """Check every row; raises one AssertionError with name and failure of each row that failed.

    It fails without rows, too, so that an unreadable table is noticed.
    """
    failures, count = [], 0
    for row in rows:
        count += 1
        try:
            check(row)
        except Exception as error:  # noqa: BLE001 -- the rows after it are checked, too
            failures.append(f"\n{name(row)}: {_described(error)}")
    if failures or not count:
        raise AssertionError(f"{len(failures)} of {count} rows fail{''.join(failures)}")


def for_each(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[Concatenate[Row, Fixtures], None]], Callable[Fixtures, None]]:
    """Decorate a check of one row: it becomes a test of all ``rows``.

    The row is the check's first parameter; the others are fixtures, which all rows share.
    """
    table = list(rows)

    def decorate(check: Callable[Concatenate[Row, Fixtures], None]) -> Callable[Fixtures, None]:
        @wraps(check)
        def test(*args: Fixtures.args, **fixtures: Fixtures.kwargs) -> None:
            check_each(table, lambda row: check(row, *args, **fixtures), name)

        _, *parameters = inspect.signature(check).parameters.values()
        vars(test)["__signature__"] = inspect.Signature(parameters)  # pytest reads from it which fixtures it asks for
        return test

    return decorate


def _described(error: Exception) -> str:
    """The error's text, or the statement that failed, with the file and line of the tests that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT / "tests") in frame.filename]
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{frames[-1].filename.removeprefix(f'{ROOT}/')}:{frames[-1].lineno}: {kind}{str(error) or frames[-1].line}"
