"""Accepts the client's messages of active partitions, in order, each only once (I3)."""

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
    """Keep new messages of active partitions, and move the read positions past them (I3).

    Records that have to wait go into their partition's backlog instead.
    """
    accepted = _Accepted(partitions, announce)
    for partition, run in _runs(list(messages)):
        if partition is None or not accepted.add_run(partition, run):
            accepted.add_each(run)
    return accepted.chunk()


def _runs(messages: list[Message]) -> Iterator[tuple[tuple[str | None, int | None] | None, list[Message]]]:
    """The messages as runs, each of one partition; a single run, with None, if some messages are not records.

    Runs are long, because the client returns a broker's answer partition by partition.
    """
    if not messages:
        return
    kind: Any = type(messages[0])  # map() over its methods takes half the time of a comprehension
    if any(map(kind.error, messages)):  # an error is true, whatever its code
        yield None, messages
        return
    topics, numbers = list(map(kind.topic, messages)), list(map(kind.partition, messages))
    if topics.count(topics[0]) == numbers.count(numbers[0]) == len(messages):
        yield (topics[0], numbers[0]), messages
        return
    start = 0
    for partition, run in groupby(zip(topics, numbers, strict=True)):
        end = start + sum(1 for _ in run)
        yield partition, messages[start:end]
        start = end


class _Accepted:
    """The messages to keep from one poll of the client."""

    def __init__(self, partitions: AssignedPartitions, announce: Announcer) -> None:
        self._partitions, self._announce = partitions, announce
        self._kept: list[Message] = []
        self._reads: dict[Partition, Read] = {}
        self._last: dict[Partition, Message] = {}  # each partition's last message
        self._waiting: list[tuple[ActivePartition, Message]] = []

    def add_run(self, partition: Any, run: list[Message]) -> bool:
        """Keep one partition's run as a whole; False, and keep none, if one of its records must not be kept."""
        active = self._partitions.active.get(partition)
        if active is None or active.backlog is not None:
            return False
        kind: Any = type(run[0])
        offsets: list[Any] = list(map(kind.offset, run))
        if offsets[0] < active.read_position or not all(map(lt, offsets, offsets[1:])):
            return False
        self._keep(active, run, offsets[-1])
        return True

    def add_each(self, messages: Iterable[Message]) -> None:
        """Check messages one by one, and drop stale ones."""
        for message in messages:
            if message.error() is not None:
                self._in_stream(message)
                continue
            partition: Any = (message.topic(), message.partition())
            active = self._partitions.active.get(partition)
            offset: Any = message.offset()
            if active is None or offset < active.read_position:
                continue  # stale: read before its partition was revoked, stopped or activated again
            if active.backlog is not None:
                self._waiting.append((active, message))
                continue
            self._keep(active, (message,), offset)

    def _keep(self, active: ActivePartition, messages: Sequence[Message], last: int) -> None:
        """Keep the next messages of a partition, and move its read position past the ``last`` offset."""
        partition = active.claim.partition
        read = self._reads.get(partition)
        if read is None:
            read = self._reads[partition] = Read(active.claim, active.read_position, active.read_position)
        active.read_position = read.end = last + 1
        self._last[partition] = messages[-1]
        self._kept += messages

    def chunk(self) -> Chunk[Message]:
        """The messages that may be applied now; moves the others to the backlogs."""
        if self._waiting:
            self._store()
        now = monotonic()
        for partition, message in self._last.items():
            self._partitions.active[partition].quiet_since = now
            read = self._reads[partition]
            read.leader_epoch, read.timestamp_ms = kafka.leader_epoch_and_time(message)
        return Chunk(self._kept, self._reads)

    def _store(self) -> None:
        """Put waiting records into the backlogs. Their partitions stay quiet, so that idle checks notice a reset."""
        now, stored = Moment.now(), 0
        for active, message in self._waiting:
            record, error = kafka.readable(message)
            if active.backlog is None or record.offset < active.read_position:
                continue  # one poll returned it twice
            if error is not None:
                active.unreadable[record.offset] = error
            active.backlog.add(record, active.read_position, now)
            active.read_position, active.leader_epoch = record.offset + 1, record.leader_epoch
            stored += 1
        self._announce(events.ChunkRead(records=stored))

    def _in_stream(self, message: Message) -> None:
        """Act on a message that is not a record: an error, or a partition's end."""
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
    """Whether a refused offset belongs to this assignment; the client may report an earlier assignment's offset late.

    A truncation is reported without an offset, and only if the client had a leader epoch to compare.
    """
    if offset is None:
        return active.claim.leader_epoch is not None or active.read_position > active.claim.next_offset
    return offset >= active.read_position  # I4; the offset is greater if the log has no records in between
