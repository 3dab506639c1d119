"""What the reader asks the scheduler and the client for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from seekpoint import Limits
from seekpoint.events import Announcer
from seekpoint.postgres.user_code_time import Stopwatch
from seekpoint.records import Partition
from seekpoint.worker.assignment import Chunk
from seekpoint.worker.reader import Reader


class Scheduler:
    """One record is due in each of two partitions."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def due(self, most: int, held: Any = None) -> Chunk[Any]:
        self.asked.append((most, held))
        return Chunk([], {})

    def wait(self, most: float) -> float:
        return most


def test_due_records_of_partitions_that_the_transaction_does_not_hold_stay() -> None:
    """I2: their position is compared by no statement of it."""
    scheduler = Scheduler()
    assignment = SimpleNamespace(
        has_kept=False,
        scheduler=scheduler,
        client=SimpleNamespace(read=lambda most, wait: []),
        accept_messages=lambda messages: Chunk([], {}),
        keep_others=lambda new, held, is_full: new,
    )
    stopping = threading.Event()
    reader = Reader(
        cast("Any", None),
        Limits(),
        cast("Any", assignment),
        Announcer([]),
        Stopwatch(),
        is_ending=stopping.is_set,
    )
    held = frozenset({Partition("t", 0)})
    assert reader.read(10, 0, held) is None
    assert reader.read(10, 0) is None
    assert scheduler.asked == [(6, held), (5, None)]
