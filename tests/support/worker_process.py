"""A worker in a real process, to be killed, frozen and drained: ``Member`` on this side, ``main`` on the other.

The process runs ``Worker.run()`` in its main thread and prints each event as a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from time import monotonic
from typing import Any

import psutil
from sqlalchemy import Connection, create_engine, text

from seekpoint import Batch, Limits, Retry, Worker
from seekpoint.events import Event
from support.crashing_handlers import Deadly
from support.forked_process import Forked
from support.recorded_rows import Book

Said = Mapping[str, Any]


class Member:
    """One process. ``stop_at=("Held", 3)`` makes it stop itself (SIGSTOP) at its third such event.

    ``handle="blocks"`` gives it a handler that never returns, ``"slow"`` one that waits for the database,
    ``"deadly"`` one that does as the records say. ``retry={...}``, ``delay=seconds``, ``on_poison=`` and ``version=``
    go to its pipeline.
    """

    def __init__(self, **what: Any) -> None:
        self.said: list[Said] = []
        self._news = threading.Condition()
        self._process = Forked("support.worker_process", what)
        self._errors = ""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._news:
                self.said.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self.said.append({"event": "(process ended)"})
            self._news.notify_all()

    def _read_errors(self) -> None:
        self._errors = self._process.stderr.read()

    def all(self, event: str) -> list[Said]:
        """Its events of this name so far."""
        with self._news:
            return [one for one in self.said if one["event"] == event]

    def wait_for(
        self, event: str, where: Callable[[Said], bool] | None = None, *, count: int = 1, timeout: float = 30
    ) -> Said:
        """The ``count``-th event of this name; fails at once if the process has ended without it."""
        deadline = monotonic() + timeout
        with self._news:
            while True:
                found = [one for one in self.said if one["event"] == event and (where is None or where(one))]
                if len(found) >= count:
                    return found[count - 1]
                ended = bool(self.said) and self.said[-1]["event"] == "(process ended)"
                if ended or not self._news.wait(max(0.0, deadline - monotonic())):
                    tail = "\n  ".join(map(str, self.said[-20:]))
                    raise AssertionError(f"{event}: {len(found)} of {count} in {timeout} s\n  {tail}\n{self._errors}")

    def wait_until_stopped(self, timeout: float = 30) -> None:
        """Until the process has stopped itself."""
        deadline, pause, process = monotonic() + timeout, threading.Event(), psutil.Process(self.pid)
        while process.status() != psutil.STATUS_STOPPED:
            assert monotonic() < deadline, f"it did not stop itself within {timeout} s: {self.said[-5:]}"
            pause.wait(0.01)

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self.ended()

    def ended(self, timeout: float = 30) -> tuple[int, str]:
        """Wait for its end; the exit code (negative: the signal) and what it wrote to stderr."""
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join(10)
        for stream in (self._process.stdout, self._process.stderr):
            stream.close()
        return code, self._errors

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process.returncode is None:
            self.kill()


def _say(event: Event) -> None:
    _tell(type(event).__name__, **{f.name: str(getattr(event, f.name)) for f in fields(event)})


def _blocks(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that comes back only by an exception."""
    was = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        _tell("signal seen")
        assert callable(was)
        was(number, frame)

    signal.signal(signal.SIGTERM, handle)
    _tell("handler entered")
    threading.Event().wait(60)


def _slow(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that waits for a slow database."""
    tx.execute(text("SELECT pg_sleep(0.25)"))


_HANDLERS: dict[str, Any] = {"blocks": _blocks, "slow": _slow}


def _tell(event: str, **more: str) -> None:
    os.write(1, (json.dumps({**more, "event": event}) + "\n").encode())


def main(what: Mapping[str, Any]) -> None:
    """Run a worker as ``what`` says, in the main thread, until SIGTERM."""
    engine = create_engine(what["dsn"])
    book = Book(engine, what["schema"])
    at, left = what.get("stop_at") or ("", 0)

    def watch(event: Event) -> None:
        nonlocal left
        _say(event)
        if type(event).__name__ == at:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)

    deadly = Deadly(book)
    options: dict[str, Any] = {"on_poison": what.get("on_poison", "stop"), "version": what.get("version", 1)}
    if "handle" in what:
        options["handle"] = deadly if what["handle"] == "deadly" else _HANDLERS[what["handle"]]
    if "retry" in what:
        options["retry"] = Retry(**what["retry"])
    if "delay" in what:
        options["delay"] = timedelta(seconds=what["delay"])
    engine.dispose()  # it was the book's; the worker gets a URL, and what it opens it closes
    worker = Worker(
        book.pipeline(what["group"], what["topic"], **options),
        engine=what["dsn"],
        kafka=what["kafka"],
        schema=what["schema"],
        limits=Limits(**what.get("limits", {})),
        partitions=what.get("partitions"),
        observe=[deadly.watch, watch],
    )
    worker.run()
