"""The interface of throwaway servers: a child process, a container, or a given server."""

from __future__ import annotations

import abc
import shutil
import tempfile
import time
from typing import Self

from seekpoint.testing.servers.container import Container
from seekpoint.testing.servers.process import Child, ServerFailed, at_exit

#: The remedy for the most frequent cause of a failed start, a full disk.
ROOM = "set TMPDIR to a folder with free space"


LITTLE = 256 * 1024 * 1024  # bytes


def space_left() -> str:
    """A line that says how little space is left for temporary files; empty if there is enough."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    return f"\n{folder} has {free >> 20} MB left." if free < LITTLE else ""


Handle = Child | Container


class Server(abc.ABC):
    """A running server, removed at the end of the ``with`` block or of the process.

    ``stop`` ends the server in order, ``kill`` like a crash, ``freeze`` makes it hang; after ``stop`` and ``kill``,
    ``start`` starts it again with the same data at the same ports, and returns when it serves.
    """

    #: Most seconds for a start; a given server gets at most 2.
    patience = 60.0

    variable: str
    """The environment variable that names a server to use instead of a started one."""

    def __init__(self, handle: Handle | None, remedy: str) -> None:
        self._handle, self._remedy = handle, remedy
        at_exit(self.close)

    @abc.abstractmethod
    def describe(self) -> str:
        """Name, version and origin, for reports: ``PostgreSQL 18.4 (embedded)``."""

    @abc.abstractmethod
    def _not_ready(self) -> str | None:
        """Why the server cannot be used yet; None if it can."""

    @property
    def _ours(self) -> Handle:
        if self._handle is None:
            raise ServerFailed(
                f"the server that {self.variable} names was not started here, so it is not stopped, killed or frozen: "
                "start one with own=True"
            )
        return self._handle

    @property
    def pid(self) -> int:
        """The server's process id on this machine (of the container's first process, if it is one)."""
        return self._ours.pid

    @property
    def running(self) -> bool:
        return self._handle is None or self._handle.running

    def start(self) -> None:
        """Start or restart the server, and wait until it serves. Raises ``ServerFailed``."""
        if self._handle is not None:
            self._handle.start()
        deadline = time.monotonic() + (self.patience if self._handle is not None else min(self.patience, 2.0))
        while (problem := self._not_ready()) is not None:
            if not self.running or time.monotonic() > deadline:
                raise self.failure(problem)
            time.sleep(0.02)

    def failure(self, problem: str) -> ServerFailed:
        """Remove the server; returns an error with the problem, the end of the log and the remedy."""
        log = f"(its log is elsewhere; check {self.variable}, or unset it to have a server started)"
        if self._handle is not None:
            log = self._handle.log_tail()
        space = space_left()
        self.close()
        return ServerFailed(f"{problem}\nThe last lines of its log:\n{log}{space}\nRemedy: {self._remedy}")

    def stop(self) -> None:
        """End the server in order; data and ports are kept for :meth:`start`."""
        self._ours.stop()

    def kill(self) -> None:
        """Send SIGKILL, as in a crash; data and ports are kept for :meth:`start`."""
        self._ours.kill()

    def freeze(self) -> None:
        """Send SIGSTOP: the server accepts connections, but does not answer until :meth:`thaw`."""
        self._ours.freeze()

    def thaw(self) -> None:
        """Send SIGCONT, after :meth:`freeze`."""
        self._ours.thaw()

    def close(self) -> None:
        """Remove the server with its data. A second call is harmless."""
        if self._handle is not None:
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
