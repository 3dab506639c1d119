"""The program of one worker process: an ordinary worker that tells what it does, and halts where it is told to.

Started by :mod:`demo.crew`. Orders come in as lines of JSON: first the configuration, then
``{"halt": "Held"}`` (stop at the next event of that name) and ``{"go": true}``. Events go out as lines of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from demo.flights import pipeline
from seekpoint import events
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.worker.worker import Worker

ORPHANED = 3  # exit code: whoever started us is gone


class Reporter:
    """An observer. It runs on the worker's thread: while it waits, the worker stands still at that very step."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._turn = out, threading.Lock()
        self._halt_at: str | None = None
        self._go = threading.Event()

    def __call__(self, event: events.Event) -> None:
        name = type(event).__name__
        told = _told(event)
        if told is not None:
            self._say({"event": name, **told})
        if name == self._halt_at:
            self._halt_at = None
            self._say({"event": "Halted", "step": name})
            self._go.wait()

    def obey(self, orders: IO[str]) -> None:
        """Carry out orders until there are no more: then the demo is gone, and so are we."""
        for line in orders:
            order = json.loads(line)
            if "halt" in order:
                self._go.clear()
                self._halt_at = order["halt"]
                self._say({"event": "Ordered", "step": order["halt"]})
            else:
                self._go.set()
        os._exit(ORPHANED)

    def _say(self, message: dict[str, Any]) -> None:
        with self._turn:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()


def _told(event: events.Event) -> dict[str, Any] | None:  # noqa: C901, PLR0911 -- one line per event
    """What the demo needs to know of an event; None for what it need not hear of."""
    match event:
        case events.Started():
            return {"owner": event.owner}
        case events.OnStandby():
            return {"run": str(event.run), "state": event.state}
        case events.Activated():
            return {"partition": event.partition.number, "offset": event.offset}
        case events.Revoked() | events.Released():
            return {"partitions": [p.number for p in event.partitions]}
        case events.ClaimLost():
            return {"partitions": [event.partition.number]}
        case events.Stalled():
            return {"partitions": [p.number for p in event.partitions], "ended": list(event.terminated)}
        case events.Committed():
            return {"ends": {span.partition.number: span.end for span in event.spans}}
        case events.DeadLettered():
            return {"partition": event.partition.number, "offset": event.offset, "cause": event.failure.cause}
        case events.RetryScheduled():
            return {"partition": event.partition.number, "offset": event.offset, "attempt": event.attempt}
        case events.Refused():
            return {"reason": event.reason}
        case events.DatabaseTrouble():
            return {"error": str(getattr(event.error, "orig", event.error)).strip().splitlines()[0]}
        case _:
            return None


def serve(prepare: Callable[[Mapping[str, Any]], tuple[Pipeline, Sequence[events.Observer]]]) -> None:
    """Run one worker until SIGTERM; ``prepare`` makes its pipeline, and who else observes, from the configuration."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    order = json.loads(sys.stdin.readline())
    reporter = Reporter(sys.stdout)
    made, observers = prepare(order)
    worker = Worker(
        made,
        engine=order["database"],
        kafka=order["kafka"],
        limits=Limits(**order["limits"]),
        observe=[*observers, reporter],
    )
    threading.Thread(target=reporter.obey, args=(sys.stdin,), daemon=True).start()
    worker.run()


if __name__ == "__main__":
    serve(lambda _order: (pipeline, ()))
