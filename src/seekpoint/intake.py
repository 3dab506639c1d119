"""From the client's queue to an open batch: drawn while it is applied, kept until its outcome is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic

from seekpoint import events
from seekpoint.assignment.chunk import Chunk, Read, chain
from seekpoint.errors import PartitionStopped, PoisonStop
from seekpoint.events import Announcer
from seekpoint.kafka.client import Client
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Move
from seekpoint.policy import Limits
from seekpoint.records import AnyRecord, Partition, RawRecord, Span

CHUNK = 500  # records per draw: small chunks stay in the processor's cache

SAID = 1000  # characters of an error that are passed on: a message may quote a value of many megabytes

Draw = Callable[[], Chunk[RawRecord] | None]
Ask = Callable[[set[str]], Answer]


def poison_stop(record: AnyRecord, error: Exception, what: str = "it cannot be applied") -> PoisonStop:
    """The error that stops a partition in front of this record, with what can be decided."""
    said = str(error)
    if len(said) > SAID:
        said = f"{said[:SAID]}… ({len(said)} characters)"
    said = " ".join(said.split())
    call = f"Ledger.move({record.topic!r}, {record.partition}, to={record.offset + 1}"
    return PoisonStop(
        Partition(record.topic, record.partition),
        record.offset,
        f"{what}: {type(error).__name__}: {said}",
        choices=(
            "mend the codec, row= or handler, and start the worker again",
            f"skip it: {call}, lost='poison', reason=...)",
        ),
    )


class OpenBatch:
    """The records of one transaction, while it is open.

    Iterating :meth:`chunks` first repeats what was read before, then draws more without waiting, until the
    limits, an empty queue or a rebalance closes it. The raw records are kept until the outcome is known, so
    that a retry, an unknown COMMIT or a refused row replays them through the same code. A *cut* ends one
    partition's part in front of a record that cannot be applied.
    """

    def __init__(
        self, first: Chunk[RawRecord], draw: Draw, ask: Ask, limits: Limits, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._draw, self._ask, self._limits, self._clock = draw, ask, limits, clock
        self._kept: list[list[RawRecord]] = []
        self._closes_at = clock() + limits.batch_age
        self._bytes = self._records = 0
        self.cuts: dict[Partition, PartitionStopped] = {}
        self.searching = False  # the database refused a row and did not say which: find it
        self.reads: dict[Partition, Read] = {}
        self.identity: Answer | None = None
        self._keep(first)

    def _keep(self, chunk: Chunk[RawRecord]) -> None:
        self.reads = chain((Chunk((), self.reads), chunk))  # first: what does not follow must not be applied
        for stop in chunk.stops:
            self.cut(stop)
        records = list(chunk)
        self._kept.append(records)
        self._records += len(records)
        self._bytes += sum(len(r.value or b"") + len(r.key or b"") for r in records)

    @property
    def closed(self) -> bool:
        """Whether nothing more will be drawn."""
        return self.identity is not None

    def close(self) -> None:
        """Draw nothing more. The topics' ids are asked for now: after the last read, before COMMIT."""
        if self.identity is None:
            self.ask_again()

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

    def chunks(self) -> Iterator[list[RawRecord]]:
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

    def kept(self) -> Iterator[list[RawRecord]]:
        """What was read so far, in the same order as :meth:`chunks`; draws nothing."""
        return map(self._wanted, list(self._kept))

    def _wanted(self, records: list[RawRecord]) -> list[RawRecord]:
        return [r for r in records if self.wants(r)] if self.cuts else records

    def wants(self, record: RawRecord) -> bool:
        """Whether the record lies before its partition's cut, if there is one."""
        cut = self.cuts.get(Partition(record.topic, record.partition))
        return cut is None or record.offset < cut.offset

    def cut(self, stop: PartitionStopped) -> None:
        """End the partition's part in front of this offset; the earliest cut counts."""
        before = self.cuts.get(stop.partition)
        if before is None or stop.offset < before.offset:
            self.cuts[stop.partition] = stop

    def drop(self, partitions: set[Partition]) -> None:
        """Leave out what was read of these partitions: they were refused, and the ledger says where to read on.

        What is drawn of them later was read from there, and is a part of the batch like any other.
        """
        self._kept = [[r for r in records if (r.topic, r.partition) not in partitions] for records in self._kept]
        for partition in partitions:
            self.reads.pop(partition, None)
            self.cuts.pop(partition, None)

    def moves(self) -> list[Move]:
        """What the batch asks of the ledger: per partition, from the first position read to behind the last (I3)."""
        moves = []
        for partition, read in self.reads.items():
            cut = self.cuts.get(partition)
            move = read.move() if cut is None else self._move_to_cut(partition, read, cut.offset)
            if move.to_offset > move.from_offset:
                moves.append(move)
        return moves

    def _move_to_cut(self, partition: Partition, read: Read, end: int) -> Move:
        last = None
        for records in self._kept:
            for r in records:
                if (r.topic, r.partition) == partition and r.offset < end:
                    last = r
        if last is None:
            return Read(read.claim, read.start, read.start).move()
        return Read(read.claim, read.start, end, last.leader_epoch, last.timestamp_ms).move()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of offsets that the batch covers, as it stands now."""
        return tuple(Span(m.claim.partition, m.from_offset, m.to_offset) for m in self.moves())

    @property
    def starts(self) -> dict[Partition, int]:
        """Where the reading of each partition's part began."""
        return {partition: read.start for partition, read in self.reads.items()}


class Keeper:
    """Keeps the group membership while one transaction takes long, from a thread of its own; within a deadline.

    ``max_poll`` is ``max.poll.interval.ms`` in seconds. The membership is renewed with a consume of nothing,
    which runs no callback: a rebalance waits meanwhile, so it ends with ``Limits.transaction_age``.
    """

    def __init__(self, client: Client, max_poll: float, deadline: float, announce: Announcer) -> None:
        self._client, self._every, self._deadline, self._announce = client, max_poll / 3, deadline, announce
        self._busy_since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seekpoint-keeper", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._busy_since = monotonic()

    def __exit__(self, *_: object) -> None:
        self._busy_since = None

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(min(self._every / 4, 1.0)):
            since, now = self._busy_since, monotonic()
            if since is None or now - since > self._deadline or now - self._client.contact < self._every:
                continue
            if self._client.keep():
                self._announce(events.Kept())
