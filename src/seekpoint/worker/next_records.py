"""What a worker reads next: delayed and failed records that are due, and new ones of the client."""

from __future__ import annotations

from typing import Any

from seekpoint import events
from seekpoint.events import Announcer
from seekpoint.kafka.client import lazy_records
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment import Chunk, WorkerAssignment
from seekpoint.worker.open_batch import CHUNK


class DueAndNew:
    """Reads chunks of due records from the scheduler, and of new ones from the client."""

    def __init__(self, assignment: WorkerAssignment, announce: Announcer) -> None:
        self._assignment, self._announce = assignment, announce
        self._due_first = False  # whether a single free place in a batch is a due record's

    def read(self, most: int, wait: float) -> Chunk[RawRecord] | None:
        """Up to ``most`` records, due ones first; waits up to ``wait`` seconds for a first one. None: there is none."""
        room, due, scheduler = min(CHUNK, most), None, self._assignment.scheduler
        if scheduler:
            # Half of the room each: neither due records nor new ones keep the others out.
            self._due_first = not self._due_first
            due = scheduler.due(room // 2 + self._due_first)
            room -= len(due)
            wait = 0 if len(due) else scheduler.wait(wait)
        new = self._assignment.accept_messages(self._assignment.client.read(room, wait)) if room else None
        if new is None or not len(new):
            return due if due is not None and len(due) else None
        self._announce(events.ChunkRead(records=len(new)))
        chunk = self._readable(new)
        return chunk if due is None or not len(due) else due.and_then(chunk)

    def _readable(self, new: Chunk[Any]) -> Chunk[RawRecord]:
        """The messages as lazy records; those that cannot be read are found now."""
        records, unreadable = lazy_records(list(new), next(iter(new.reads)) if len(new.reads) == 1 else None)
        for record, error in unreadable:
            self._assignment.active[Partition(record.topic, record.partition)].unreadable[record.offset] = error
        return Chunk(records, new.reads, unreadable)
