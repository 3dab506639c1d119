"""A server's process and its children, by psutil."""

from __future__ import annotations

from contextlib import suppress

import psutil


class ProcessTree:
    """A process and all its children at the time when this is made; empty where the process has ended."""

    def __init__(self, pid: int) -> None:
        self._members: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            self._members = [root, *root.children(recursive=True)]

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    @property
    def is_alive(self) -> bool:
        """Whether one of them runs; a zombie, which holds neither memory nor ports, does not."""
        return any(map(_is_alive, self._members))

    def kill(self) -> None:
        for member in self._members:
            with suppress(psutil.NoSuchProcess):
                member.kill()

    def suspend(self) -> None:
        for member in self._members:
            with suppress(psutil.NoSuchProcess):
                member.suspend()

    def resume(self) -> None:
        """Resume the children before their parent."""
        for member in reversed(self._members):
            with suppress(psutil.NoSuchProcess):
                member.resume()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
