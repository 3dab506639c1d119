"""The open batch: what was read, drawn while it is applied, and what becomes of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Self

from seekpoint.errors import HandlerMisuse, PoisonStop
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Move
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
Ask = Callable[[float, set[str]], Answer]  # about topics, of which records were read until that moment
Place = tuple[Partition, int]  # a record's partition and offset
DeadKeys = Mapping[tuple[Partition, bytes], int]  # the offset of the first open dead letter of each key


def _nothing() -> None:
    """No chunk, once the buffer is closed."""


class Buffer:
    """The records of one transaction: drawn while it is open, replayed until its outcome is known.

    :meth:`chunks` first repeats what was read before, then draws more without waiting, until the limits, an empty queue
    or a rebalance closes the buffer. So a retry, an unknown COMMIT or a refused row meets the same records again.
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
        self.unreadable: dict[Place, Exception] = {}  # what the client could not read whole
        self.reads: dict[Partition, Read] = {}
        self.closed = False  # nothing more will be drawn
        self.topic_ids: Answer | None = None  # as the brokers answer after the last read, before COMMIT
        self.held: frozenset[Partition] | None = None  # by the open transaction, which reads no other; None before it
        self._keep(first)

    def _keep(self, chunk: Chunk[RawRecord]) -> None:
        self.reads = chain((chunk,), self.reads)  # first: what does not follow must not be applied
        for record, error in chunk.unreadable:
            self.unreadable[Partition(record.topic, record.partition), record.offset] = error
        records = chunk.messages
        self._kept.append(records)
        self._read_by = max(self._read_by, chunk.read_by)
        self._records += len(records)
        self._bytes += size_of(records)

    def chunks(self) -> Iterator[Sequence[RawRecord]]:
        """The records, chunk by chunk: those that were read before, then more, until the buffer closes."""
        at = 0
        while True:
            while at < len(self._kept):
                yield self._kept[at]
                at += 1
            if self.closed:
                return
            self._read_more()

    def closes_within(self, records: int, size: int) -> bool:
        """Whether the buffer is closed with so many records and bytes at most: no more is there to be drawn."""
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
        """What was read so far, chunk by chunk, in order (or in reverse); draws nothing."""
        kept = list(self._kept)
        return (records[::-1] for records in reversed(kept)) if newest_first else iter(kept)

    def records_of(self, partition: Partition, start: int = 0) -> Iterator[RawRecord]:
        """What was read of one partition from an offset on, in order."""
        for records in self._kept:
            for r in records:
                if (r.topic, r.partition) == partition and r.offset >= start:
                    yield r

    def drop(self, partitions: set[Partition]) -> None:
        """Leave out what was read of these partitions: they were refused, and the ledger says where to read on.

        What is drawn of them later was read from there, and is a part of the batch like any other.
        """
        self._kept = [[r for r in records if (r.topic, r.partition) not in partitions] for records in self._kept]
        for partition in partitions:
            self.reads.pop(partition, None)

    def close(self) -> None:
        """Draw nothing more. The answer about the topics' ids is one that was asked for after the last read."""
        if not self.closed:
            self.closed = True
            self.topic_ids = self._ask(self._read_by, self._topics)
        self._draw = _nothing  # the one given knows this buffer: its records would wait for the collector of cycles

    def ask_again(self) -> None:
        """Ask for the topics' ids again: there was no answer."""
        self.topic_ids = self._ask(monotonic(), self._topics)

    @property
    def _topics(self) -> set[str]:
        return {p.topic for p in self.reads}

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
        """Where the reading of each partition's part began."""
        return {partition: read.start for partition, read in self.reads.items()}


class Outcome:
    """What becomes of the records that are not applied.

    ``ends``: in front of which record one partition's part ends, and whether it stops there or tries it again.
    ``tries`` says how often a record was tried before this batch. A dead letter is passed without being applied.
    """

    def __init__(self, tries: Mapping[Place, int] | None = None) -> None:
        self.tries = tries or {}
        self.ends: dict[Partition, PoisonStop | RetryLater] = {}
        self._dead_letters: dict[Place, NewDeadLetter] = {}
        self._keys: dict[tuple[Partition, bytes], int] | None = None  # with keep_key_order: where each dead key begins

    def end_at(self, end: PoisonStop | RetryLater) -> None:
        """End the partition's part in front of this offset; the earliest one counts."""
        before = self.ends.get(end.partition)
        if before is None or end.offset < before.offset:
            self.ends[end.partition] = end

    def add_dead_letter(self, dead_letter: NewDeadLetter) -> None:
        """Pass this record without applying it."""
        record, partition = dead_letter.record, Partition(dead_letter.record.topic, dead_letter.record.partition)
        self._dead_letters[partition, record.offset] = dead_letter
        if self._keys is not None and dead_letter.state is State.DEAD_LETTERED and record.key is not None:
            at = partition, record.key
            self._keys[at] = min(record.offset, self._keys.get(at, record.offset))

    def block_keys(self, found: DeadKeys) -> None:
        """With ``keep_key_order``: the first open dead letter of each key, as found when the transaction began."""
        self._keys = dict(found)
        for at, dead_letter in list(self._dead_letters.items()):
            if dead_letter.state is State.BLOCKED:
                del self._dead_letters[at]  # the dead letter that blocked its key may have been replayed meanwhile
            else:
                self.add_dead_letter(dead_letter)

    def admits(self, record: RawRecord, unreadable: Mapping[Place, Exception]) -> bool:
        """Whether the record is to be applied; one that is blocked by its key becomes a dead letter."""
        if not self.excludes(record):
            return True
        place = Partition(record.topic, record.partition), record.offset
        if not self.is_past_end(*place) and place not in self._dead_letters:
            unread = unreadable.get(place)  # without its headers it must not look as if it could be replayed
            failure = BLOCKED_BY_KEY if unread is None else Failure.of(unread, Cause.DECODE)
            self._dead_letters[place] = NewDeadLetter(record, failure, State.BLOCKED)
        return False

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
        """Whether the partition's part ends in front of this offset, or before."""
        end = self.ends.get(partition)
        return end is not None and offset >= end.offset

    @property
    def is_filtering(self) -> bool:
        """Whether there is a record that :meth:`excludes` might name."""
        return bool(self.ends or self._dead_letters or self._keys)

    @property
    def looks_ahead(self) -> bool:
        """Whether one record's failure says something of later ones: its partition has ended, or its key is blocked."""
        return bool(self.ends or self._keys is not None)

    @property
    def dead_letters(self) -> list[NewDeadLetter]:
        """The records that are passed without being applied, in the order of partition and offset."""
        if not self._dead_letters:
            return []
        return [one for at, one in sorted(self._dead_letters.items()) if not self.is_past_end(*at)]

    def is_blocked(self, partition: Partition, offset: int) -> bool:
        """Whether the record became a dead letter because of its key alone."""
        dead_letter = self._dead_letters.get((partition, offset))
        return dead_letter is not None and dead_letter.state is State.BLOCKED

    def drop(self, partitions: set[Partition]) -> None:
        """Forget what was found in these partitions."""
        for partition in partitions:
            self.ends.pop(partition, None)
        self._dead_letters = {at: one for at, one in self._dead_letters.items() if at[0] not in partitions}


def moves(buffer: Buffer, outcome: Outcome) -> list[Move]:
    """What the batch asks of the ledger: per partition, from the first position read to after the last passed (I3)."""
    found = (move_of(partition, buffer, outcome) for partition in buffer.reads)
    return [move for move in found if move.to_offset > move.from_offset]


def move_of(partition: Partition, buffer: Buffer, outcome: Outcome) -> Move:
    """What the batch asks of the ledger for one partition; its ``to_offset`` may be where it began."""
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
    """The records of one transaction while it is open, and what is known of them before they are applied.

    ``is_single``: one record in a transaction of its own. ``is_transient``: that record has failed before, alone, with
    a transient error. ``suspects``: the range of which this batch is a part, where a record may crash its process.
    """

    buffer: Buffer
    outcome: Outcome = field(default_factory=Outcome)
    is_single: bool = False
    is_transient: bool = False
    suspects: SuspectRange | None = None

    @property
    def is_ordinary(self) -> bool:
        """Whether it has as many records as a batch may have, and not those that are tried apart from others."""
        return not self.is_single and self.suspects is None

    def closes_within(self, records: int, size: int) -> bool:
        """Whether the batch is closed with so many records and bytes at most, and each is to be applied as it is."""
        if not self.is_ordinary or self.outcome.tries or self.outcome.is_filtering:
            return False
        return self.buffer.closes_within(records, size) and not self.buffer.unreadable

    def blocking(self, keys: DeadKeys | None) -> Self:
        """This batch, with the records blocked that come after an open dead letter of their key."""
        if keys is not None:
            self.outcome.block_keys(keys)
        return self

    def chunks(self) -> Iterator[Sequence[RawRecord]]:
        """The records that are to be applied, chunk by chunk, as they are drawn."""
        for records in self.buffer.chunks():
            yield [r for r in records if self.admits(r)] if self.outcome.is_filtering else records

    def admits(self, record: RawRecord) -> bool:
        """Whether the record is to be applied; one that is blocked by its key becomes a dead letter."""
        return self.outcome.admits(record, self.buffer.unreadable)

    def admitted(self, records: Iterable[RawRecord]) -> Iterator[RawRecord]:
        """Those that are to be applied, each asked for when it comes: one in front of it may have failed just now."""
        for record in records:
            if not self.outcome.is_filtering or self.admits(record):
                yield record

    def drop(self, partitions: set[Partition]) -> None:
        """Leave out everything of these partitions."""
        self.buffer.drop(partitions)
        self.outcome.drop(partitions)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of offsets that the batch covers, as far as it was read."""
        return spans_of(moves(self.buffer, self.outcome))

    def note(self, error: BaseException) -> None:
        """Add to the error which batch it ended, and whether anything of it may have been written."""
        note = f"while applying {', '.join(map(str, self.spans)) or 'an empty batch'}"
        if not isinstance(error, HandlerMisuse) and not connection_lost(error):  # else it may have been, all or in part
            note += "; nothing of this batch was written, and it is read again from there"
        add_note(error, note)


def spans_of(found: Sequence[Move]) -> tuple[Span, ...]:
    """The ranges of offsets that these moves pass."""
    return tuple(Span(m.claim.partition, m.from_offset, m.to_offset) for m in found)


@dataclass(frozen=True, slots=True)
class Written:
    """How many records were applied, and how many rows each sink was given of them, in declared order."""

    records: int
    rows: Sequence[int]


@dataclass(slots=True)
class BatchResult:
    """What one attempt has made of its batch: what the transaction records, and what is announced after COMMIT."""

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
        """The result of a batch of which so much was written."""
        buffer, outcome = batch.buffer, batch.outcome
        found = moves(buffer, outcome)
        ends = {p: end for p, end in outcome.ends.items() if p in buffer.reads}
        return cls(
            written.records,
            written.rows,
            found,
            spans_of(found),
            outcome.dead_letters,
            {p: end for p, end in ends.items() if isinstance(end, PoisonStop)},
            {p: end for p, end in ends.items() if isinstance(end, RetryLater)},
            buffer.reads,
            batch,
        )

    def position(self, partition: Partition) -> int:
        """Where the partition is once the batch is committed."""
        return move_of(partition, self.batch.buffer, self.batch.outcome).to_offset

    def passed(self, *, newest_first: bool = False) -> Iterator[RawRecord]:
        """The records whose offsets are passed, but for those that are blocked by their key."""
        outcome = self.batch.outcome
        for records in self.batch.buffer.replay(newest_first=newest_first):
            for record in records:
                at = Partition(record.topic, record.partition), record.offset
                if not outcome.is_past_end(*at) and not outcome.is_blocked(*at):
                    yield record
