"""Reading a log from one offset to another, and not further: what batch jobs stand on.

No group is joined, nothing is committed, and neither end is a guess: both are numbers from the ledger. A range ends at
a record or an end of the log at or past ``end``, never by a count, so holes left by compaction, aborted transactions
and control records are no riddle. What was read belongs to the topic of that id only if the iteration came to its end:
a topic that was deleted and created again is read on without an error, and only its id shows it (see ``identity``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Self
from uuid import UUID

from seekpoint.errors import ConfigError
from seekpoint.kafka.client import END_OF_PARTITION, Client, Message, Unreadable, lazy_records
from seekpoint.kafka.config import make_consumer
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.records import Partition, RawRecord

CHUNK = 500  # records at a time: more is slower
IDLE = 30.0  # seconds without a word of the brokers until a range is given up
AT_END = 3.0  # the same once they said that the log ends before the range does: it may be their old news
KEPT = 10_000  # records past the end that a Follower holds for later, per partition


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
                f"a range begins at 0 or later and ends where it begins or later, not {self}: swap or correct its ends"
            )

    @property
    def records_at_most(self) -> int:
        """Its width: fewer records where transactions, compaction or control records left holes."""
        return self.end - self.start

    def cut(self, width: int) -> Iterator[Range]:
        """The same offsets in ranges of this width, the last of them perhaps narrower; none where it is empty."""
        for start in range(self.start, self.end, width):
            yield replace(self, start=start, end=min(start + width, self.end))

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records in the order of their partitions' offsets; ``unreadable`` are those whose headers are not.

    Decode the latter as a worker does: they are records, and poison.
    """

    records: Sequence[RawRecord]
    unreadable: Sequence[tuple[RawRecord, Unreadable]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RawRecord]:
        return iter(self.records)


def read_range(kafka: Mapping[str, Any], range_: Range, *, chunk: int = CHUNK, idle: float = IDLE) -> Iterator[Piece]:
    """Every record of the range that a live worker of the same ``kafka`` mapping would see, in pieces.

    **What was handed out counts only once the iteration ended without an error**: the topic's id is looked at before
    the first record and after the last. An empty range opens no connection. ``idle`` is how many seconds the brokers
    may say nothing; where they say that the log ends before the range does, it is given up after 3 s at the latest.

    Raises RangeLost (retention or a truncation took it, or the topic is gone), RangeStuck (an open transaction stands
    in it, or nothing comes), TopicRecreated, KafkaUnavailable, ConfigError, and the client's own KafkaException.
    """
    if range_.start >= range_.end:
        return
    outlook = RangeChecks(kafka)
    asked = outlook.ask([range_.partition.topic])
    client = _client(outlook, {range_.partition: range_.start})
    try:
        outlook.check(asked, range_.partition, range_.topic_id, range_.start)
        yield from _read(client, outlook, range_, max(chunk, 1), _Patience(idle))
        outlook.check(outlook.ask([range_.partition.topic]), range_.partition, range_.topic_id, range_.end)
    finally:
        client.close()


def _read(client: Client, outlook: RangeChecks, range_: Range, chunk: int, patience: _Patience) -> Iterator[Piece]:
    position, end = range_.start, range_.end
    while position < end:
        taken: list[Message] = []
        messages = client.read(min(chunk, end - position), patience.wait())
        if messages and not any(map(Message.error, messages)) and _offset(messages[-1]) < end:
            yield _piece(messages, range_.partition)  # nearly always
            position = _offset(messages[-1]) + 1
            patience.renew()
            continue
        for message in messages:
            if (error := message.error()) is None:
                patience.renew()
                position = _offset(message) + 1
                if position > end:  # a hole across the end: this record is behind it
                    break
                taken.append(message)
            elif error.code() == END_OF_PARTITION:
                patience.shorten()
                position = max(position, _offset(message))  # at the end of it: what is left has no records
            else:
                outlook.raise_for(error, range_.partition, range_.topic_id, position, end)
        if taken:
            yield _piece(taken, range_.partition)
            patience.renew()  # the caller may have been slow with the piece
        elif patience.is_over and position < end:
            raise outlook.stuck(range_.partition, range_.topic_id, position, end)


class Follower:
    """A consumer that stays where it is between two reads, so that a small difference takes it some milliseconds.

    ``positions`` are where to begin; ``topic_ids`` whose records these are. It is assigned once, when it is made, and
    reads ahead. Use it from one thread, and close it (or use ``with``).
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic_ids: Mapping[str, UUID], positions: Mapping[Partition, int]
    ) -> None:
        self._outlook = RangeChecks(kafka)
        self._ids = dict(topic_ids)
        self._client = _client(self._outlook, {})
        self.reassign(positions)

    def reassign(self, positions: Mapping[Partition, int]) -> None:
        """Read on from here, whatever was read: the stored positions after a transaction that was rolled back."""
        if strangers := sorted({p.topic for p in positions} - self._ids.keys()):
            raise ConfigError(f"the ids of the topics {', '.join(strangers)} are missing: name them in topic_ids=")
        self._positions = dict(positions)
        self._known = dict(positions)  # what comes next of the client: everything before it is handed out, or kept
        self._kept: dict[Partition, deque[Message]] = {p: deque() for p in positions}
        self._resting: set[Partition] = set()
        self._client.assign({p: (offset, None) for p, offset in positions.items()}, {})

    @property
    def positions(self) -> dict[Partition, int]:
        """Where the next :meth:`read_to` begins: behind everything that was handed out."""
        return dict(self._positions)

    def read_to(self, ends: Mapping[Partition, int], *, chunk: int = CHUNK, idle: float = IDLE) -> Iterator[Piece]:
        """The records from the positions to ``ends``, in pieces of several partitions; the others stay where they are.

        ``idle`` is how many seconds the brokers may say nothing, here and to each question about the topics. As
        with :func:`read_range`, they count once the iteration has ended without an error, and it raises the same.
        After an error, or if you drop the iteration, continue with :meth:`reassign`.
        """
        if strangers := sorted(ends.keys() - self._positions.keys()):
            raise ConfigError(f"not followed: {', '.join(map(str, strangers))}; reassign() takes partitions in")
        self._outlook.wait_at_most(idle)
        self._wake(ends)
        patience = _Patience(idle)
        if kept := self._unkeep(ends):
            yield _piece(kept)
            patience.renew()
        while behind := [p for p, end in ends.items() if self._known[p] < end]:
            taken = self._take(self._client.read(max(chunk, 1), patience.wait()), ends, patience)
            if taken:
                yield _piece(taken)
                patience.renew()
            elif patience.is_over and (behind := [p for p in behind if self._known[p] < ends[p]]):
                first = behind[0]
                raise self._outlook.stuck(first, self._ids[first.topic], self._known[first], ends[first])
        self._positions.update({p: max(end, self._positions[p]) for p, end in ends.items()})
        self.check(ends)

    def check(self, partitions: Collection[Partition] | None = None) -> None:
        """Raise TopicRecreated or RangeLost unless the topics are still those of ``topic_ids`` (about 1 ms)."""
        looked_at = sorted(self._positions if partitions is None else partitions)
        asked = self._outlook.ask({p.topic for p in looked_at})
        for partition in looked_at:
            self._outlook.check(asked, partition, self._ids[partition.topic], self._positions[partition])

    def _take(self, messages: Iterable[Message], ends: Mapping[Partition, int], patience: _Patience) -> list[Message]:
        """Those before the ends; what lies behind them is kept for later."""
        taken: list[Message] = []
        for message in messages:
            at = Partition(message.topic() or "", message.partition() or 0)
            if at not in self._known:
                continue  # of an assignment before
            if (error := message.error()) is None:
                if (offset := _offset(message)) < self._known[at]:
                    continue  # it was kept, or handed out, before the client got its new position
                self._known[at] = offset + 1
                if at in ends and offset < ends[at]:
                    taken.append(message)
                    self._positions[at] = offset + 1
                    patience.renew()
                else:
                    self._kept[at].append(message)
            elif error.code() == END_OF_PARTITION:
                self._known[at] = max(self._known[at], _offset(message))
                if self._known[at] < ends.get(at, 0):
                    patience.shorten()
            else:
                self._outlook.raise_for(error, at, self._ids[at.topic], self._known[at], ends.get(at, self._known[at]))
        self._rest()
        return taken

    def _rest(self) -> None:
        """Read no more of those of which much is kept: memory stays bounded while others are far behind."""
        if full := [p for p, kept in self._kept.items() if len(kept) > KEPT and p not in self._resting]:
            self._client.pause(full)
            self._resting.update(full)

    def _wake(self, ends: Mapping[Partition, int]) -> None:
        if due := [p for p, end in ends.items() if p in self._resting and self._known[p] < end]:
            self._client.resume({p: (self._known[p], None) for p in due})
            self._resting.difference_update(due)

    def _unkeep(self, ends: Mapping[Partition, int]) -> list[Message]:
        taken: list[Message] = []
        for partition, end in ends.items():
            kept = self._kept[partition]
            while kept and _offset(kept[0]) < end:
                taken.append(kept.popleft())
                self._positions[partition] = _offset(taken[-1]) + 1
        return taken

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Patience:
    """How long nothing may come: a while in the middle of a log, a short one once it is said to have ended."""

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self.renew()

    def renew(self) -> None:
        """Something came."""
        self._until = monotonic() + self._idle

    def shorten(self) -> None:
        """The log is said to end here."""
        self._until = min(self._until, monotonic() + AT_END)

    def wait(self) -> float:
        """Seconds to wait for the next message; never 0, which would not wait for any."""
        return min(1.0, max(self._until - monotonic(), 0.001))

    @property
    def is_over(self) -> bool:
        return monotonic() >= self._until


def stable_ends(kafka: Mapping[str, Any], partitions: Collection[Partition]) -> dict[Partition, int]:
    """Where a range may end at most: behind the last record that a worker of the same mapping can read now.

    That is the last stable offset, unless the mapping says ``read_uncommitted``. Raises KafkaUnavailable.
    """
    return {p: edge.offset for p, edge in RangeChecks(kafka).readable.ends(partitions).items()}


def log_starts(kafka: Mapping[str, Any], partitions: Collection[Partition]) -> dict[Partition, int]:
    """The first offset that each log still has. Raises KafkaUnavailable."""
    return {p: edge.offset for p, edge in RangeChecks(kafka).readable.starts(partitions).items()}


def topic_ids(kafka: Mapping[str, Any], topics: Collection[str]) -> dict[str, UUID | None]:
    """The id of each topic now; None for one that does not exist. Raises KafkaUnavailable."""
    outlook = RangeChecks(kafka)  # kept while it is asked: an answer alone would not hold the client
    return outlook.ask(topics).result() if topics else {}


def _client(outlook: RangeChecks, positions: Mapping[Partition, int]) -> Client:
    client = Client(make_consumer(outlook.config), outlook.config)
    if positions:
        client.assign({p: (offset, None) for p, offset in positions.items()}, {})
    return client


def _offset(message: Message) -> int:
    """What the client's stubs allow to be None, and is none in a record or at the end of a log."""
    offset = message.offset()
    if offset is None:
        raise TypeError(f"a message of {message.topic()}/{message.partition()} has no offset")
    return offset


def _piece(messages: list[Message], partition: Partition | None = None) -> Piece:
    return Piece(*lazy_records(messages, partition))


__all__ = [
    "Follower",
    "Piece",
    "Range",
    "log_starts",
    "read_range",
    "stable_ends",
    "topic_ids",
]
