"""What the reader asks the scheduler and the client for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seekpoint import Limits
from seekpoint.events import Announcer
from seekpoint.postgres.user_code_time import Stopwatch
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment import Chunk
from seekpoint.worker.assignment.kept import KeptChunks
from seekpoint.worker.open_batch import CHUNK
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


@pytest.mark.parametrize(("each", "is_read"), [(10, True), (1000, False)])
def test_what_another_batch_left_counts_towards_the_bytes_that_may_be_read_ahead(each: int, is_read: bool) -> None:
    """What is read ahead is bounded as a batch is, with what was put back from a chunk of two partitions."""
    kept, asked = KeptChunks(), 0

    def read(most: int, wait: float) -> list[Any]:
        nonlocal asked
        asked += 1
        return [None] * most if asked == 1 else []

    assignment = SimpleNamespace(
        has_kept=False,
        has_revoked=False,
        kept=kept,
        scheduler=None,
        client=SimpleNamespace(read=read),
        accept_messages=lambda messages: Chunk([], {}),
    )
    limits = Limits(batch_bytes=10_000)
    unused = cast("Any", None)
    reader = Reader(unused, limits, cast("Any", assignment), Announcer([]), Stopwatch(), is_ending=lambda: False)
    reader.read(CHUNK, 0)
    assert reader.has_more()
    kept.put_back(Chunk([RawRecord("t", 0, n, 1, None, b"x" * each, (), None) for n in range(10)], {}))
    reader.read_ahead()
    assert (asked == 2) is is_read
