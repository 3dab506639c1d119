"""The open batch: its records, drawn while they are applied, and the outcome of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Self

from seekpoint.errors import HandlerMisuse, PoisonStop
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Move
from seekpoint.ledger.dead_letters import FirstOpen
from seekpoint.pipeline.policy import Limits
from seekpoint.postgres.sqlstates import connection_lost
from seekpoint.records import (
    BLOCKED_BY_KEY,
    AnyRecord,
    Cause,
    Failure,
    NewDeadLetter,
    Partition,
    RawRecord,
    Span,
    State,
    add_note,
    size_of,
)
from seekpoint.worker.assignment.backlog import RetryLater, SuspectRange
from seekpoint.worker.assignment.chunk import Chunk, Read, chain

CHUNK = 500  # records per draw: small chunks stay in the processor's cache

Draw = Callable[[], Chunk[RawRecord] | None]
Ask = Callable[[float, set[str]], Answer]  # requests the ids of topics whose records were read up to that time
Place = tuple[Partition, int]  # a record's partition and offset
DeadKeys = Mapping[tuple[Partition, bytes], FirstOpen]  # the first open dead letter of each key
FULL_WAIT = 5.0  # seconds after which a partition with too many waiting records is checked again


def _nothing() -> None:
    """Draw no chunk, because the buffer is closed."""


class Buffer:
    """The records of one transaction: drawn while it is open, replayed until its outcome is known.

    :meth:`chunks` first repeats records that were read before, then draws more without waiting, until the limits, an
    empty queue, a rebalance or a stop closes the buffer. So each retry gets the same records again.
    """

    def __init__(
        self,
        first: Chunk[RawRecord],
        draw: Draw,
        ask: Ask,
        limits: Limits,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._draw, self._ask, self._limits, self._clock = draw, ask, limits, clock
        self._kept: list[Sequence[RawRecord]] = []
        self._closes_at = clock() + limits.batch_age
        self._bytes = self._records = 0
        self._read_by = first.read_by
        self.unreadable: dict[Place, Exception] = {}  # records whose headers could not be read
        self.reads: dict[Partition, Read] = {}
        self.closed = False  # nothing more will be drawn
        self.topic_ids: Answer | None = None  # the brokers' answer to a request sent after the last read
        self.held: frozenset[Partition] | None = None  # locked partitions: no others are read; None before hold
        self._keep(first)

    def _keep(self, chunk: Chunk[RawRecord]) -> None:
        self.reads = chain((chunk,), self.reads)  # first, because this raises if there is a gap
        for record, error in chunk.unreadable:
            self.unreadable[Partition(record.topic, record.partition), record.offset] = error
        records = chunk.messages
        self._kept.append(records)
        self._read_by = max(self._read_by, chunk.read_by)
        self._records += len(records)
        self._bytes += size_of(records)

    def chunks(self) -> Iterator[Sequence[RawRecord]]:
        """The records, chunk by chunk: those that were read before, then more, until the buffer closes."""
        index = 0
        while True:
            while index < len(self._kept):
                yield self._kept[index]
                index += 1
            if self.closed:
                return
            self._read_more()

    def closes_within(self, records: int, size: int) -> bool:
        """Draw until the buffer closes; False once it has more than these records or bytes."""
        while (fits := self._records <= records and self._bytes <= size) and not self.closed:
            self._read_more()
        return fits

    def _read_more(self) -> None:
        """Keep one more chunk, or close."""
        chunk = None if self._full() else self._draw()
        if chunk is None or not len(chunk):
            self.close()
        else:
            self._keep(chunk)

    def replay(self, *, newest_first: bool = False) -> Iterator[Sequence[RawRecord]]:
        """The records read so far, chunk by chunk, in order (or in reverse); draws nothing."""
        chunks = list(self._kept)
        return (records[::-1] for records in reversed(chunks)) if newest_first else iter(chunks)

    def records_of(self, partition: Partition, start: int = 0) -> Iterator[RawRecord]:
        """The records read of one partition, from offset ``start``, in order."""
        for records in self._kept:
            for record in records:
                if (record.topic, record.partition) == partition and record.offset >= start:
                    yield record

    def drop(self, partitions: set[Partition]) -> None:
        """Remove the records of these partitions, because they were refused.

        Records of these partitions that are drawn later begin at the ledger's positions, and belong to the batch.
        """
        self._kept = [
            [record for record in records if (record.topic, record.partition) not in partitions]
            for records in self._kept
        ]
        self._records, self._bytes = sum(map(len, self._kept)), sum(map(size_of, self._kept))
        for partition in partitions:
            self.reads.pop(partition, None)

    def close(self) -> None:
        """Draw nothing more, and ask for the topics' ids as of the last read."""
        if not self.closed:
            self.closed = True
            self.topic_ids = self._ask(self._read_by, self._topics)
        self._draw = _nothing  # breaks a cycle, which would keep the records until the garbage collector runs

    def ask_again(self) -> None:
        """Ask for the topics' ids again, because there was no answer."""
        self.topic_ids = self._ask(monotonic(), self._topics)

    @property
    def _topics(self) -> set[str]:
        return {partition.topic for partition in self.reads}

    @property
    def records(self) -> int:
        """How many records were read."""
        return self._records

    @property
    def room(self) -> int:
        """How many more records the buffer may take."""
        return self._limits.batch_records - self._records

    def _full(self) -> bool:
        limits = self._limits
        return self.room <= 0 or self._bytes >= limits.batch_bytes or self._clock() >= self._closes_at

    @property
    def starts(self) -> dict[Partition, int]:
        """Each partition's position before the first record read of it."""
        return {partition: read.start for partition, read in self.reads.items()}


UNDECIDED = frozenset({State.BLOCKED, State.WAITING})  # neither applied nor dead-lettered for good
_BLOCKING = frozenset({State.DEAD_LETTERED, State.WAITING})  # later records of the key do not overtake it


class TooManyWaiting(Exception):  # noqa: N818 -- no error: the partition waits
    """The partition already has the most records that may wait for their retries."""


class Outcome:
    """The records of a batch that are not applied, and why.

    ``ends``: the record before which a partition's part of the batch ends, to stop there or to retry that record.
    ``tries``: how often a record was tried before this batch. The position moves past a dead letter, and past a record
    that waits for its retry while others continue.
    """

    def __init__(self, tries: Mapping[Place, int] | None = None) -> None:
        self.tries = tries or {}
        self.ends: dict[Partition, PoisonStop | RetryLater] = {}
        self._dead_letters: dict[Place, NewDeadLetter] = {}
        # With keep_key_order: the offset of each key's first dead letter, and the keys whose first dead letter waits
        # for a retry.
        self._keys: dict[tuple[Partition, bytes], int] | None = None
        self._waiting_keys: set[tuple[Partition, bytes]] = set()
        self._retries: dict[Place, RetryLater] = {}  # of the records that wait
        self._room: Mapping[Partition, int] | None = None  # how many more records may wait; None: not known yet
        self._waiting: Counter[Partition] = Counter()

    def end_at(self, end: PoisonStop | RetryLater) -> None:
        """End the partition's part of the batch before this offset; the earliest offset counts."""
        before = self.ends.get(end.partition)
        if before is None or end.offset < before.offset:
            self.ends[end.partition] = end

    def add_dead_letter(self, dead_letter: NewDeadLetter) -> None:
        """Move past this record without applying it."""
        record, partition = dead_letter.record, Partition(dead_letter.record.topic, dead_letter.record.partition)
        self._dead_letters[partition, record.offset] = dead_letter
        if self._keys is None or record.key is None or dead_letter.state not in _BLOCKING:
            return
        key = partition, record.key
        if record.offset <= self._keys.get(key, record.offset):
            self._keys[key] = record.offset
            (self._waiting_keys.add if dead_letter.state is State.WAITING else self._waiting_keys.discard)(key)

    def retry_later(self, record: RawRecord, retry: RetryLater) -> None:
        """Move past a failed record, to retry it while others continue (I4); end before it if too many wait."""
        if self._has_room(retry.partition):
            self._retries[retry.partition, record.offset] = retry
            self.add_dead_letter(NewDeadLetter(record, retry.failure, State.WAITING, retry.wait))
        else:
            self.end_at(retry)

    def _has_room(self, partition: Partition) -> bool:
        """Count one more waiting record of the partition; False if that would be too many."""
        if self._room is not None and self._waiting[partition] >= self._room.get(partition, 0):
            return False
        self._waiting[partition] += 1
        return True

    def limit_waiting(self, room: Mapping[Partition, int]) -> None:
        """Let at most this many records of each partition wait for retries, as of the transaction's start."""
        self._room = room
        self._waiting.clear()
        for place, retry in sorted(self._retries.items()):
            del self._retries[place]
            self.retry_later(self._dead_letters.pop(place).record, retry)

    def block_keys(self, keys: DeadKeys) -> None:
        """With ``keep_key_order``: block each key after its first open dead letter, as of the transaction's start."""
        self._keys = {key: first.offset for key, first in keys.items()}
        self._waiting_keys = {key for key, first in keys.items() if first.state is State.WAITING}
        for position, dead_letter in list(self._dead_letters.items()):
            if dead_letter.state is State.BLOCKED or dead_letter.failure is BLOCKED_BY_KEY:
                # The dead letter that blocked its key may have been replayed meanwhile.
                del self._dead_letters[position]
            else:
                self.add_dead_letter(dead_letter)

    def admits(self, record: RawRecord, unreadable: Mapping[Place, Exception]) -> bool:
        """Whether the record is to be applied; one that is blocked by its key becomes a dead letter."""
        if not self.excludes(record):
            return True
        place = Partition(record.topic, record.partition), record.offset
        if not self.is_past_end(*place) and place not in self._dead_letters:
            unread = unreadable.get(place)  # a record without its headers must not look replayable
            if unread is None and (place[0], record.key) in self._waiting_keys:
                self._wait_with_key(record, *place)
            else:
                failure = BLOCKED_BY_KEY if unread is None else Failure.of(unread, Cause.DECODE)
                self._dead_letters[place] = NewDeadLetter(record, failure, State.BLOCKED)
        return False

    def _wait_with_key(self, record: RawRecord, partition: Partition, offset: int) -> None:
        """Let a record wait for an earlier one of its key."""
        if self._has_room(partition):
            self._dead_letters[partition, offset] = NewDeadLetter(record, BLOCKED_BY_KEY, State.WAITING, 0.0)
            return
        error = TooManyWaiting(
            "an earlier record of its key waits for its retry, and Limits.waiting records wait already"
        )
        failure = Failure.of(error, Cause.BLOCKED, attempts=0)
        self.end_at(RetryLater(partition, offset, failure, FULL_WAIT, error))

    def excludes(self, record: AnyRecord) -> bool:
        """Whether the record is not to be applied: past its partition's end, a dead letter, or blocked by its key."""
        partition = Partition(record.topic, record.partition)
        if self.is_past_end(partition, record.offset) or (partition, record.offset) in self._dead_letters:
            return True
        if self._keys is None or record.key is None:
            return False
        first = self._keys.get((partition, record.key))
        return first is not None and first < record.offset

    def is_past_end(self, partition: Partition, offset: int) -> bool:
        """Whether the partition's part of the batch ends at or before this offset."""
        end = self.ends.get(partition)
        return end is not None and offset >= end.offset

    @property
    def is_filtering(self) -> bool:
        """Whether :meth:`excludes` may be true of a record."""
        return bool(self.ends or self._dead_letters or self._keys)

    @property
    def looks_ahead(self) -> bool:
        """Whether one record's failure may exclude later ones: a partition has an end, or keys can be blocked."""
        return bool(self.ends or self._keys is not None)

    @property
    def dead_letters(self) -> list[NewDeadLetter]:
        """The records that the position moves past without applying them, in the order of partition and offset."""
        if not self._dead_letters:
            return []
        return [
            dead_letter
            for position, dead_letter in sorted(self._dead_letters.items())
            if not self.is_past_end(*position)
        ]

    def is_undecided(self, partition: Partition, offset: int) -> bool:
        """Whether the record became a dead letter because of its key alone, or waits for its retry."""
        dead_letter = self._dead_letters.get((partition, offset))
        return dead_letter is not None and dead_letter.state in UNDECIDED

    def drop(self, partitions: set[Partition]) -> None:
        """Forget ends and dead letters of these partitions."""
        for partition in partitions:
            self.ends.pop(partition, None)
        self._dead_letters = {
            position: dead_letter
            for position, dead_letter in self._dead_letters.items()
            if position[0] not in partitions
        }
        self._retries = {place: retry for place, retry in self._retries.items() if place[0] not in partitions}
        for partition in partitions:
            self._waiting.pop(partition, None)


def moves(buffer: Buffer, outcome: Outcome) -> list[Move]:
    """The batch's moves: per partition, from the first offset read to the one after the last record done (I3)."""
    candidates = (move_of(partition, buffer, outcome) for partition in buffer.reads)
    return [move for move in candidates if move.to_offset > move.from_offset]


def move_of(partition: Partition, buffer: Buffer, outcome: Outcome) -> Move:
    """The batch's move of one partition; it may pass no offset."""
    read, end = buffer.reads[partition], outcome.ends.get(partition)
    if end is None:
        return read.move()
    last = None
    for record in buffer.records_of(partition):
        if record.offset < end.offset:
            last = record
    if last is None:
        return Read(read.claim, read.start, read.start).move()
    return Read(read.claim, read.start, end.offset, last.leader_epoch, last.timestamp_ms).move()


@dataclass(slots=True)
class OpenBatch:
    """The records of one transaction while it is open, and how they are applied.

    ``is_single``: a single-record attempt. ``is_transient``: the record's earlier attempt failed with a transient
    error. ``suspects``: the suspect range of which this batch is a part.
    """

    buffer: Buffer
    outcome: Outcome = field(default_factory=Outcome)
    is_single: bool = False
    is_transient: bool = False
    suspects: SuspectRange | None = None

    @property
    def is_ordinary(self) -> bool:
        """Whether it is neither a single-record attempt nor part of a suspect range: these are small on purpose."""
        return not self.is_single and self.suspects is None

    def closes_within(self, records: int, size: int) -> bool:
        """Draw until the batch closes; returns whether it is within these limits, with all records to be applied."""
        if not self.is_ordinary or self.outcome.tries or self.outcome.is_filtering:
            return False
        return self.buffer.closes_within(records, size) and not self.buffer.unreadable

    def blocking(self, keys: DeadKeys | None) -> Self:
        """Block the records that come after an open dead letter of their key; returns this batch."""
        if keys is not None:
            self.outcome.block_keys(keys)
        return self

    def chunks(self) -> Iterator[Sequence[RawRecord]]:
        """The records that are to be applied, chunk by chunk, as they are drawn."""
        for records in self.buffer.chunks():
            yield [record for record in records if self.admits(record)] if self.outcome.is_filtering else records

    def admits(self, record: RawRecord) -> bool:
        """Whether the record is to be applied; one that is blocked by its key becomes a dead letter."""
        return self.outcome.admits(record, self.buffer.unreadable)

    def admitted(self, records: Iterable[RawRecord]) -> Iterator[RawRecord]:
        """The records to apply; each is checked only when it is drawn, because an earlier one may have failed."""
        for record in records:
            if not self.outcome.is_filtering or self.admits(record):
                yield record

    def drop(self, partitions: set[Partition]) -> None:
        """Remove these partitions' records and outcomes."""
        self.buffer.drop(partitions)
        self.outcome.drop(partitions)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of offsets that the batch covers, as far as it was read."""
        return spans_of(moves(self.buffer, self.outcome))

    def note(self, error: BaseException) -> None:
        """Add to the error which batch it ended, and whether part of the batch may have been written."""
        note = f"while applying {', '.join(map(str, self.spans)) or 'an empty batch'}"
        if not isinstance(error, HandlerMisuse) and not connection_lost(error):  # otherwise it may have been written
            note += "; nothing of this batch was written, and it is read again from there"
        add_note(error, note)


def spans_of(batch_moves: Sequence[Move]) -> tuple[Span, ...]:
    """The ranges of offsets that these moves pass."""
    return tuple(Span(move.claim.partition, move.from_offset, move.to_offset) for move in batch_moves)


@dataclass(frozen=True, slots=True)
class Written:
    """How many records were applied, and how many of their rows each sink got, in declared order."""

    records: int
    rows: Sequence[int]


@dataclass(slots=True)
class BatchResult:
    """The result of one attempt: what the transaction records, and what is announced after COMMIT."""

    applied: int
    rows: Sequence[int]
    moves: Sequence[Move]
    spans: tuple[Span, ...]
    dead_letters: Sequence[NewDeadLetter]
    stops: Mapping[Partition, PoisonStop]
    retries: Mapping[Partition, RetryLater]
    reads: Mapping[Partition, Read]
    batch: OpenBatch

    @classmethod
    def of(cls, batch: OpenBatch, written: Written) -> BatchResult:
        """The result of a batch, with the counts of what was written."""
        buffer, outcome = batch.buffer, batch.outcome
        batch_moves = moves(buffer, outcome)
        ends = {partition: end for partition, end in outcome.ends.items() if partition in buffer.reads}
        return cls(
            written.records,
            written.rows,
            batch_moves,
            spans_of(batch_moves),
            outcome.dead_letters,
            {partition: end for partition, end in ends.items() if isinstance(end, PoisonStop)},
            {partition: end for partition, end in ends.items() if isinstance(end, RetryLater)},
            buffer.reads,
            batch,
        )

    def position(self, partition: Partition) -> int:
        """The partition's position once the batch is committed."""
        return move_of(partition, self.batch.buffer, self.batch.outcome).to_offset

    def passed(self, *, newest_first: bool = False) -> Iterator[RawRecord]:
        """The records that the position moves past, without those that are blocked by their key or wait."""
        outcome = self.batch.outcome
        for records in self.batch.buffer.replay(newest_first=newest_first):
            for record in records:
                position = Partition(record.topic, record.partition), record.offset
                if not outcome.is_past_end(*position) and not outcome.is_undecided(*position):
                    yield record
