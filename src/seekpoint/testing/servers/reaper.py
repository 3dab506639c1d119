"""Ends servers and removes their folders when the process that started them has ended, even by SIGKILL.

A separate program, run by path and with only the standard library, so that it outlives its owner. The owner writes a
line to begin to watch a process or folder (``+pid 7``, ``+dir /tmp/x``), and one to end that (``-pid 7``, ``-dir
/tmp/x``). When the input ends, the owner has ended: the reaper kills the watched processes and removes the watched
folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

# Backends of a killed Postgres end on their own, and may still write for a moment.
PATIENCE = 5.0


def remove(folder: Path) -> None:
    """Remove ``folder``, even while a dying server still writes into it."""
    deadline = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    resources: dict[str, None] = {}
    for line in sys.stdin:
        sign, resource = line[0], line[1:].rstrip("\n")
        if sign == "+":
            resources[resource] = None
        else:
            resources.pop(resource, None)
    pairs = [resource.split(" ", 1) for resource in resources]
    for pid in (int(name) for kind, name in pairs if kind == "pid"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # the process has already ended
    for folder in (Path(name) for kind, name in pairs if kind == "dir"):
        remove(folder)


if __name__ == "__main__":
    main()
