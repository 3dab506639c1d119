"""A worker in a real process, to be killed, frozen and drained: ``WorkerProcess`` on this side, ``main`` on the other.

The process runs ``Worker.run()`` in its main thread and reports each event.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psutil
from sqlalchemy import Connection, create_engine, text

from seekpoint import Batch, Limits, Retry, Worker
from seekpoint.testing.child_process import ChildProcess, Reporter, report
from support.crashing_handlers import Deadly
from support.forked_process import Forked
from support.recorded_rows import Book


class WorkerProcess(ChildProcess):
    """One process. ``stop_at=("Held", 3)`` makes it stop itself (SIGSTOP) at its third such event.

    ``handle="blocks"`` gives it a handler that never returns, ``"slow"`` one that waits for the database,
    ``"deadly"`` one that does as the records say. ``retry={...}``, ``delay=seconds``, ``on_poison=`` and ``version=``
    go to its pipeline; so does ``entries=True``, for values that are rows.
    """

    def __init__(self, **what: Any) -> None:
        super().__init__(Forked("support.worker_process", what))

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)


def _blocks(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that comes back only by an exception."""
    was = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        report("signal seen")
        assert callable(was)
        was(number, frame)

    signal.signal(signal.SIGTERM, handle)
    report("handler entered")
    threading.Event().wait(60)


def _slow(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that waits for a slow database."""
    tx.execute(text("SELECT pg_sleep(0.25)"))


_HANDLERS: dict[str, Any] = {"blocks": _blocks, "slow": _slow}


def main(what: Mapping[str, Any]) -> None:
    """Run a worker as ``what`` says, in the main thread, until SIGTERM."""
    engine = create_engine(what["dsn"])
    book = Book(engine, what["schema"])
    reporter = Reporter()
    if "stop_at" in what:
        step, nth = what["stop_at"]
        reporter.break_at(step, nth, "stop")
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
        book.pipeline(what["group"], what["topic"], entries=what.get("entries", False), **options),
        engine=what["dsn"],
        kafka=what["kafka"],
        schema=what["schema"],
        limits=Limits(**what.get("limits", {})),
        partitions=what.get("partitions"),
        mirror=what.get("mirror", False),
        observe=[deadly.watch, reporter],
    )
    worker.run()
