"""What the reader asks the scheduler and the client for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seekpoint import Append, Limits, Pipeline
from seekpoint.events import Announcer
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import LazyRecords, Partition, RawRecord
from seekpoint.worker.assignment import Chunk
from seekpoint.worker.assignment.chunk_queue import ChunkQueue
from seekpoint.worker.open_batch import CHUNK
from seekpoint.worker.reader import Reader
from seekpoint.worker.waiting import Stopwatch


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
        partitions=SimpleNamespace(queue=ChunkQueue()),
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


@pytest.mark.parametrize(("size", "is_read"), [(10, True), (1000, False)])
def test_what_another_batch_left_counts_towards_the_bytes_that_may_be_read_ahead(size: int, is_read: bool) -> None:
    """What is read ahead is bounded as a batch is, with what was put back from a chunk of two partitions."""
    kept, asked = ChunkQueue(), 0

    def read(most: int, wait: float) -> list[Any]:
        nonlocal asked
        asked += 1
        return [None] * most if asked == 1 else []

    assignment = SimpleNamespace(
        partitions=SimpleNamespace(queue=kept, has_revoked=False),
        scheduler=None,
        client=SimpleNamespace(read=read),
        accept_messages=lambda messages: Chunk([], {}),
    )
    limits = Limits(batch_bytes=10_000)
    unused = cast("Any", None)
    reader = Reader(unused, limits, cast("Any", assignment), Announcer([]), Stopwatch(), is_ending=lambda: False)
    reader.read(CHUNK, 0)
    assert reader.has_more()
    kept.put_back(Chunk([RawRecord("t", 0, n, 1, None, b"x" * size, (), None) for n in range(10)], {}))
    reader.read_ahead()
    assert (asked == 2) is is_read


# -- reading ahead -----------------------------------------------------------------------------------------------


@dataclass
class FakeQueue:
    """What an assignment keeps."""

    records: int = 0
    bytes: int = 0
    first: Any = ()

    def __len__(self) -> int:
        return 1 if len(self.first) else 0


@dataclass
class FakeAssignment:
    """An assignment whose client has more at each read; ``reads`` counts them."""

    queue: FakeQueue = field(default_factory=FakeQueue)
    has_revoked: bool = False
    scheduler: Any = None
    reads: int = 0

    @property
    def client(self) -> Any:
        return SimpleNamespace(read=self._read)

    @property
    def partitions(self) -> Any:
        return self

    def _read(self, most: int, wait: float) -> list[Any]:
        self.reads += 1
        return [None] * most

    def accept_messages(self, messages: list[Any]) -> Chunk[Any]:
        return Chunk([], {})

    def keep_others(self, new: Chunk[Any], held: Any, *, is_full: bool) -> Chunk[Any]:
        return new

    def take_queued(self, most: int | None = None) -> Any:
        return self.queue.first


def full_reader(assignment: FakeAssignment, stopping: threading.Event, pipeline: Any = None) -> Reader:
    """A reader whose client's last answer was full."""
    limits = Limits(batch_records=1000, batch_bytes=1000)
    reader = Reader(pipeline, limits, cast("Any", assignment), Announcer([]), Stopwatch(), is_ending=stopping.is_set)
    reader.read(10, 0)
    assert (reader.has_more(), assignment.reads) == (True, 1)
    return reader


def revoke(assignment: FakeAssignment, stopping: threading.Event) -> None:
    assignment.has_revoked = True


def fill(assignment: FakeAssignment, stopping: threading.Event) -> None:
    assignment.queue.bytes = 1000


def fail(assignment: FakeAssignment, stopping: threading.Event) -> None:
    assignment.scheduler = Scheduler()


def end(assignment: FakeAssignment, stopping: threading.Event) -> None:
    stopping.set()


@pytest.mark.parametrize("happens", [revoke, end, fill, fail], ids=["revoked", "ending", "bytes", "a backlog"])
def test_nothing_is_read_ahead(happens: Callable[[FakeAssignment, threading.Event], None]) -> None:
    """After a revocation (I2), at the end, past ``Limits.batch_bytes``, or while a backlog exists."""
    assignment, stopping = FakeAssignment(), threading.Event()
    reader = full_reader(assignment, stopping)
    reader.read_ahead()
    assert assignment.reads == 2, "it is read ahead before"
    happens(assignment, stopping)
    assert not reader.read_ahead()
    assert assignment.reads == 2


def test_a_kept_chunk_that_is_larger_than_the_room_closes_the_batch() -> None:
    """``Limits.batch_records`` is exact."""
    assignment = FakeAssignment()
    reader = full_reader(assignment, threading.Event())
    held = frozenset([Partition("t", 0)])
    reads: Any = dict.fromkeys(held)
    assignment.queue.first = Chunk(list(range(5)), reads)
    assert reader.read(4, 0, held) is None
    assert reader.read(5, 0, held) is assignment.queue.first


@pytest.mark.parametrize(("most", "asked"), [(1, True), (499, True), (500, False)])
def test_between_small_batches_the_client_is_asked_though_records_are_kept(most: int, asked: bool) -> None:
    """Rebalances run when it is: hundreds of transactions of a slow handler would delay them all that time."""
    assignment = FakeAssignment()
    reader = full_reader(assignment, threading.Event())
    assignment.queue.first = Chunk(list(range(600)), {})
    assert reader.read(most, 0.2) is assignment.queue.first
    assert (assignment.reads == 2) is asked


def test_an_exit_while_rows_are_made_ahead_is_raised_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler of the host raises it wherever the worker's thread is, and once."""
    calls: list[bytes] = []

    def codec(value: bytes) -> int:
        calls.append(value)
        raise SystemExit(3)

    sink: Append[int, Any] = Append("t", columns=["v"])
    writers = PipelineWriters(Pipeline("g", topics="t", value=codec, sinks=[sink]))
    records = LazyRecords([b"1"], list, lambda: [0], topic="t", size=1)
    with pytest.raises(SystemExit):
        writers.prepare(records)
    assert calls
    assignment = FakeAssignment()
    kept: list[Chunk[Any]] = []
    reader = full_reader(assignment, threading.Event(), writers)
    monkeypatch.setattr(reader, "_readable", lambda new: Chunk(records, {}))
    monkeypatch.setattr(assignment, "keep", kept.append, raising=False)
    assert not reader.read_ahead()
    assert kept
    assert not reader.read_ahead(), "nor anything after it"
    with pytest.raises(SystemExit):
        reader.read(10, 0)
