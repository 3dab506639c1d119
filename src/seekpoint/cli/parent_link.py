"""A child of ``run --workers`` and its parent: the child reports that it is live, and ends when the parent has died."""

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
GRACE = 25.0  # seconds that the batch in hand has once the parent has died
LEAVE = 5.0  # seconds after it to leave the group

parent: ParentLink | None = None  # of this process, where `run --workers` has started it


def attach() -> None:
    """Take socket and number from the command line, which afterwards is the parent's own."""
    global parent  # noqa: PLW0603 -- a process has one
    descriptor, number, *words = sys.argv[1:]
    parent = ParentLink(int(descriptor), int(number))
    sys.argv = ["seekpoint", *words]


class ParentLink:
    """Reports to the parent that the workers are live, and ends the process once the parent has died."""

    def __init__(self, descriptor: int, number: int) -> None:
        self.number = number
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # not for processes that users' code starts
        self._workers: ProcessWorkers | None = None
        threading.Thread(target=self._await_end_of_parent, name="seekpoint-parent", daemon=True).start()

    def _await_end_of_parent(self) -> None:
        with suppress(OSError):  # reset: it has died without reading the last reports
            self._socket.recv(1)  # it sends nothing
        if self._workers is not None:
            self._workers.stop(GRACE)
            threading.Event().wait(GRACE + LEAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def reporting(self, workers: ProcessWorkers) -> Iterator[None]:
        """Within the block, report twice a second that the workers are live, as long as they are."""
        self._workers = workers
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(EVERY):
                if workers.state().live:
                    with suppress(OSError):  # the parent has not read, or has died: the other thread sees that
                        self._socket.send(b".", socket.MSG_DONTWAIT)

        thread = threading.Thread(target=report, name="seekpoint-reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
