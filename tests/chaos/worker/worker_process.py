"""One worker of a pool, a process of its own: reports every event, and obeys the breaks that faults set.

The first order says what to run; until it comes the process waits with everything imported, so that a replacement joins
at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from seekpoint import Append, Bytes, Limits, Pipeline, Poison, Worker
from seekpoint.events import BatchOpened, ChunkRead, Committed, Event, Held, LagSampled
from seekpoint.pipeline.policy import DeadLetterLimits
from seekpoint.records import Record
from seekpoint.testing.child_process import Reporter, receive


class ChaosReporter(Reporter):
    """Reports each event but the lag; ``Copying`` is a chunk read while the COPY is open."""

    _in_transaction = False

    def step(self, event: Event) -> str | None:
        """The event's name, with ``Copying`` for a chunk within a transaction and None for one outside."""
        if isinstance(event, BatchOpened | Committed | Held):
            self._in_transaction = isinstance(event, Held)
        if isinstance(event, ChunkRead):
            return "Copying" if self._in_transaction else None
        return None if isinstance(event, LagSampled) else super().step(event)


def run(what: Mapping[str, Any]) -> None:
    """Work as ``what`` says until SIGTERM."""
    name = what["name"]

    def row(record: Record[bytes, bytes | None]) -> tuple[str, int, int, str]:
        if record.value == b"poison":
            raise Poison("broken", record)
        if record.value == b"crashing_record":
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
    reporter = ChaosReporter()
    if what["break_at"]:
        reporter.break_at(**what["break_at"])
    reporter.obey()
    limits = Limits(**what["limits"])
    Worker(pipeline, engine=what["dsn"], kafka=what["kafka"], limits=limits, observe=[reporter]).run()


if __name__ == "__main__":
    run(receive())
