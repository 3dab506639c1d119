"""The console in Debian's Chromium, on real servers. ``make ui-test`` runs these tests; a run of the suite does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from sqlalchemy import Engine

from browsing import NoBrowserError, Watch
from browsing import chromium as new_chromium
from seekpoint.admin import Admin
from seekpoint.web import Access, Right
from seekpoint.web.serving import serving
from support.waiting import SECONDS, until

HERE = Path(__file__).parent
REFRESH = 0.3  # seconds

expect.set_options(timeout=1000 * SECONDS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run that does not name this folder leaves it out: it needs a browser."""
    named = (Path(arg.partition("::")[0]).resolve() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True


class Console:
    """A console that is served, and tabs that look at it."""

    def __init__(self, browser: Browser, address: str, opened: ExitStack) -> None:
        self.address, self.watch = address, Watch(address)
        self._browser, self._opened = browser, opened

    def tab(
        self, path: str = "", *, scheme: Any = "light", width: int = 1280, height: int = 900, scripts: bool = True
    ) -> Page:
        """A tab that has opened this path, with or without JavaScript."""
        context = self._browser.new_context(
            viewport=ViewportSize(width=width, height=height), color_scheme=scheme, java_script_enabled=scripts
        )
        self._opened.callback(context.close)
        tab = self.watch.tab(context)
        self.go(tab, path)
        return tab

    def go(self, tab: Page, path: str) -> None:
        """Open another path in this tab."""
        self.watch.now = f"/{path}"
        tab.goto(self.address + path)

    def noted(self, *texts: str) -> None:
        """The browser has noted problems with one of these texts, and no other problem."""
        problems, self.watch.problems = self.watch.problems, []
        assert problems
        assert [problem for problem in problems if not any(text in problem for text in texts)] == []

    def refused(self, *statuses: int) -> None:
        """The browser has noted these statuses, which the test has asked for, and no other problem."""
        problems, self.watch.problems = self.watch.problems, []
        assert [problem for problem in problems if "console: Failed to load resource" not in problem], problems
        noted = [problem.split(": ")[1] for problem in problems if "console: " not in problem]
        assert noted == list(map(str, statuses)), problems


Serve = Callable[..., Console]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of the run; without one these tests fail, and name the package."""
    with ExitStack() as opened:
        try:
            browser = opened.enter_context(new_chromium())
        except NoBrowserError as error:
            pytest.fail(str(error), pytrace=False)
        yield browser


@pytest.fixture
def serve(chromium: Browser, seekpoint_engine: Engine, seekpoint_schema: str) -> Iterator[Serve]:
    """``serve(kafka=…, **options)`` serves a console of the test's ledger, by default for one who operates.

    What goes wrong in its tabs fails the test.
    """
    consoles: list[Console] = []
    with ExitStack() as opened:

        def start(*, kafka: Any = None, admin: Admin | None = None, **options: Any) -> Console:
            admin = admin or Admin(seekpoint_engine, kafka, schema=seekpoint_schema)
            arguments = {"allow_actions": True, "refresh": REFRESH, "access": as_user("ada"), **options}
            address = opened.enter_context(serving(admin, "127.0.0.1", 0, **arguments))
            consoles.append(Console(chromium, address, opened))
            return consoles[-1]

        yield start
    assert [problem for console in consoles for problem in console.watch.problems] == []


def as_user(name: str, level: Right = Right.OPERATE) -> Callable[[Any], Access]:
    """Every request is this user's."""
    return lambda _: Access(name, level)


def fact(tab: Page, name: str) -> str:
    """A value at the head of a page."""
    return tab.locator(f'.fact:has(dt:text-is("{name}")) dd').inner_text()


def number(tab: Page, name: str) -> int:
    """One that is a number."""
    return int(fact(tab, name).replace(",", ""))


def refreshed(tab: Page, times: int = 1) -> None:
    """Wait until the page was read again so many times."""
    tab.evaluate("() => { window.swaps ??= (document.addEventListener('htmx:after:swap', () => window.swaps++), 0); }")
    wanted = tab.evaluate("window.swaps") + times
    until(lambda: tab.evaluate("window.swaps") >= wanted, f"the page is read again {times} times")


def carry_out(tab: Page, reason: str) -> None:
    """Give a reason for the plan of this tab, and send its form."""
    tab.get_by_label("Reason").fill(reason)
    tab.locator("form.apply button").click()
