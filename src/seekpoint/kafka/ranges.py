"""Bounded ranges of a log, from one offset to another, as jobs read them: check, split among tasks, read.

No group is joined, nothing is committed, and both ends are numbers from the ledger. Reading a range ends when a record
or the log's end is at or past ``end``, not after a count, so gaps by compaction, aborted transactions and control
records do no harm. Records count only once the iteration has ended without an error: only its last check shows that the
topic was recreated (see ``identity``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Self
from uuid import UUID

from seekpoint.errors import ConfigError, RangeLost, RangeStuck
from seekpoint.kafka.client import (
    END_OF_PARTITION,
    Message,
    MessageColumns,
    lazy_records,
    message_columns,
)
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.range_consumer import RangeConsumer
from seekpoint.records import Partition, RawRecord

CHUNK = 500  # records at a time: more is slower
IDLE = 30.0  # seconds without a message after which a range is given up
AT_END = 3.0  # the same after brokers reported that the log ends before the range, which may be outdated
KEPT = 10_000  # most records past the end that a RangeFollower keeps per partition


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The offsets ``[start, end)`` of one partition of the topic that has this id."""

    partition: Partition
    topic_id: UUID
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ConfigError(
                f"a range begins at 0 or later and does not end before it begins, got {self}: swap or correct its ends"
            )

    @property
    def records_at_most(self) -> int:
        """The number of offsets; with compaction, aborted transactions or control records there are fewer records."""
        return self.end - self.start

    def cut(self, width: int) -> Iterator[Range]:
        """Divide the range into ranges of this width (the last may be narrower); an empty range gives none."""
        for start in range(self.start, self.end, width):
            yield replace(self, start=start, end=min(start + width, self.end))

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records in the order of their partitions' offsets; ``unreadable`` are those whose headers cannot be read.

    A worker treats unreadable records as poison; so should the caller.
    """

    records: Sequence[RawRecord]
    unreadable: Sequence[tuple[RawRecord, Exception]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RawRecord]:
        return iter(self.records)


def read_range(kafka: Mapping[str, Any], range_: Range, *, chunk: int = CHUNK, idle: float = IDLE) -> Iterator[Piece]:
    """Every record of the range that a worker with the same ``kafka`` mapping would see, some at a time.

    **Records count only once the iteration has ended without an error**: the topic's id is checked before the first
    record and after the last. An empty range opens no connection. After ``idle`` seconds without a message, reading
    ends with an error; after at most 3 s if the brokers report that the log ends before the range.

    Raises RangeLost (removed by retention or a truncation, or the topic was deleted), RangeStuck (an open transaction
    is in it, or nothing arrives), TopicRecreated, KafkaUnavailable (no broker answers), ConfigError (settings that no
    consumer accepts), and the client's own KafkaException.
    """
    for messages in _messages(kafka, range_, chunk, idle):
        yield _piece(messages, range_.partition)


def read_columns(
    kafka: Mapping[str, Any], range_: Range, *, headers: bool, chunk: int = CHUNK, idle: float = IDLE
) -> Iterator[MessageColumns]:
    """The records of :func:`read_range` as columns; they count only once the iteration has ended without an error.

    ``headers``: whether to read headers, which takes time.
    """
    return (message_columns(messages, headers=headers) for messages in _messages(kafka, range_, chunk, idle))


def _messages(kafka: Mapping[str, Any], range_: Range, chunk: int, idle: float) -> Iterator[list[Message]]:
    """The range's messages in pieces, with the checks before the first and after the last."""
    if range_.start >= range_.end:
        return
    checks = RangeChecks(kafka)
    answer = checks.ask([range_.partition.topic])
    consumer = RangeConsumer(checks, {range_.partition: range_.start})
    try:
        checks.check(answer, range_.partition, range_.topic_id, range_.start)
        yield from _read(consumer, checks, range_, max(chunk, 1), _IdleLimit(idle))
        checks.check(checks.ask([range_.partition.topic]), range_.partition, range_.topic_id, range_.end)
    finally:
        consumer.close()


def _read(
    consumer: RangeConsumer, checks: RangeChecks, range_: Range, chunk: int, limit: _IdleLimit
) -> Iterator[list[Message]]:
    position, end = range_.start, range_.end
    while position < end:
        taken: list[Message] = []
        messages = consumer.client.read(min(chunk, end - position), limit.wait())
        if messages and not any(map(Message.error, messages)) and _offset(messages[-1]) < end:
            yield messages  # nearly always
            position = _offset(messages[-1]) + 1
            limit.renew()
            continue
        for message in messages:
            if (error := message.error()) is None:
                limit.renew()
                position = _offset(message) + 1
                if position > end:  # a gap spans the end, so this record is after the end
                    break
                taken.append(message)
            elif error.code() == END_OF_PARTITION:
                limit.shorten()
                position = max(position, _offset(message))  # there are no records up to the log's end
            else:
                checks.raise_for(error, range_.partition, range_.topic_id, position, end)
        if taken:
            yield taken
            limit.restart()  # the caller may have been slow with the piece
        elif limit.is_over and position < end:
            if not consumer.replace_if_unanswered(range_.partition.topic, {range_.partition: position}):
                raise checks.stuck(range_.partition, range_.topic_id, position, end)
            limit.renew()


class RangeFollower:
    """A consumer that stays assigned between two reads, so that reading a few new records takes milliseconds.

    It begins at ``positions``; ``topic_ids`` are the topics' ids. The constructor assigns the partitions, and the
    client prefetches. Use it from one thread, and close it (or use ``with``).
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic_ids: Mapping[str, UUID], positions: Mapping[Partition, int]
    ) -> None:
        self._checks = RangeChecks(kafka)
        self._ids = dict(topic_ids)
        self._consumer = RangeConsumer(self._checks, {})
        self.reassign(positions)

    def reassign(self, positions: Mapping[Partition, int]) -> None:
        """Continue at these positions: the stored positions, after a transaction was rolled back."""
        if unknown := sorted({partition.topic for partition in positions} - self._ids.keys()):
            raise ConfigError(f"the ids of the topics {', '.join(unknown)} are missing: name them in topic_ids=")
        self._positions = dict(positions)
        self._known = dict(positions)  # the client's next offset: all records before it are returned or kept
        self._kept: dict[Partition, deque[Message]] = {partition: deque() for partition in positions}
        self._resting: set[Partition] = set()
        self._consumer.assign(positions)

    @property
    def positions(self) -> dict[Partition, int]:
        """The positions at which the next :meth:`read_to` begins: after all returned records."""
        return dict(self._positions)

    def read_to(self, ends: Mapping[Partition, int], *, chunk: int = CHUNK, idle: float = IDLE) -> Iterator[Piece]:
        """The records from the positions to ``ends``; each piece may have records of several partitions.

        ``idle`` limits, in seconds, the wait for a message and for each answer about the topics. As with
        :func:`read_range`, records count only once the iteration has ended without an error, and it raises the same
        errors. After an error, or if you drop the iteration, continue with :meth:`reassign`.
        """
        if unknown := sorted(ends.keys() - self._positions.keys()):
            raise ConfigError(
                f"this RangeFollower does not read {', '.join(map(str, unknown))}: add it with reassign()"
            )
        self._checks.wait_at_most(idle)
        self._wake(ends)
        limit = _IdleLimit(idle)
        if messages := self._unkeep(ends):
            yield _piece(messages)
            limit.renew()
        while behind := [partition for partition, end in ends.items() if self._known[partition] < end]:
            taken = self._take(self._consumer.client.read(max(chunk, 1), limit.wait()), ends, limit)
            if taken:
                yield _piece(taken)
                limit.renew()
            elif limit.is_over and (
                behind := [partition for partition in behind if self._known[partition] < ends[partition]]
            ):
                first = behind[0]
                if not self._consumer.replace_if_unanswered(first.topic, self._known):
                    raise self._checks.stuck(first, self._ids[first.topic], self._known[first], ends[first])
                self._resting.clear()  # the new client has paused none
                limit.renew()
        self._positions.update({partition: max(end, self._positions[partition]) for partition, end in ends.items()})
        self.check(ends)

    def check(self, partitions: Collection[Partition] | None = None) -> None:
        """Raise TopicRecreated or RangeLost unless the topics are still those of ``topic_ids`` (about 1 ms)."""
        looked_at = sorted(self._positions if partitions is None else partitions)
        answer = self._checks.ask({partition.topic for partition in looked_at})
        for partition in looked_at:
            self._checks.check(answer, partition, self._ids[partition.topic], self._positions[partition])

    def _take(self, messages: Iterable[Message], ends: Mapping[Partition, int], limit: _IdleLimit) -> list[Message]:
        """Return the messages before the ends; keep the others for later."""
        taken: list[Message] = []
        for message in messages:
            partition = Partition(message.topic() or "", message.partition() or 0)
            if partition not in self._known:
                continue  # a message of an earlier assignment
            if (error := message.error()) is None:
                if (offset := _offset(message)) < self._known[partition]:
                    continue  # kept or returned before the client got its new position
                self._known[partition] = offset + 1
                if partition in ends and offset < ends[partition]:
                    taken.append(message)
                    self._positions[partition] = offset + 1
                    limit.renew()
                else:
                    self._kept[partition].append(message)
            elif error.code() == END_OF_PARTITION:
                self._known[partition] = max(self._known[partition], _offset(message))
                if self._known[partition] < ends.get(partition, 0):
                    limit.shorten()
            else:
                self._checks.raise_for(
                    error,
                    partition,
                    self._ids[partition.topic],
                    self._known[partition],
                    ends.get(partition, self._known[partition]),
                )
        self._rest()
        return taken

    def _rest(self) -> None:
        """Pause partitions with many kept messages, so that memory stays bounded while others lag."""
        if full := [
            partition
            for partition, messages in self._kept.items()
            if len(messages) > KEPT and partition not in self._resting
        ]:
            self._consumer.client.pause(full)
            self._resting.update(full)

    def _wake(self, ends: Mapping[Partition, int]) -> None:
        if due := [
            partition for partition, end in ends.items() if partition in self._resting and self._known[partition] < end
        ]:
            self._consumer.client.resume({partition: (self._known[partition], None) for partition in due})
            self._resting.difference_update(due)

    def _unkeep(self, ends: Mapping[Partition, int]) -> list[Message]:
        taken: list[Message] = []
        for partition, end in ends.items():
            messages = self._kept[partition]
            while messages and _offset(messages[0]) < end:
                taken.append(messages.popleft())
                self._positions[partition] = _offset(taken[-1]) + 1
        return taken

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _IdleLimit:
    """Limits the time without a record: ``idle`` seconds, or less once the brokers report that the log ends here."""

    def __init__(self, idle: float) -> None:
        self._idle = self._seconds = idle
        self._until = monotonic() + idle

    def renew(self) -> None:
        """Restart with the whole time, because a record has arrived."""
        self._seconds = self._idle
        self.restart()

    def shorten(self) -> None:
        """Wait less, because the log ends here. The client reports this once, maybe together with the last records."""
        self._seconds = min(self._idle, AT_END)
        self._until = min(self._until, monotonic() + self._seconds)

    def restart(self) -> None:
        """Restart with the same time."""
        self._until = monotonic() + self._seconds

    def wait(self) -> float:
        """Seconds to wait for the next message; never 0, because that would not wait."""
        return min(1.0, max(self._until - monotonic(), 0.001))

    @property
    def is_over(self) -> bool:
        return monotonic() >= self._until


def stable_ends(kafka: Mapping[str, Any], partitions: Collection[Partition]) -> dict[Partition, int]:
    """The highest end of a range in each partition: the offset after the last record that a worker with this mapping
    can read.

    That is the last stable offset, unless the mapping says ``read_uncommitted``. Raises KafkaUnavailable.
    """
    return {partition: edge.offset for partition, edge in RangeChecks(kafka).readable.ends(partitions).items()}


def log_starts(kafka: Mapping[str, Any], partitions: Collection[Partition]) -> dict[Partition, int]:
    """The first offset that each log still has. Raises KafkaUnavailable."""
    return {partition: edge.offset for partition, edge in RangeChecks(kafka).readable.starts(partitions).items()}


def topic_ids(kafka: Mapping[str, Any], topics: Collection[str]) -> dict[str, UUID | None]:
    """The id of each topic now; None for one that does not exist. Raises KafkaUnavailable."""
    checks = RangeChecks(kafka)  # in a variable, because the answer alone would not keep the client alive
    return checks.ask(topics).result() if topics else {}


def _offset(message: Message) -> int:
    """A message's offset: the stubs allow None, which no record and no end of a log has."""
    offset = message.offset()
    if offset is None:
        raise TypeError(f"a message of {message.topic()}/{message.partition()} has no offset")
    return offset


def _piece(messages: list[Message], partition: Partition | None = None) -> Piece:
    return Piece(*lazy_records(messages, partition))


# Offsets of a task. The most by default: about half a second of reading, because a task costs 0.1 s before its first
# record. The least: with fewer, a task's fixed cost exceeds the loss by an idle slot.
MOST_OFFSETS, LEAST_OFFSETS = 300_000, 20_000
MOST_TASKS = 1_000  # most tasks: more would make the schedule, and the number of staged parts, large


def check_ranges(kafka: Mapping[str, Any], ranges: Collection[Range]) -> None:
    """Check with the brokers, before the first range is read, that all ranges can be read; empty ranges always can.

    Raises RangeLost (the log begins later), RangeStuck (its readable part ends earlier), TopicRecreated (the topic has
    another id), and KafkaUnavailable (no broker answers).
    """
    nonempty = [range_ for range_ in ranges if range_.start < range_.end]
    if not nonempty:
        return
    checks = RangeChecks(kafka)
    answer = checks.ask({range_.partition.topic for range_ in nonempty})
    for range_ in nonempty:
        checks.check(answer, range_.partition, range_.topic_id, range_.start)
    partitions = sorted({range_.partition for range_ in nonempty})
    starts, ends = checks.readable.starts(partitions), checks.readable.ends(partitions)
    for range_ in nonempty:
        partition, start, end = range_.partition, starts[range_.partition].offset, ends[range_.partition].offset
        if start > range_.start:
            raise RangeLost(
                partition,
                range_.start,
                f"retention has passed it: the first offset left is {start}. Begin there, which omits "
                f"{start - range_.start} records, or read them from an archive",
            )
        if end < range_.end:
            raise RangeStuck(
                partition,
                range_.start,
                range_.end,
                f"the log can be read only up to {end} now. Use that as the end: the requested end is after an open "
                "transaction, the log was truncated, or the end comes from other brokers",
            )


def task_size(width: int, *, range_records: int = MOST_OFFSETS, slots: int = 1, most: int = MOST_TASKS) -> int:
    """The most offsets of one task, if ``width`` offsets are divided: usually ``range_records``.

    Fewer, down to :data:`LEAST_OFFSETS`, if there would be fewer tasks than ``slots``; more if they would exceed
    ``most``.
    """
    spread = max(-(-width // max(slots, 1)), LEAST_OFFSETS)
    return max(min(range_records, spread), -(-width // max(most, 1)), 1)


def split_ranges(
    ranges: Collection[Range], *, range_records: int = MOST_OFFSETS, slots: int = 1, most: int = MOST_TASKS
) -> list[list[Range]]:
    """Divide the ranges into tasks of about :func:`task_size` offsets.

    Each offset is in exactly one task; tasks are in the order of partition and offset.
    """
    width = sum(range_.records_at_most for range_ in ranges)
    size = task_size(width, range_records=range_records, slots=slots, most=most)
    tasks: list[list[Range]] = []
    room = 0
    for piece in _cut(ranges, size):
        if piece.records_at_most > room:
            tasks.append([])
            room = size
        tasks[-1].append(piece)
        room -= piece.records_at_most
    return tasks


def _cut(ranges: Collection[Range], size: int) -> Iterator[Range]:
    """Pieces of equal width, at most ``size``."""
    for range_ in sorted(ranges):
        parts = -(-range_.records_at_most // size)
        for n in range(parts):
            begin = range_.start + range_.records_at_most * n // parts
            yield replace(range_, start=begin, end=range_.start + range_.records_at_most * (n + 1) // parts)
