"""One worker of a pool, in a separate process: reports every event, and obeys the breaks that faults set.

The first order says what to run. Until it comes the process waits, with everything imported, so that a replacement
joins at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":  # run by path: the package is the folder around this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos.worker.pipelines import pipeline_of
from seekpoint import Limits, Worker
from seekpoint.events import Activated, BatchOpened, ChunkRead, Committed, Event, Held, LagSampled, PartitionStopped
from seekpoint.ledger import GroupLedger
from seekpoint.records import Partition, Span
from seekpoint.testing.child_process import Reporter, receive, report


class ChaosReporter(Reporter):
    """Reports each event but the lag; ``Copying`` is a chunk that is read while the COPY is open.

    ``CommittedSmall`` comes before the ``Committed`` of a batch of two round trips: one for hold, advance and rows.
    The only partition of a topic other than the pool's is reported by the number at the end of the topic's name, and
    as ``TopicStopped`` if it is stopped, as only the one without a table is; that one is never ``Activated``.
    """

    _in_transaction = _is_small = False

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def watch_small_batches(self) -> None:
        """Note each batch that is held and advanced in one round trip, as only batches of two round trips are."""
        original = GroupLedger.hold_and_advance

        def noted(*args: Any) -> Any:
            moved = original(*args)
            self._is_small = True
            return moved

        patch.object(GroupLedger, "hold_and_advance", noted).start()

    def step(self, event: Event) -> str | None:
        """The event's name; for a chunk ``Copying`` inside a transaction, and None outside."""
        if isinstance(event, BatchOpened | Committed | Held):
            self._in_transaction = isinstance(event, Held)
            if isinstance(event, Committed) and self._is_small:
                report("CommittedSmall")
            self._is_small = self._is_small and isinstance(event, Held)
        if isinstance(event, Activated | PartitionStopped) and ".absent" in event.partition.topic:
            return "TopicStopped" if isinstance(event, PartitionStopped) else None
        if isinstance(event, ChunkRead):
            return "Copying" if self._in_transaction else None
        return None if isinstance(event, LagSampled) else super().step(event)

    def report(self, step: str, event: Event) -> None:
        """Report the event with numbers that differ for all topics."""
        super().report(step, replace(event, **{f.name: self._numbered(getattr(event, f.name)) for f in fields(event)}))

    def _numbered(self, value: Any) -> Any:
        match value:
            case Partition():
                is_other = value.topic != self._topic
                return Partition(self._topic, int(re.findall(r"\d+$", value.topic)[0])) if is_other else value
            case Span():
                return Span(self._numbered(value.partition), value.start, value.end)
            case tuple():
                return tuple(map(self._numbered, value))
        return value


def run(what: Mapping[str, Any]) -> None:
    """Work as ``what`` says until SIGTERM."""
    reporter = ChaosReporter(what["topic"])
    if what["break_at"]:
        reporter.break_at(**what["break_at"])
    reporter.obey()
    reporter.watch_small_batches()
    limits = Limits(**what["limits"])
    Worker(
        pipeline_of(what),
        engine=what["dsn"],
        kafka=what["kafka"],
        limits=limits,
        synchronous_commit=what["durable"],
        observe=[reporter],
    ).run()


if __name__ == "__main__":
    run(receive())
