"""Python processes that start in milliseconds: ``Forked`` in the test, ``main`` in the process that forks them.

The forking process imports all scripts once and then only forks: it has no thread, no connection and no lock. It ends
with the test process.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

SCRIPTS = (
    "support.worker_process",
    "support.reload_process",
    "support.batch_process",
    "support.export_process",
    "support.frames_process",
    "support.sink_calls",
    "support.replace_process",
    "support.cli_process",
    "support.waiting_retries",
)
_SIZE = 1 << 20


class _Forker:
    """The forking process of this test process, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(self, order: Mapping[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            if self._socket is None:
                self._socket = self._begin()
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            self._socket.sendmsg([json.dumps(order).encode()], [rights])

    def _begin(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            process = subprocess.Popen(
                [sys.executable, "-W", "error", __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


_forker = _Forker()


class Forked:
    """A process that runs ``main(what)`` of one of ``SCRIPTS``; like ``subprocess.Popen`` with pipes of text.

    It has no standard input. ``env`` is added to its environment.
    """

    stdin = None

    def __init__(self, script: str, what: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> None:
        assert script in SCRIPTS, f"{script} is not imported by the process that forks"
        pipes = [os.pipe() for _ in range(3)]
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes[:2])
        self._status = os.fdopen(pipes[2][0], "rb", buffering=0)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        order = {"script": script, "what": what, "env": {**os.environ, **(env or {})}, "folder": str(Path.cwd())}
        try:
            _forker.start(order, [pipes[0][1], pipes[1][1], pipes[2][1]])
        finally:
            for _, write in pipes:
                os.close(write)
        self.pid = int.from_bytes(self._status.read(4), "big")
        assert self.pid, "the process that forks has ended"

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code (negative: the signal). Raises ``subprocess.TimeoutExpired``."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                self.returncode = int.from_bytes(self._status.read(4), "big", signed=True)
                self._status.close()
            return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int, /) -> None:
        """Send the process a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


# -- the process that forks -----------------------------------------------------------------------------------------


def _serve(orders: socket.socket) -> Callable[[], None] | None:
    """Fork until the tests have ended, then return None; in a forked process, return its task."""
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([orders.fileno(), wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _report(statuses)
        if orders.fileno() not in ready:
            continue
        message, rights, _, _ = orders.recvmsg(_SIZE, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        if not message:
            return None
        descriptors = array.array("i", rights[0][2])
        if pid := os.fork():
            statuses[pid] = descriptors[2]
            os.write(descriptors[2], pid.to_bytes(4, "big"))
            for descriptor in descriptors[:2]:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        for descriptor in (*descriptors, *statuses.values(), wake, woken):
            os.close(descriptor)
        return _task(json.loads(message))


def _report(statuses: dict[int, int]) -> None:
    """Write the exit code of each process that has ended to its pipe."""
    for pid, pipe in list(statuses.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):  # the test no longer asks
                os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            os.close(statuses.pop(pid))


def _task(order: Mapping[str, Any]) -> Callable[[], None]:
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    import_module("support.knobs").turn_in_child()
    return partial(import_module(order["script"]).main, order["what"])


def main() -> None:
    """Serve; a forked process leaves the loop, runs its script and ends."""
    for name in (*SCRIPTS, "support.knobs"):
        import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests: they end this process by closing its socket
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        task = _serve(orders)
    if task is not None:
        task()


if __name__ == "__main__":
    main()
