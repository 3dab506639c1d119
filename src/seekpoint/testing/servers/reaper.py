"""Ends servers and removes their folders when the process that started them is gone, however it went.

A program of its own, run by path and from the standard library alone: it outlives a SIGKILL of its owner.
The owner writes one line for each thing to keep an eye on (``+pid 7``, ``+dir /tmp/x``) or no longer to
(``-pid 7``, ``-dir /tmp/x``). The end of the input means that the owner is gone: whatever is left is ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

# A killed Postgres leaves backends that end by themselves, and may still write for a moment.
PATIENCE = 5.0


def remove(folder: Path) -> None:
    """Remove ``folder``, also while a dying server still writes into it."""
    deadline = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    kept: dict[str, None] = {}
    for line in sys.stdin:
        sign, thing = line[0], line[1:].rstrip("\n")
        if sign == "+":
            kept[thing] = None
        else:
            kept.pop(thing, None)
    things = [thing.split(" ", 1) for thing in kept]
    for pid in (int(name) for kind, name in things if kind == "pid"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it was faster
    for folder in (Path(name) for kind, name in things if kind == "dir"):
        remove(folder)


if __name__ == "__main__":
    main()
