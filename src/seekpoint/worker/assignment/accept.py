"""Which messages of the client count: those of active partitions, in order, that were not read before (I3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import lt
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.events import Announcer
from seekpoint.kafka import client as kafka
from seekpoint.kafka.client import Message
from seekpoint.records import Partition
from seekpoint.worker.assignment.backlog import Moment
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.assignment.partitions import AssignedPartitions
from seekpoint.worker.assignment.states import ActivePartition


def accept_messages(partitions: AssignedPartitions, messages: Iterable[Message], announce: Announcer) -> Chunk[Message]:
    """Keep what belongs to an active partition and was not read before; move the read positions over it (I3).

    What has to wait goes into its partition's backlog instead.
    """
    accepted = _Accepted(partitions, announce)
    for partition, run in _runs(list(messages)):
        if partition is None or not accepted.add_run(partition, run):
            accepted.add_each(run)
    return accepted.chunk()


def _runs(messages: list[Message]) -> Iterator[tuple[tuple[str | None, int | None] | None, list[Message]]]:
    """What follows each other of one partition, with the partition; all of it, with None, where not all are records.

    The client hands over what one answer of a broker has of a partition, and then the next one's: runs are long.
    """
    if not messages:
        return
    if True in [m.error() is not None for m in messages]:
        yield None, messages
        return
    topics, numbers = [m.topic() for m in messages], [m.partition() for m in messages]
    if topics.count(topics[0]) == numbers.count(numbers[0]) == len(messages):
        yield (topics[0], numbers[0]), messages
        return
    start = 0
    for partition, run in groupby(zip(topics, numbers, strict=True)):
        end = start + sum(1 for _ in run)
        yield partition, messages[start:end]
        start = end


class _Accepted:
    """What is kept of one answer of the client."""

    def __init__(self, partitions: AssignedPartitions, announce: Announcer) -> None:
        self._partitions, self._announce = partitions, announce
        self._kept: list[Message] = []
        self._reads: dict[Partition, Read] = {}
        self._last: dict[Partition, Message] = {}  # each partition's last message
        self._waiting: list[tuple[ActivePartition, Message]] = []

    def add_run(self, partition: Any, run: list[Message]) -> bool:
        """Keep records of one partition, without a look at each; False if one of them is not to be kept."""
        active = self._partitions.active.get(partition)
        if active is None or active.backlog is not None:
            return False
        offsets: list[Any] = [m.offset() for m in run]
        if offsets[0] < active.read_position or not all(map(lt, offsets, offsets[1:])):
            return False
        self._keep(active, run, offsets[-1])
        return True

    def add_each(self, messages: Iterable[Message]) -> None:
        """Keep of these what is to be kept."""
        for message in messages:
            if message.error() is not None:
                self._in_stream(message)
                continue
            partition: Any = (message.topic(), message.partition())
            active = self._partitions.active.get(partition)
            offset: Any = message.offset()
            if active is None or offset < active.read_position:
                continue  # read before it was activated again, or revoked
            if active.backlog is not None:
                self._waiting.append((active, message))
                continue
            self._keep(active, (message,), offset)

    def _keep(self, active: ActivePartition, messages: Sequence[Message], last: int) -> None:
        """These come next of their partition, the last one at this offset: the read position moves after it."""
        partition = active.claim.partition
        read = self._reads.get(partition)
        if read is None:
            read = self._reads[partition] = Read(active.claim, active.read_position, active.read_position)
        active.read_position = read.end = last + 1
        self._last[partition] = messages[-1]
        self._kept += messages

    def chunk(self) -> Chunk[Message]:
        """What may be applied now; the rest is in the backlogs."""
        if self._waiting:
            self._store()
        now = monotonic()
        for partition, message in self._last.items():
            self._partitions.active[partition].quiet_since = now
            read = self._reads[partition]
            read.leader_epoch, read.timestamp_ms = kafka.standing(message)
        return Chunk(self._kept, self._reads)

    def _store(self) -> None:
        """Put what waits into the backlogs. The partitions stay quiet: they may be reset while it waits."""
        now, stored = Moment.now(), 0
        for active, message in self._waiting:
            record, error = kafka.readable(message)
            if active.backlog is None or record.offset < active.read_position:
                continue  # twice in one answer of the client
            if error is not None:
                active.unreadable[record.offset] = error
            active.backlog.add(record, active.read_position, now)
            active.read_position, active.leader_epoch = record.offset + 1, record.leader_epoch
            stored += 1
        self._announce(events.ChunkRead(records=stored))

    def _in_stream(self, message: Message) -> None:
        """An event that came in the place of a record."""
        error: Any = message.error()
        partition = Partition(message.topic() or "", -1 if (n := message.partition()) is None else n)
        active = self._partitions.active.get(partition)
        if error.code() == kafka.END_OF_PARTITION:
            offset: Any = message.offset()
            if active is not None and offset > active.read_position:
                active.end = offset
        elif error.code() == kafka.OUT_OF_RANGE:
            if active is not None and _is_of_this_assignment(active, message.offset()):
                self._partitions.refused(partition, message.offset())
        else:
            kafka.raise_if_fatal(error)
            self._announce(events.KafkaTrouble(error=f"{partition.topic}: {error.str()}"))


def _is_of_this_assignment(active: ActivePartition, offset: int | None) -> bool:
    """Whether a refused offset is not of an earlier assignment: the client's event survives a new one.

    A truncation is reported without an offset, and only where the client had a leader epoch to compare.
    """
    if offset is None:
        return active.claim.leader_epoch is not None or active.read_position > active.claim.next_offset
    return offset >= active.read_position  # after it where the log has no records in between
