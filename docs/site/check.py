"""Opens every page of the built site in a real Chromium, and fails on what a reader would find broken.

    python docs/site/check.py build/site/html

That is: an error on the console or in a script, a request that fails or leaves for another host, a link inside the site
whose page or anchor does not exist, and a page that is wider than the window of a phone. The browser is Debian's;
without one, the check fails.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from playwright.sync_api import BrowserContext, Page, Route, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOWS = {"light": {"width": 1280, "height": 900}, "dark": {"width": 400, "height": 800}}

_LINKS = "links => links.map(link => link.href)"
_ANCHORS = "marked => marked.flatMap(element => [element.id, element.getAttribute('name')]).filter(Boolean)"
_WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address on this machine, while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Visit:
    """What was found on the pages of one site: problems, links and anchors."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._now = ""
        self.problems: list[str] = []
        self.links: dict[str, list[str]] = {}
        self.anchors: dict[str, set[str]] = {}

    def watch(self, context: BrowserContext) -> Page:
        """A tab whose errors and requests are noted."""
        context.route("**/*", self._route)
        tab = context.new_page()
        tab.on("console", lambda message: self._note(f"console: {message.text}") if message.type == "error" else None)
        tab.on("pageerror", lambda error: self._note(f"script: {error}"))
        tab.on("requestfailed", lambda request: self._note(f"request failed: {request.url}"))
        tab.on(
            "response", lambda answer: self._note(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
        )
        return tab

    def open(self, tab: Page, path: str, scheme: str) -> None:
        """Open a page, and take down its links and anchors."""
        self._now = f"{path} ({scheme}, {WINDOWS[scheme]['width']} pixels)"
        tab.goto(self._site + path, wait_until="load")
        self.links[path] = tab.eval_on_selector_all("a[href]", _LINKS)
        self.anchors[path] = set(tab.eval_on_selector_all("[id], a[name]", _ANCHORS))
        page_width, window_width = tab.evaluate(_WIDTHS)
        if page_width > window_width:
            self._note(f"the page is {page_width} pixels wide")

    def broken_links(self, folder: Path) -> Iterator[str]:
        """Links inside the site that lead nowhere, with the page that has them."""
        for page, links in self.links.items():
            for link in sorted(set(links)):
                problem = self._broken(link, folder)
                if problem:
                    yield f"{page}: {link.removeprefix(self._site)}: {problem}"

    def _broken(self, link: str, folder: Path) -> str | None:
        if not link.startswith(self._site):
            return None
        address, anchor = urldefrag(link)
        path = unquote(address.removeprefix(self._site).partition("?")[0])
        if not path or path.endswith("/"):
            path += "index.html"
        if path not in self.anchors:
            return None if (folder / path).is_file() else "there is no such page"
        return f"the page has no {anchor!r}" if anchor and unquote(anchor) not in self.anchors[path] else None

    def _route(self, route: Route) -> None:
        if route.request.url.startswith((self._site, "data:", "blob:")):
            route.continue_()
        else:
            self._note(f"a request to another host: {route.request.url}")
            route.abort()

    def _note(self, problem: str) -> None:
        self.problems.append(f"{self._now}: {problem}")


def check(folder: Path, browser: str) -> list[str]:
    """Every problem of the site in this folder."""
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    if "index.html" not in pages:
        return [f"{folder} has no index.html: run make site"]
    with served(folder) as site, sync_playwright() as playwright:
        # The sandbox needs a user other than root; the only pages that are opened are our own.
        started = playwright.chromium.launch(executable_path=browser, chromium_sandbox=os.geteuid() != 0)
        visit = Visit(site)
        for scheme, window in WINDOWS.items():
            context = started.new_context(viewport=window, color_scheme=scheme)  # type: ignore[arg-type]
            tab = visit.watch(context)
            for page in pages:
                visit.open(tab, page, scheme)
            context.close()
        started.close()
    print(f"{len(pages)} pages, {sum(map(len, visit.links.values()))} links")
    return [*visit.problems, *visit.broken_links(folder)]


def main() -> int:
    """Print the problems; the exit code is 1 if there are any."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("error: this check needs Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    problems = check(Path(sys.argv[1]), browser)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
