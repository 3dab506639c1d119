"""The mark ``long``: tests that ``make test`` leaves to ``make test-all``.

``@pytest.mark.long`` is for a test that takes two seconds or more; a test that is left out for another reason names the
reason: ``@pytest.mark.long("a cluster of three brokers")``. A run lists tests with a bare mark that took less than a
quarter of two seconds, and fails if one took less than a fortieth, because no machine is that much faster. A server
that is started early, during other tests, is such a reason: no test's time includes its start.

Some parameters only repeat a test in other surroundings: those in :data:`SURROUNDINGS`, and those that the test names
with ``@pytest.mark.repeats("step")``. Of these repetitions ``make test`` runs one, another for each test. If the other
parameters are combined, each with each, it runs each value of each parameter once. ``make test-all`` runs all
combinations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from zlib import crc32

import pytest

SHORT, FAR_TOO_SHORT = 0.5, 0.05  # seconds: of two, which a test without a reason should take; machines differ
STARTED_AHEAD = frozenset({"idle_brokers", "idle_databases", "idle_postgres", "proxied_broker"})
"""Fixtures of servers that one test has for itself, and whose start another one may have paid for."""
SURROUNDINGS = frozenset({"protocol", "strategy", "worker_options"})
"""Names of the parameters under each of whose values a test attacks the same promise."""
_BARE = "bare long"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long(reason): left to `make test-all`; the reason, where it is not the length")
    config.addinivalue_line("markers", "repeats(*names): parameters under each of whose values it attacks one promise")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


@pytest.hookimpl(tryfirst=True)  # before the option -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _repeated(items):
        item.add_marker(pytest.mark.long("in other surroundings"))


def _repeated(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The items that only repeat another item of the same test."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.nodeid.split("[")[0]].append(item)
    for name, alike in tests.items():
        repeating = {*SURROUNDINGS, *(n for mark in alike[0].iter_markers("repeats") for n in mark.args)}
        chosen = choose([item.callspec.params for item in alike], repeating, crc32(name.encode()))
        yield from (item for number, item in enumerate(alike) if number not in chosen)


def choose(cases: Sequence[Mapping[str, object]], repeating: Collection[str], draw: int) -> set[int]:
    """The numbers of the cases (given by their parameters) that ``make test`` runs; ``draw`` decides between equals.

    Of cases that differ only in repeating parameters, one is chosen. If the others are combined each with each, every
    value of each is in a chosen case; otherwise the cases are a written list, and all are chosen.
    """
    columns = {name: _positions([case.get(name) for case in cases]) for name in cases[0]}
    alike: dict[object, list[int]] = defaultdict(list)
    for number in range(len(cases)):
        alike[tuple(column[number] for name, column in columns.items() if name not in repeating)].append(number)
    chosen = [repeated[(draw + n) % len(repeated)] for n, repeated in enumerate(alike.values())]
    left = _independent([[column[n] for n in chosen] for name, column in columns.items() if name not in repeating])
    sizes = [max(column) + 1 for column in left]
    if len(left) < 2 or prod(sizes) != len(chosen):
        return set(chosen)
    longest = left[sizes.index(max(sizes))]
    return {
        number
        for n, number in enumerate(chosen)
        if all(
            (longest[n] + draw) % size == column[n]
            for column, size in zip(left, sizes, strict=True)
            if column is not longest
        )
    }


def _positions(values: Sequence[object]) -> list[int]:
    """The number of each value among the different values, which are compared by identity."""
    places: dict[int, int] = {}
    return [places.setdefault(id(value), len(places)) for value in values]


def _independent(columns: Iterable[list[int]]) -> list[list[int]]:
    """The columns that vary, without those that another column determines, as in one ``parametrize``."""
    left: list[list[int]] = []
    for column in sorted(columns, key=max, reverse=True):
        if max(column) and not any(len(set(zip(other, column, strict=True))) == len(set(other)) for other in left):
            left.append(column)
    return left


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("long")
    if mark is None or mark.args or not isinstance(item, pytest.Function):
        return
    if STARTED_AHEAD.isdisjoint(item.fixturenames):
        item.user_properties.append((_BARE, True))


class _Durations:
    """Adds up the seconds of each test with a bare mark, in the process that reports."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (_BARE, True) in report.user_properties:
            self._seconds[report.nodeid] += report.duration

    def _shorter(self, least: float) -> list[str]:
        return [f"{test}: {seconds:.2f} s" for test, seconds in self._seconds.items() if seconds < least]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._shorter(FAR_TOO_SHORT) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if short := self._shorter(SHORT):
            terminalreporter.section(f"marked long without a reason, and took less than {SHORT} s", yellow=True)
            for line in short:
                terminalreporter.write_line(line)
