"""What a child of ``run --workers`` has of its parent: a pipe to report on, and one that ends with the parent."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer

from seekpoint.cli.errors import USAGE, exit_code, masked, message_of
from seekpoint.cli.workers_of_process import ProcessWorkers
from seekpoint.errors import ClusterChanged, GroupForgotten, HandlerOutdated, SchemaMismatch
from seekpoint.metrics import Samples
from seekpoint.metrics.processes import as_data

EVERY = 0.5  # seconds between two reports
METRICS = 4  # every so many of them: the metrics, too
GRACE = 25.0  # seconds that the batch in hand has once the parent has died
LEAVE = 5.0  # seconds after it to leave the group
WAIT = 1.0  # seconds at most that the end waits for a parent that reads nothing

_link: ParentLink | None = None


def linked() -> ParentLink | None:
    """The link to the parent; None in a process that was not started by ``run --workers``."""
    return _link


def attach(pipe: int) -> Sequence[str]:
    """Read the orders from standard input, which afterwards only says whether the parent lives; returns the words."""
    global _link  # noqa: PLW0603 -- a process has one parent
    with os.fdopen(os.dup(0), "rb", buffering=0) as orders:
        parent = os.dup(orders.fileno())
    line = bytearray()
    while (one := os.read(parent, 1)) not in {b"", b"\n"}:
        line += one
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # users' code reads nothing from there
    os.close(null)
    os.set_inheritable(pipe, False)  # not for processes that users' code starts
    given = json.loads(line)
    _link = ParentLink(parent, pipe, wants_metrics=given["metrics"])
    words: Sequence[str] = given["words"]
    return words


class ParentLink:
    """Reports to the parent how the workers are, and ends the process once the parent has died."""

    def __init__(self, parent: int, pipe: int, *, wants_metrics: bool) -> None:
        self._parent, self._pipe, self.wants_metrics = parent, pipe, wants_metrics
        self._lock = threading.Lock()
        self._workers: ProcessWorkers | None = None
        threading.Thread(target=self._await_end_of_parent, name="seekpoint-parent", daemon=True).start()

    def _await_end_of_parent(self) -> None:
        while os.read(self._parent, 1):
            pass
        if (workers := self._workers) is None:  # nothing is in hand
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            workers.stop(GRACE)
            threading.Event().wait(GRACE + LEAVE)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def reporting(self, workers: ProcessWorkers) -> Iterator[None]:
        """Report the workers' state twice a second within the block, and every two seconds their metrics."""
        self._workers = workers
        workers.watch_partitions()
        ended = threading.Event()

        def report() -> None:
            count = 0
            while not ended.wait(EVERY):
                state = {"joined": workers.has_joined, "waiting": workers.is_waiting, "groups": workers.groups}
                self._send({"state": workers.state().shown(), **state})
                count += 1
                if count % METRICS == 0:
                    self._send_metrics(workers)

        thread = threading.Thread(target=report, name="seekpoint-reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(WAIT)
            self._send_metrics(workers)

    def _send_metrics(self, workers: ProcessWorkers) -> None:
        if self.wants_metrics:
            samples = Samples()
            workers.add_to(samples)
            self._send({"metrics": as_data(samples)})

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Report what ends the process, as a sentence, and whether it would end so again."""
        try:
            yield
        except typer.Exit:
            raise
        except Exception as error:
            lasting = HandlerOutdated | SchemaMismatch | ClusterChanged | GroupForgotten
            final = isinstance(error, lasting) or exit_code(error) == USAGE
            self._send({"ended": masked(message_of(error)), "final": final})
            raise

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self._lock.acquire(timeout=WAIT):  # the parent reads nothing
            return
        try:
            left = json.dumps(message).encode() + b"\n"
            with suppress(OSError):  # the parent has died: the other thread knows
                while left:
                    left = left[os.write(self._pipe, left) :]
        finally:
            self._lock.release()
