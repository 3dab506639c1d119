"""Reads chunks for batches: due records, queued chunks, and new ones, which it may read ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seekpoint import events
from seekpoint.events import Announcer
from seekpoint.kafka.client import lazy_records
from seekpoint.pipeline.policy import Limits
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment import Chunk, WorkerAssignment
from seekpoint.worker.open_batch import CHUNK
from seekpoint.worker.waiting import Stopwatch

AHEAD = 500  # fewest records read at once, so that several small transactions share one answer about topic ids


class Reader:
    """Reads chunks of due records from the scheduler, and of new ones from the client.

    While a transaction waits for the server, :meth:`read_ahead` reads chunks, which :meth:`read` then returns in order,
    for this batch or a later one. ``is_ending``: whether the worker stops.
    """

    def __init__(
        self,
        writers: PipelineWriters,
        limits: Limits,
        assignment: WorkerAssignment,
        announce: Announcer,
        stopwatch: Stopwatch,
        *,
        is_ending: Callable[[], bool],
    ) -> None:
        self._writers, self._limits, self._assignment = writers, limits, assignment
        self._announce, self._stopwatch, self._is_ending = announce, stopwatch, is_ending
        self._due_first = False  # whether a due record, not a new one, gets the only free place in a batch
        self._has_more = False  # the client's last answer was full
        self._failed: BaseException | None = None  # an error while reading ahead

    def read(self, most: int, wait: float, held: frozenset[Partition] | None = None) -> Chunk[RawRecord] | None:
        """Up to ``most`` records, due ones first, or None; waits up to ``wait`` seconds for the first record.

        With ``held``, only records of these partitions; other records that were read begin the next batch.
        """
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        if held is not None and len(self._assignment.partitions.queue):
            return self._queued(most, held)
        room, due, scheduler = min(CHUNK, most), None, self._assignment.scheduler
        if scheduler:
            # Due records and new ones get half of the room each, so that neither delays the other.
            self._due_first = not self._due_first
            due = scheduler.due(room // 2 + self._due_first, held)
            room -= len(due)
            wait = 0 if len(due) else scheduler.wait(wait)
        new = self._new(room, wait, held) if room else None
        if new is None or not len(new):
            return due if due is not None and len(due) else None
        return new if due is None or not len(due) else due.and_then(new)

    def draw(self, most: int, held: frozenset[Partition] | None) -> Chunk[RawRecord] | None:
        """Up to ``most`` more records for the open batch; None if there are none now, or the batch has to end."""
        return None if self._ends_batch() else self.read(most, 0, held)

    def _ends_batch(self) -> bool:
        """Whether Kafka revoked a partition, or the worker was asked to stop."""
        return self._assignment.partitions.has_revoked or self._is_ending()

    def _new(self, most: int, wait: float, held: frozenset[Partition] | None) -> Chunk[RawRecord]:
        """Up to ``most`` new records. For small batches, more are read at once, and the rest is queued.

        While records are queued, the client is still polled, so that rebalances run.
        """
        partitions = self._assignment.partitions
        if held is not None:
            new = self._read(most, wait)
            return self._assignment.keep_others(new, held, is_full=self._has_more)
        enough = max(most, min(AHEAD, CHUNK))
        if not len(partitions.queue):
            new = self._read(enough, wait)
            if len(new) <= most:
                return new
            partitions.keep(new)
        elif enough > most:
            if len(new := self._read(most, 0)):
                partitions.keep(new)
            if partitions.has_revoked or not len(partitions.queue):
                return Chunk([], {})  # revoked partitions are released first
        chunk = partitions.take_queued(most)
        # Take as many records as were read, or queued chunks would pile up.
        while enough > most and len(chunk) < most and len(partitions.queue):
            chunk = chunk.and_then(partitions.take_queued(most - len(chunk)))
        return chunk

    def _read(self, most: int, wait: float) -> Chunk[RawRecord]:
        """Read from the client; returns the records that may be applied now."""
        messages = self._assignment.client.read(most, wait)
        self._has_more = len(messages) >= most
        return self._readable(self._assignment.accept_messages(messages))

    def has_more(self) -> bool:
        """Whether reading ahead is likely to find records. Batches smaller than a chunk gain nothing from it."""
        return self._has_more and self._limits.batch_records >= CHUNK

    def read_ahead(self) -> bool:
        """Read and decode one more chunk without waiting; False if there is none, or none may be read now.

        Reads at most one batch ahead. The next :meth:`read` raises this read's errors and SystemExit; errors of a codec
        are raised when the records are applied.
        """
        if not self._may_read_ahead():
            return False
        try:
            chunk = self._read(CHUNK, 0)
        except Exception as error:  # noqa: BLE001 -- the transaction that waits is not at fault
            self._failed = error
            return False
        if not len(chunk):
            return False
        self._assignment.partitions.keep(chunk)
        try:
            with self._stopwatch:
                self._writers.prepare(chunk.messages)
        except SystemExit as error:  # raised when the transaction that waits has ended
            self._failed = error
            return False
        return True

    def _may_read_ahead(self) -> bool:
        assignment, limits = self._assignment, self._limits
        if not self.has_more() or self._failed is not None or self._ends_batch():
            return False
        if assignment.scheduler:  # its waiting records are applied first
            return False
        chunks = assignment.partitions.queue
        return chunks.records + CHUNK <= limits.batch_records and chunks.bytes < limits.batch_bytes

    def _queued(self, most: int, held: frozenset[Partition]) -> Chunk[RawRecord] | None:
        """The held partitions' part of the first queued chunk, if that chunk fits."""
        chunks = self._assignment.partitions.queue
        first = chunks.first
        has_more = len(chunks) > 1 or len(first) >= CHUNK
        if held.isdisjoint(first.reads):
            self._assignment.closed_by_another(is_full=has_more)
            return None
        if len(first) > most:
            return None
        chunk = self._assignment.keep_others(self._assignment.partitions.take_queued(), held, is_full=has_more)
        return chunk if len(chunk) else None

    def _readable(self, new: Chunk[Any]) -> Chunk[RawRecord]:
        """Convert messages to lazy records, and note the errors of unreadable headers."""
        if not len(new):
            return Chunk([], {})
        self._announce(events.ChunkRead(records=len(new)))
        records, unreadable = lazy_records(list(new), next(iter(new.reads)) if len(new.reads) == 1 else None)
        for record, error in unreadable:
            self._assignment.active[Partition(record.topic, record.partition)].unreadable[record.offset] = error
        return Chunk(records, new.reads, unreadable, read_by=new.read_by)
