"""One worker of a crew, a process of its own: says every event on stdout, and obeys orders on stdin.

Both in lines of JSON. The first line says what to run; until it comes the process stands by with everything
imported, so that a replacement joins at once. Later lines set a *trap* (``{"trap": {"step": "Held", "nth": 2,
"do": "kill"}}``: kill or stop itself, or wait at that step) or end the wait (``{"go": true}``).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from seekpoint import Append, Bytes, Limits, Pipeline, Poison, Worker
from seekpoint.events import BatchOpened, ChunkRead, Committed, Event, Held, LagSampled
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Failure, Partition, Record, Span


def say(name: str, at: float, **values: Any) -> None:
    """One line on stdout, written whole before anything else happens: a process killed next has said it."""
    os.write(1, (json.dumps({"event": name, "at": at, **values}) + "\n").encode())


def plain(value: Any) -> Any:
    """An event's field as JSON has it; the crew reads one topic, so a partition is its number."""
    match value:
        case Partition():
            return value.number
        case Span():
            return [value.partition.number, value.start, value.end]
        case Failure():
            return f"{value.cause}: {value.error}"[:500]
        case BaseException():
            return f"{type(value).__name__}: {value}"[:500]
        case tuple():
            return [plain(one) for one in value]
        case _:
            return value


class Watch:
    """The observer: tells what happens, and springs the trap that is set."""

    def __init__(self) -> None:
        self._in_transaction = False
        self._trap: tuple[str, str] | None = None
        self._left = 0
        self._go = threading.Event()

    def set_trap(self, step: str, nth: int, do: str) -> None:
        """At the ``nth`` such step from now on: ``kill``, ``stop`` or ``wait``."""
        self._go.clear()
        self._trap, self._left = (step, do), nth

    def go(self) -> None:
        """Let the worker go on."""
        self._go.set()

    def __call__(self, event: Event) -> None:
        step = type(event).__name__
        if isinstance(event, BatchOpened | Committed):
            self._in_transaction = False
        if isinstance(event, ChunkRead):
            if not self._in_transaction:
                return
            step = "Copying"
        if isinstance(event, Held):
            self._in_transaction = True
        if not isinstance(event, LagSampled):
            values = {f.name: plain(getattr(event, f.name)) for f in fields(event) if f.name != "at"}
            say(step, event.at, **values)
        if self._trap is not None and self._trap[0] == step:
            self._left -= 1
            if self._left == 0:
                _, do = self._trap
                self._trap = None
                self._spring(do, event.at)

    def _spring(self, do: str, at: float) -> None:
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "stop":
            say("Stopping", at)
            os.kill(os.getpid(), signal.SIGSTOP)
            say("GoesOn", at)
        else:
            say("Waiting", at)
            if not self._go.wait(60):
                raise TimeoutError("nobody said go")


def die_with_parent() -> None:
    """Let the kernel kill us when the chaos run is gone: a stopped process would not notice."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def listen(watch: Watch) -> None:
    """Obey until stdin ends, which means that the run is over."""
    for line in sys.stdin:
        order = json.loads(line)
        if "trap" in order:
            say("TrapSet", 0.0)  # before it is: it may spring at once
            watch.set_trap(**order["trap"])
        else:
            watch.go()
    os._exit(3)


def run(what: Mapping[str, Any]) -> None:
    """Work as ``what`` says until SIGTERM."""
    name = what["name"]

    def row(record: Record[bytes, bytes | None]) -> tuple[str, int, int, str]:
        if record.value == b"poison":
            raise Poison("broken", record)
        if record.value == b"killer":
            os.kill(os.getpid(), signal.SIGKILL)
        return record.topic, record.partition, record.offset, "refused" if record.value == b"refused" else name

    columns = ["topic", "partition", "offset", "worker"]
    pipeline = Pipeline(
        what["group"],
        topics=what["topic"],
        value=Bytes(),
        sinks=[Append(what["table"], columns=columns, row=row)],
        synchronous_commit=what["durable"],
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )
    watch = Watch()
    if what["trap"]:
        watch.set_trap(**what["trap"])
    threading.Thread(target=listen, args=(watch,), daemon=True).start()
    limits = Limits(**what["limits"])
    Worker(pipeline, engine=what["dsn"], kafka=what["kafka"], limits=limits, observe=[watch]).run()


def main() -> None:
    """Stand by, then work."""
    die_with_parent()
    if line := sys.stdin.readline():
        run(json.loads(line))


if __name__ == "__main__":
    main()
