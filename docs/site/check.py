"""Opens every page of the built site in a real Chromium, and fails on what a reader would find broken.

    python docs/site/check.py build/site/html

That is: an error on the console or in a script, a request that fails or leaves for another host, a link inside the site
whose page or anchor does not exist, and a page that is wider than the window of a phone. The browser is Debian's;
without one, the check fails.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from playwright.sync_api import Page

from browsing import NoBrowserError, Watch, chromium

WINDOWS = {"light": {"width": 1280, "height": 900}, "dark": {"width": 400, "height": 800}}

_LINKS = "links => links.map(link => link.href)"
_ANCHORS = "marked => marked.flatMap(element => [element.id, element.getAttribute('name')]).filter(Boolean)"


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


class Visit(Watch):
    """What was found on the pages of one site: problems, links and anchors."""

    def __init__(self, site: str) -> None:
        super().__init__(site)
        self.links: dict[str, list[str]] = {}
        self.anchors: dict[str, set[str]] = {}

    def open(self, tab: Page, path: str, scheme: str) -> None:
        """Open a page, and take down its links and anchors."""
        self.now = f"{path} ({scheme}, {WINDOWS[scheme]['width']} pixels)"
        tab.goto(self.site + path, wait_until="load")
        self.links[path] = tab.eval_on_selector_all("a[href]", _LINKS)
        self.anchors[path] = set(tab.eval_on_selector_all("[id], a[name]", _ANCHORS))
        self.measure(tab)

    def broken_links(self, folder: Path) -> Iterator[str]:
        """Links inside the site that lead nowhere, with the page that has them."""
        for page, links in self.links.items():
            for link in sorted(set(links)):
                problem = self._broken(link, folder)
                if problem:
                    yield f"{page}: {link.removeprefix(self.site)}: {problem}"

    def _broken(self, link: str, folder: Path) -> str | None:
        if not link.startswith(self.site):
            return None
        address, anchor = urldefrag(link)
        path = unquote(address.removeprefix(self.site).partition("?")[0])
        if not path or path.endswith("/"):
            path += "index.html"
        if path not in self.anchors:
            return None if (folder / path).is_file() else "there is no such page"
        return f"the page has no {anchor!r}" if anchor and unquote(anchor) not in self.anchors[path] else None


def check(folder: Path) -> list[str]:
    """Every problem of the site in this folder. Raises NoBrowserError."""
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    if "index.html" not in pages:
        return [f"{folder} has no index.html: run make site"]
    with served(folder) as site, chromium() as browser:
        visit = Visit(site)
        for scheme, window in WINDOWS.items():
            context = browser.new_context(viewport=window, color_scheme=scheme)  # type: ignore[arg-type]
            tab = visit.tab(context)
            for page in pages:
                visit.open(tab, page, scheme)
            context.close()
    print(f"{len(pages)} pages, {sum(map(len, visit.links.values()))} links")
    return [*visit.problems, *visit.broken_links(folder)]


def main() -> int:
    """Print the problems; the exit code is 1 if there are any."""
    try:
        problems = check(Path(sys.argv[1]))
    except NoBrowserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
