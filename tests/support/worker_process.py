"""A worker in a process that tests kill, freeze and drain: ``WorkerProcess`` in the test, ``main`` in the process.

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
from sqlalchemy.ext.asyncio import AsyncConnection

from seekpoint import Batch, Limits, Retry, Worker
from seekpoint.testing.child_process import ChildProcess, Reporter, report
from support.crashing_handlers import CrashingHandler
from support.forked_process import Forked
from support.recorded_rows import RecordTable


class WorkerProcess(ChildProcess):
    """A process with a worker. ``stop_at=("Held", 3)`` makes it stop itself (SIGSTOP) at its third Held event.

    ``handle="blocks"`` gives it a handler that never returns, ``"awaits"`` such an async one, ``"slow"`` one that
    waits for the database, ``"crashing"`` a CrashingHandler. ``retry={...}``, ``delay=seconds``,
    ``on_poison=``, ``retry_order=``, ``version=`` and ``entries=True``, for values that are rows, go to its pipeline.
    """

    def __init__(self, **what: Any) -> None:
        super().__init__(Forked("support.worker_process", what))

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)


def _blocks(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that ends only by an exception."""
    _report_signals()
    threading.Event().wait(60)


async def _awaits(tx: AsyncConnection, batch: Batch[str, Any]) -> None:
    """An async handler of that kind, inside a statement."""
    _report_signals()
    await tx.execute(text("SELECT pg_sleep(600)"))


def _report_signals() -> None:
    was = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        report("signal seen")
        assert callable(was)
        was(number, frame)

    signal.signal(signal.SIGTERM, handle)
    report("handler entered")


def _slow(tx: Connection, batch: Batch[str, Any]) -> None:
    """A handler that waits for a slow database."""
    tx.execute(text("SELECT pg_sleep(0.25)"))


_HANDLERS: dict[str, Any] = {"blocks": _blocks, "awaits": _awaits, "slow": _slow}


def main(what: Mapping[str, Any]) -> None:
    """Run a worker as ``what`` says, in the main thread, until SIGTERM."""
    engine = create_engine(what["dsn"])
    record_table = RecordTable(engine, what["schema"])
    reporter = Reporter()
    if "stop_at" in what:
        step, nth = what["stop_at"]
        reporter.break_at(step, nth, "stop")
    crashing_handler = CrashingHandler(record_table)
    options: dict[str, Any] = {"on_poison": what.get("on_poison", "stop"), "version": what.get("version", 1)}
    options["retry_order"] = what.get("retry_order", "partition")
    if "handle" in what:
        options["handle"] = crashing_handler if what["handle"] == "crashing" else _HANDLERS[what["handle"]]
    if "retry" in what:
        options["retry"] = Retry(**what["retry"])
    if "delay" in what:
        options["delay"] = timedelta(seconds=what["delay"])
    engine.dispose()  # it was the table's; the worker gets a URL, and what it opens it closes
    worker = Worker(
        record_table.pipeline(what["group"], what["topic"], entries=what.get("entries", False), **options),
        engine=what["dsn"],
        kafka=what["kafka"],
        schema=what["schema"],
        limits=Limits(**what.get("limits", {})),
        partitions=what.get("partitions"),
        mirror=what.get("mirror", False),
        observe=[crashing_handler.watch, reporter],
    )
    worker.run()
