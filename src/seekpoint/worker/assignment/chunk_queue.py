"""Chunks that wait for the next batch: the last batch did not take them, or they were read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from seekpoint.records import Partition, RawRecord, size_of
from seekpoint.worker.assignment.chunk import Chunk, Read


class ChunkQueue:
    """A queue of chunks without gaps: each begins where the previous one of its partition ended."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Chunk[RawRecord], int]] = deque()  # each with its bytes, which are counted once
        self.records = self.bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def topics(self) -> set[str]:
        """The topics of the queued chunks."""
        return {partition.topic for chunk, _ in self._chunks for partition in chunk.reads}

    @property
    def first(self) -> Chunk[RawRecord]:
        """The next chunk."""
        return self._chunks[0][0]

    def append(self, chunk: Chunk[RawRecord]) -> None:
        """Put a chunk after the others."""
        self._chunks.append((chunk, self._added(chunk)))

    def put_back(self, chunk: Chunk[RawRecord]) -> None:
        """Put a chunk before the others."""
        self._chunks.appendleft((chunk, self._added(chunk)))

    def take(self) -> Chunk[RawRecord]:
        """Remove and return the first chunk."""
        chunk, size = self._chunks.popleft()
        self.records -= len(chunk)
        self.bytes -= size
        return chunk

    def divide_first(self, records: int) -> None:
        """Divide the first chunk after this number of records, if it has more."""
        if len(self.first) > records:
            first, rest = divided(self.take(), records)
            self.put_back(rest)
            self.put_back(first)

    def take_all(self, partitions: Collection[Partition]) -> list[Chunk[RawRecord]]:
        """Remove and return all chunks of these partitions, in order."""
        chunks = []
        for _ in range(len(self._chunks)):
            chunk = self.take()
            if removed := {partition: read for partition, read in chunk.reads.items() if partition in partitions}:
                chunks.append(part(chunk, removed))
            if remaining := {partition: read for partition, read in chunk.reads.items() if partition not in removed}:
                self.append(part(chunk, remaining))
        return chunks

    def has(self, partition: Partition) -> bool:
        """Whether a chunk covers the partition."""
        return any(partition in chunk.reads for chunk, _ in self._chunks)

    def _added(self, chunk: Chunk[RawRecord]) -> int:
        """Count an added chunk; returns its bytes."""
        size = size_of(chunk.messages)
        self.records += len(chunk)
        self.bytes += size
        return size


def part(chunk: Chunk[RawRecord], reads: Mapping[Partition, Read]) -> Chunk[RawRecord]:
    """The part of a chunk that belongs to these partitions."""
    if reads.keys() == chunk.reads.keys():
        return chunk
    records = [record for record in chunk.messages if (record.topic, record.partition) in reads]
    unreadable = [(record, error) for record, error in chunk.unreadable if (record.topic, record.partition) in reads]
    return Chunk(records, dict(reads), unreadable, read_by=chunk.read_by)


def divided(chunk: Chunk[RawRecord], records: int) -> tuple[Chunk[RawRecord], Chunk[RawRecord]]:
    """Divide a chunk after its first ``records``: in each partition, the second part begins where the first ends."""
    first, rest = list(chunk.messages[:records]), list(chunk.messages[records:])
    reads: dict[Partition, Read] = {}
    for record in first:
        partition = Partition(record.topic, record.partition)
        read, end = chunk.reads[partition], record.offset + 1
        reads[partition] = Read(read.claim, read.start, end, record.leader_epoch, record.timestamp_ms)
    after = {
        partition: read.since(reads[partition].end) if partition in reads else read
        for partition, read in chunk.reads.items()
    }
    after = {partition: read for partition, read in after.items() if read.start < read.end}
    places = {(record.topic, record.partition, record.offset) for record in first}
    unreadable: tuple[list[Any], list[Any]] = [], []
    for record, error in chunk.unreadable:
        unreadable[(record.topic, record.partition, record.offset) not in places].append((record, error))
    return (
        Chunk(first, reads, unreadable[0], read_by=chunk.read_by),
        Chunk(rest, after, unreadable[1], read_by=chunk.read_by),
    )
