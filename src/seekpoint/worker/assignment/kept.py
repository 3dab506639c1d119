"""Chunks that were read and wait for the next batch: what another batch left, and what was read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from seekpoint.records import Partition, RawRecord, size_of
from seekpoint.worker.assignment.chunk import Chunk, Read


class KeptChunks:
    """A queue of chunks. What it has of one partition has no gap: each chunk begins where the one before ended."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Chunk[RawRecord], int]] = deque()  # each with its bytes, which are counted once
        self.records = self.bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def topics(self) -> set[str]:
        """Of which there is something."""
        return {partition.topic for chunk, _ in self._chunks for partition in chunk.reads}

    @property
    def first(self) -> Chunk[RawRecord]:
        """The one that is taken next."""
        return self._chunks[0][0]

    def append(self, chunk: Chunk[RawRecord]) -> None:
        """Put it after the others."""
        self._chunks.append((chunk, self._added(chunk)))

    def put_back(self, chunk: Chunk[RawRecord]) -> None:
        """Put it in front of the others."""
        self._chunks.appendleft((chunk, self._added(chunk)))

    def take(self) -> Chunk[RawRecord]:
        """Remove and return the first one."""
        chunk, size = self._chunks.popleft()
        self.records -= len(chunk)
        self.bytes -= size
        return chunk

    def divide_first(self, records: int) -> None:
        """Divide the first one, if it has more, into so many records and the others."""
        if len(self.first) > records:
            first, rest = divided(self.take(), records)
            self.put_back(rest)
            self.put_back(first)

    def take_all(self, partitions: Collection[Partition]) -> list[Chunk[RawRecord]]:
        """Remove and return everything of these partitions, in order."""
        taken = []
        for _ in range(len(self._chunks)):
            chunk = self.take()
            if gone := {p: read for p, read in chunk.reads.items() if p in partitions}:
                taken.append(part(chunk, gone))
            if left := {p: read for p, read in chunk.reads.items() if p not in gone}:
                self.append(part(chunk, left))
        return taken

    def has(self, partition: Partition) -> bool:
        """Whether there is something of the partition."""
        return any(partition in chunk.reads for chunk, _ in self._chunks)

    def _added(self, chunk: Chunk[RawRecord]) -> int:
        """Count it; returns its bytes."""
        size = size_of(chunk.messages)
        self.records += len(chunk)
        self.bytes += size
        return size


def part(chunk: Chunk[RawRecord], reads: Mapping[Partition, Read]) -> Chunk[RawRecord]:
    """What was read of these partitions."""
    if reads.keys() == chunk.reads.keys():
        return chunk
    records = [one for one in chunk.messages if (one.topic, one.partition) in reads]
    unreadable = [(one, error) for one, error in chunk.unreadable if (one.topic, one.partition) in reads]
    return Chunk(records, dict(reads), unreadable, read_by=chunk.read_by)


def divided(chunk: Chunk[RawRecord], records: int) -> tuple[Chunk[RawRecord], Chunk[RawRecord]]:
    """The first records of the chunk, and the others: of each partition the second part begins where the first ends."""
    first, rest = list(chunk.messages[:records]), list(chunk.messages[records:])
    reads: dict[Partition, Read] = {}
    for record in first:
        partition = Partition(record.topic, record.partition)
        read, end = chunk.reads[partition], record.offset + 1
        reads[partition] = Read(read.claim, read.start, end, record.leader_epoch, record.timestamp_ms)
    after = {p: read.since(reads[p].end) if p in reads else read for p, read in chunk.reads.items()}
    after = {partition: read for partition, read in after.items() if read.start < read.end}
    places = {(record.topic, record.partition, record.offset) for record in first}
    unreadable: tuple[list[Any], list[Any]] = [], []
    for record, error in chunk.unreadable:
        unreadable[(record.topic, record.partition, record.offset) not in places].append((record, error))
    return (
        Chunk(first, reads, unreadable[0], read_by=chunk.read_by),
        Chunk(rest, after, unreadable[1], read_by=chunk.read_by),
    )
