"""The link of a child of ``run --workers`` to its parent: it reports that it is live, and ends if the parent dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seekpoint.cli.workers_of_process import ProcessWorkers

EVERY = 0.5  # seconds between two reports
GRACE = 25.0  # seconds for the open batch after the parent has died
LEAVE = 5.0  # further seconds to leave the group

parent: ParentLink | None = None  # set if `run --workers` has started this process


def attach() -> None:
    """Read the socket and the worker's number from the command line; leaves the parent's command line."""
    global parent  # noqa: PLW0603 -- a process has one
    descriptor, number, *words = sys.argv[1:]
    parent = ParentLink(int(descriptor), int(number))
    sys.argv = ["seekpoint", *words]


class ParentLink:
    """Reports to the parent that the workers are live, and ends the process if the parent has died."""

    def __init__(self, descriptor: int, number: int) -> None:
        self.number = number
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # not inherited by processes that users' code starts
        self._workers: ProcessWorkers | None = None
        threading.Thread(target=self._await_end_of_parent, name="seekpoint-parent", daemon=True).start()

    def _await_end_of_parent(self) -> None:
        with suppress(OSError):  # reset: the parent has died without reading the last reports
            self._socket.recv(1)  # returns only when the parent ends, because the parent sends nothing
        if self._workers is not None:
            self._workers.stop(GRACE)
            threading.Event().wait(GRACE + LEAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def reporting(self, workers: ProcessWorkers) -> Iterator[None]:
        """Within the block, report twice a second while the workers are live."""
        self._workers = workers
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(EVERY):
                if workers.state().live:
                    with suppress(OSError):  # the parent does not read, or has died; the other thread notices that
                        self._socket.send(b".", socket.MSG_DONTWAIT)

        thread = threading.Thread(target=report, name="seekpoint-reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
