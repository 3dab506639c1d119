"""Takes the screenshots of the docs: the console of ``seekpoint dev --demo`` after two minutes of its load.

    python docs/site/screenshots.py docs/assets

One is light, one dark. Nothing on them is of this machine: the host's and the user's name are replaced.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.request
from pathlib import Path
from unittest.mock import patch

from browsing import NoBrowserError, Watch, chromium
from seekpoint.cli.dev_demo import running_demo
from seekpoint.testing.servers.pair import start_pair

SAMPLES = 24  # of each partition: two minutes
TAKEN = {
    "console-light": ("light", "group?group=shipping"),
    "console-dark": ("dark", "partition?group=shipping&topic=orders&partition=0"),
}
WIDTH, HEIGHT = 1280, 760


def take(folder: Path) -> list[str]:
    """Write the screenshots; returns what went wrong on the pages. Raises NoBrowserError."""
    with start_pair(own=True) as pair, running_demo(pair, port=0) as address, chromium() as browser:
        _wait(address)
        watch = Watch(address)
        for name, (scheme, path) in TAKEN.items():
            window = {"width": WIDTH, "height": HEIGHT}
            context = browser.new_context(viewport=window, color_scheme=scheme)  # type: ignore[arg-type]
            tab = watch.tab(context)
            tab.goto(address + path)
            watch.measure(tab)
            tab.screenshot(path=folder / f"{name}.png")
            context.close()
        return watch.problems


def _wait(address: str) -> None:
    pause = threading.Event()
    while True:
        with urllib.request.urlopen(f"{address}api/group?group=shipping") as answer:  # noqa: S310 -- our own
            partitions = json.load(answer)["data"]["samples"]
        if partitions and min(len(partition["samples"]) for partition in partitions) >= SAMPLES:
            return
        pause.wait(5.0)


def main() -> int:
    """Take them; the exit code is 1 if a page has a problem."""
    os.environ["LOGNAME"] = "ada"
    try:
        with patch("socket.gethostname", return_value="worker-1.example"):
            problems = take(Path(sys.argv[1]))
    except NoBrowserError as error:
        problems = [f"error: {error}"]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
