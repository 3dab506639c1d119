"""Processes, ports and folders of throwaway servers, which end with their owner."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seekpoint.errors import ConfigError, install
from seekpoint.testing.servers import reaper


class ServerFailed(ConfigError):  # noqa: N818 -- named after what happened, like the rest of the tree
    """A throwaway server could not be started or does not answer; the message has its log and the remedy."""


class PackageMissing(ServerFailed):
    """A server needs a package that is not installed; another attempt does not help."""


class _Reaper:
    """The reaper process (see :mod:`.reaper`): one for this process, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(reaper.__file__))],
                    stdin=subprocess.PIPE,
                    bufsize=0,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal must not end it
                )
                atexit.register(self._let_go)
            # If the reaper was killed, only a crash of this process leaves its servers running.
            with contextlib.suppress(BrokenPipeError):
                if self._process.stdin is not None:
                    self._process.stdin.write(f"{line}\n".encode())

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def forget(self) -> None:
        """Drop the pipe in a forked child; otherwise the reaper would wait for the child's end, too."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # the parent waits for the reaper's end
        self._process = None
        self._lock = threading.Lock()


_reaper = _Reaper()
os.register_at_fork(after_in_child=_reaper.forget)


def at_exit(close: Callable[[], None]) -> None:
    """Call ``close`` at the orderly end of this process, but not at the end of a forked child."""
    owner = os.getpid()

    def run() -> None:
        if os.getpid() == owner:
            close()

    atexit.register(run)


_WAYS = 32  # most test processes at once, which draw different ports
_given = deque[int](maxlen=100)  # ports whose servers may not have bound them yet


def free_port() -> int:
    """A free TCP port of 127.0.0.1, outside the range of outgoing connections' ports.

    Within that range an outgoing connection may take the port while a server restarts. The same port is not returned
    again soon, nor in two processes of one pytest-xdist run, because a server binds it only seconds later.
    """
    first = 32_768
    with contextlib.suppress(OSError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw").removeprefix("gw") or _WAYS - 1)
    below = range(12_000 + worker % _WAYS, max(first, 13_000), _WAYS)
    untried = [port for port in below if port not in _given]
    for port in random.SystemRandom().sample(untried, min(100, len(untried))):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.append(port)
            return port
    raise ServerFailed(f"no free TCP port found on 127.0.0.1 between {below.start} and {below.stop}")


def reachable_by_all(path: Path) -> bool:
    """Whether any user of this machine may reach ``path``, and read or enter it."""
    mode = 0o005 if path.is_dir() else 0o004
    return all(folder.stat().st_mode & 0o001 for folder in path.parents) and path.stat().st_mode & mode == mode


class Folder:
    """A temporary folder that is removed by :meth:`close`, at exit, or by the reaper."""

    def __init__(self, name: str, *, owner: pwd.struct_passwd | None = None) -> None:
        parent = None
        if owner is not None and not reachable_by_all(Path(tempfile.gettempdir())):
            parent = "/tmp"  # noqa: S108 -- mkdtemp below makes the name unpredictable
        self.path = Path(tempfile.mkdtemp(prefix=f"seekpoint-{name}-", dir=parent))
        _reaper.tell(f"+dir {self.path}")
        if owner is not None:
            os.chown(self.path, owner.pw_uid, owner.pw_gid)

    def close(self) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)
        _reaper.tell(f"-dir {self.path}")


class Child:
    """A server process that is our direct child, so that we can wait for it after a kill.

    Postgres asks whether the process named in its lock file is alive, and a killed process that was not waited for
    counts as alive. ``freeze`` and ``kill`` also reach the server's own children.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Folder,
        *,
        user: pwd.struct_passwd | None = None,
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        _load_psutil()  # before the server starts, because at exit an import may fail
        self._command, self._folder = list(command), folder
        self._user, self._env, self._stop_signal = user, env, stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: ProcessTree | None = None
        self._log = folder.path / "server.log"

    @property
    def pid(self) -> int:
        """The server's process id; the last one if it is down."""
        if self._process is None:
            raise ServerFailed(f"{self._command[0]} was not started yet")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder.path,
                env=self._env,
                start_new_session=True,  # Ctrl-C in the terminal reaches only us; we stop our servers in order
                **as_user(self._user),
            )
        _reaper.tell(f"+pid {self._process.pid}")

    def stop(self) -> None:
        """End the server in order; kill it if that takes more than 30 seconds."""
        self.thaw()
        if self._process is None or not self.running:
            return
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        _reaper.tell(f"-pid {self._process.pid}")

    def kill(self) -> None:
        """Send SIGKILL to the server and its children, and wait until all have ended."""
        if self._process is None:
            return
        frozen, tree = self._frozen, ProcessTree(self.pid) if self.running else self._frozen
        if tree is not None:
            tree.kill()
        self._process.wait()
        deadline = time.monotonic() + 10
        # Orphans for which no process waits stay as zombies, so the wait is bounded.
        while time.monotonic() < deadline and tree is not None and tree.is_alive:
            time.sleep(0.005)
        for pid in {self._process.pid, *(frozen.pids if frozen is not None else ())}:
            _reaper.tell(f"-pid {pid}")
        self._frozen = None

    def freeze(self) -> None:
        """Send SIGSTOP to the server and its children: connections stay open without answers."""
        # The server first, so that it starts no further child.
        os.kill(self.pid, signal.SIGSTOP)
        self._frozen = ProcessTree(self.pid)
        self._frozen.suspend()
        for pid in self._frozen.pids:
            _reaper.tell(f"+pid {pid}")  # a stopped child does not notice that its server was killed

    def thaw(self) -> None:
        """Send SIGCONT to the processes that :meth:`freeze` stopped."""
        if self._frozen is None:
            return
        for pid in self._frozen.pids:
            if pid != self.pid:
                _reaper.tell(f"-pid {pid}")
        self._frozen.resume()
        self._frozen = None

    def close(self) -> None:
        """Kill the server and remove its folder."""
        self.kill()
        self._folder.close()

    def log_tail(self, lines: int = 25) -> str:
        """The last lines that the server wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


class ProcessTree:
    """A process and its children at the time of construction; empty if the process has ended."""

    def __init__(self, pid: int) -> None:
        self._members: list[Any] = []
        self._psutil = _load_psutil()
        with contextlib.suppress(self._psutil.NoSuchProcess):
            root = self._psutil.Process(pid)
            self._members = [root, *root.children(recursive=True)]

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    @property
    def is_alive(self) -> bool:
        """Whether one of the processes runs; a zombie, which holds neither memory nor ports, does not."""
        for member in self._members:
            with contextlib.suppress(self._psutil.NoSuchProcess):
                if member.status() != self._psutil.STATUS_ZOMBIE:
                    return True
        return False

    def kill(self) -> None:
        self._call("kill", self._members)

    def suspend(self) -> None:
        self._call("suspend", self._members)

    def resume(self) -> None:
        """Resume the children before their parent."""
        self._call("resume", self._members[::-1])

    def _call(self, method: str, members: Sequence[Any]) -> None:
        for member in members:
            with contextlib.suppress(self._psutil.NoSuchProcess):
                getattr(member, method)()


def _load_psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 -- of an extra
    except ModuleNotFoundError as error:
        raise PackageMissing(f"a throwaway server needs psutil: {install('dev')} ({error})") from error
    return psutil


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """The arguments with which ``subprocess`` runs a command as ``user``; none without a ``user``."""
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
