"""From the client's queue to an open batch: drawn while it is applied, kept until its outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic

from seekpoint.errors import PartitionStopped
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Move
from seekpoint.pipeline.policy import Limits
from seekpoint.records import (
    BLOCKED_BY_KEY,
    AnyRecord,
    Cause,
    Failure,
    LazyRecords,
    NewDeadLetter,
    Partition,
    RawRecord,
    Span,
    State,
)
from seekpoint.worker.assignment.backlog import SuspectRange
from seekpoint.worker.assignment.chunk import Chunk, Read, chain

CHUNK = 500  # records per draw: small chunks stay in the processor's cache

Draw = Callable[[], Chunk[RawRecord] | None]
Ask = Callable[[set[str]], Answer]
Place = tuple[Partition, int]  # a record's partition and offset


def _nothing() -> None:
    """No chunk, once the batch is closed."""


class OpenBatch:
    """The records of one transaction, while it is open.

    Iterating :meth:`chunks` first repeats what was read before, then draws more without waiting, until the
    limits, an empty queue or a rebalance closes it. The raw records are kept until the outcome is known, so
    that a retry, an unknown COMMIT or a refused row replays them through the same code. A *cut* ends one
    partition's part in front of a record. One that is set *aside* is passed without being applied: it becomes a
    dead letter. ``tries`` says how often a record was tried before this batch.
    """

    def __init__(
        self,
        first: Chunk[RawRecord],
        draw: Draw,
        ask: Ask,
        limits: Limits,
        *,
        tries: Mapping[Place, int] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._draw, self._ask, self._limits, self._clock = draw, ask, limits, clock
        self._kept: list[Sequence[RawRecord]] = []
        self._closes_at = clock() + limits.batch_age
        self._bytes = self._records = 0
        self.stops: dict[Partition, PartitionStopped] = {}
        self.unreadable: dict[Place, Exception] = {}  # what the client could not read whole
        self.tries = tries or {}
        self.bisecting = False  # some record failed: run the parts one by one, and find it
        self.deferred = False  # a constraint refused the rows at COMMIT: ask it after every part
        self.suspects: SuspectRange | None = None  # its only partition is gone through in parts
        self.is_transient = False  # its only record has failed before, alone, with a transient error
        self._dead_letters: dict[Place, NewDeadLetter] = {}
        self._keys: dict[tuple[Partition, bytes], int] | None = None  # with keep_key_order: where each dead key begins
        self.reads: dict[Partition, Read] = {}
        self.identity: Answer | None = None
        self._keep(first)

    def _keep(self, chunk: Chunk[RawRecord]) -> None:
        self.reads = chain((chunk,), self.reads)  # first: what does not follow must not be applied
        for record, error in chunk.unreadable:
            self.unreadable[Partition(record.topic, record.partition), record.offset] = error
        records = chunk.messages
        self._kept.append(records)
        self._records += len(records)
        self._bytes += _size(records)

    @property
    def closed(self) -> bool:
        """Whether nothing more will be drawn."""
        return self.identity is not None

    def close(self) -> None:
        """Draw nothing more. The topics' ids are asked for now: after the last read, before COMMIT."""
        if self.identity is None:
            self.ask_again()
        self._draw = _nothing  # the one given knows this batch: its records would wait for the collector of cycles

    def ask_again(self) -> None:
        """Ask for the topics' ids; the answer is awaited before COMMIT."""
        self.identity = self._ask({p.topic for p in self.reads})

    @property
    def room(self) -> int:
        """How many more records the batch may take."""
        return self._limits.batch_records - self._records

    def _full(self) -> bool:
        limits = self._limits
        return self.room <= 0 or self._bytes >= limits.batch_bytes or self._clock() >= self._closes_at

    def chunks(self) -> Iterator[Sequence[RawRecord]]:
        """The records, chunk by chunk, those behind a cut left out."""
        at = 0
        while True:
            while at < len(self._kept):
                yield self._wanted(self._kept[at])
                at += 1
            if self.closed:
                return
            chunk = None if self._full() else self._draw()
            if chunk is None or not len(chunk):
                self.close()
            else:
                self._keep(chunk)

    def kept(self) -> Iterator[Sequence[RawRecord]]:
        """What was read so far, in the same order as :meth:`chunks`; draws nothing."""
        return map(self._wanted, list(self._kept))

    def _wanted(self, records: Sequence[RawRecord]) -> Sequence[RawRecord]:
        return [r for r in records if self.wants(r)] if self.is_sifting else records

    @property
    def is_sifting(self) -> bool:
        """Whether there is a record that :meth:`wants` might refuse."""
        return bool(self.stops or self._dead_letters or self._keys)

    @property
    def looks_ahead(self) -> bool:
        """Whether a verdict on one record tells of later ones: its partition has ended, or its key is kept back."""
        return bool(self.stops or self._keys is not None)

    def wants(self, record: AnyRecord) -> bool:
        """Whether the record is to be applied: not behind its partition's cut, not set aside, not behind its key."""
        partition = Partition(record.topic, record.partition)
        if self._is_stopped(partition, record.offset):
            return False
        return (partition, record.offset) not in self._dead_letters and not self._block(partition, record)

    def _is_stopped(self, partition: Partition, offset: int) -> bool:
        cut = self.stops.get(partition)
        return cut is not None and offset >= cut.offset

    def _block(self, partition: Partition, record: RawRecord) -> bool:
        """Whether an earlier record of its key is a dead letter; then it is kept behind it (in the raw, as read)."""
        if self._keys is None or record.key is None:
            return False
        first = self._keys.get((partition, record.key))
        if first is None or first >= record.offset:
            return False
        unread = self.unread(record)  # held without its headers, it must not be replayed without them
        failure = BLOCKED_BY_KEY if unread is None else Failure.of(unread, Cause.DECODE)
        self._dead_letters[partition, record.offset] = NewDeadLetter(record, failure, State.BLOCKED)
        return True

    def stop_at(self, stop: PartitionStopped) -> None:
        """End the partition's part in front of this offset; the earliest cut counts."""
        before = self.stops.get(stop.partition)
        if before is None or stop.offset < before.offset:
            self.stops[stop.partition] = stop

    def unread(self, record: RawRecord) -> Exception | None:
        """What the client said of a record that it could not read whole."""
        return self.unreadable.get((Partition(record.topic, record.partition), record.offset))

    def add_dead_letter(self, aside: NewDeadLetter) -> None:
        """Pass this record without applying it."""
        partition, offset = Partition(aside.record.topic, aside.record.partition), aside.record.offset
        self._dead_letters[partition, offset] = aside
        if self._keys is not None and aside.state is State.DEAD_LETTERED and aside.record.key is not None:
            at = partition, aside.record.key
            self._keys[at] = min(offset, self._keys.get(at, offset))

    def block_keys(self, found: Mapping[tuple[Partition, bytes], int]) -> None:
        """With ``keep_key_order``: the first open dead letter of each key, as the transaction that begins now finds
        them.
        """
        self._keys = dict(found)
        for at, aside in list(self._dead_letters.items()):
            if aside.state is State.BLOCKED:
                del self._dead_letters[at]  # what it was held behind may have been replayed meanwhile
            else:
                self.add_dead_letter(aside)

    @property
    def dead_letters(self) -> list[NewDeadLetter]:
        """The records that are passed without being applied, in the order of partition and offset."""
        return [aside for at, aside in sorted(self._dead_letters.items()) if not self._is_stopped(*at)]

    def passed(self, *, newest_first: bool = False) -> Iterator[RawRecord]:
        """What the batch leaves behind: every record in front of the cuts but those held behind their key."""
        held = {at for at, aside in self._dead_letters.items() if aside.state is State.BLOCKED}
        for records in reversed(self._kept) if newest_first else self._kept:
            for record in reversed(records) if newest_first else records:
                partition = Partition(record.topic, record.partition)
                if not self._is_stopped(partition, record.offset) and (partition, record.offset) not in held:
                    yield record

    def rest(self, partition: Partition, start: int) -> list[RawRecord]:
        """What was read of one partition from this offset on, in order."""
        return [
            r for records in self._kept for r in records if (r.topic, r.partition) == partition and r.offset >= start
        ]

    def drop(self, partitions: set[Partition]) -> None:
        """Leave out what was read of these partitions: they were refused, and the ledger says where to read on.

        What is drawn of them later was read from there, and is a part of the batch like any other.
        """
        self._kept = [[r for r in records if (r.topic, r.partition) not in partitions] for records in self._kept]
        for partition in partitions:
            self.reads.pop(partition, None)
            self.stops.pop(partition, None)
        self._dead_letters = {at: aside for at, aside in self._dead_letters.items() if at[0] not in partitions}

    def moves(self) -> list[Move]:
        """What the batch asks of the ledger: per partition, from the first position read to behind the last (I3)."""
        moves = map(self._move, self.reads)
        return [move for move in moves if move.to_offset > move.from_offset]

    def _move(self, partition: Partition) -> Move:
        read, cut = self.reads[partition], self.stops.get(partition)
        return read.move() if cut is None else self._move_to_stop(partition, read, cut.offset)

    def _move_to_stop(self, partition: Partition, read: Read, end: int) -> Move:
        last = None
        for records in self._kept:
            for r in records:
                if (r.topic, r.partition) == partition and r.offset < end:
                    last = r
        if last is None:
            return Read(read.claim, read.start, read.start).move()
        return Read(read.claim, read.start, end, last.leader_epoch, last.timestamp_ms).move()

    def position(self, partition: Partition) -> int:
        """Where the partition stands once the batch is committed."""
        return self._move(partition).to_offset

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of offsets that the batch covers, as it stands now."""
        return tuple(Span(m.claim.partition, m.from_offset, m.to_offset) for m in self.moves())

    @property
    def starts(self) -> dict[Partition, int]:
        """Where the reading of each partition's part began."""
        return {partition: read.start for partition, read in self.reads.items()}


def _size(records: Sequence[RawRecord]) -> int:
    """Bytes of their keys and values."""
    if isinstance(records, LazyRecords):
        return records.size
    return sum(len(r.value or b"") + len(r.key or b"") for r in records)
