"""Which tests ``make test`` runs, and which only ``make test-all`` does: the mark ``long``.

``@pytest.mark.long`` is for a test that takes two seconds or more; one that is left to ``make test-all`` for another
reason names it: ``@pytest.mark.long("a cluster of three brokers")``. A bare mark on a test that took less fails the
run, unless ``SEEKPOINT_WALL_CLOCK=0`` says that other work keeps the processors busy.

Some parameters repeat a test in other surroundings (:data:`SURROUNDINGS`). ``make test`` runs it in one of them, which
differs from test to test, and ``make test-all`` in the others.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from zlib import crc32

import pytest

LEAST_SECONDS = 2.0
SURROUNDINGS = frozenset({"protocol", "way", "topic_id_way"})
"""Names of the parameters under each of whose values a test attacks the same promise."""
_BARE = "bare long"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long(reason): left to `make test-all`; the reason, where it is not the length")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


@pytest.hookimpl(tryfirst=True)  # before the option -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _repeated(items):
        item.add_marker(pytest.mark.long("in other surroundings"))


def _repeated(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Of the items that differ in surroundings alone, all but one."""
    alike: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and SURROUNDINGS & item.callspec.params.keys()
        ):
            others = [(name, n) for name, n in item.callspec.indices.items() if name not in SURROUNDINGS]
            alike[item.nodeid.split("[")[0], *sorted(others)].append(item)
    for which, repeated in alike.items():
        kept = crc32(repr(which).encode()) % len(repeated)
        yield from (item for number, item in enumerate(repeated) if number != kept)


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("long")
    if mark is not None and not mark.args:
        item.user_properties.append((_BARE, True))


class _Durations:
    """Adds up what each test with a bare mark took, in the process that reports."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (_BARE, True) in report.user_properties:
            self._seconds[report.nodeid] += report.duration

    def _short(self) -> list[str]:
        if os.environ.get("SEEKPOINT_WALL_CLOCK") == "0":
            return []
        return [f"{test}: {seconds:.2f} s" for test, seconds in self._seconds.items() if seconds < LEAST_SECONDS]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._short() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if short := self._short():
            terminalreporter.section("marked long without a reason, and took less than two seconds", red=True)
            for line in short:
                terminalreporter.write_line(line)
