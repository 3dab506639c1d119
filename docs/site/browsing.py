"""Debian's Chromium, and what goes wrong on the pages that it opens."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, sync_playwright

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_WIDTHS = "parts => parts.map(part => [part.scrollWidth, part.clientWidth])"


class NoBrowserError(Exception):
    """There is no Chromium; the message names the package."""


def program() -> str:
    """The path of the browser. Raises NoBrowserError."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise NoBrowserError("Chromium is needed, and is not on the path: apt-get install chromium")
    return program


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without windows, for the length of the block. Raises NoBrowserError."""
    path = program()
    with sync_playwright() as playwright:
        # The sandbox needs a user other than root; the only pages that are opened are our own.
        started = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
        try:
            yield started
        finally:
            started.close()


class Watch:
    """Notes what goes wrong in tabs that look at one site.

    That is: an error on the console or in a script, a request that fails or leaves for another host, and a page that is
    wider than its window.
    """

    def __init__(self, site: str) -> None:
        self.site = site
        self.now = ""  # what is looked at, as problems name it
        self.problems: list[str] = []

    def tab(self, context: BrowserContext) -> Page:
        """A tab whose errors and requests are noted."""
        context.route("**/*", self._route)
        tab = context.new_page()
        tab.on("console", lambda message: self.note(f"console: {message.text}") if message.type == "error" else None)
        tab.on("pageerror", lambda error: self.note(f"script: {error}"))
        tab.on("requestfailed", self._failed)
        tab.on("response", lambda answer: self.note(f"{answer.status}: {answer.url}") if answer.status >= 400 else None)
        return tab

    def measure(self, tab: Page, part: str = "html") -> None:
        """Note a page, or each of these parts of it, of which the right end is not seen."""
        for whole, seen in tab.eval_on_selector_all(part, _WIDTHS):
            if whole > seen:
                self.note(f"{part} is {whole} pixels wide, and {seen} are seen")

    def note(self, problem: str) -> None:
        """Keep a problem, with what was looked at."""
        self.problems.append(f"{self.now}: {problem}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # by the page itself, when the next one is opened
            self.note(f"request failed: {request.url}: {request.failure}")

    def _route(self, route: Route) -> None:
        if route.request.url.startswith((self.site, "data:", "blob:")):
            route.continue_()
        else:
            self.note(f"a request to another host: {route.request.url}")
            route.abort()


if __name__ == "__main__":  # whether there is one
    try:
        program()
    except NoBrowserError as error:
        sys.exit(f"error: {error}")
