"""Assigned partitions by state: claiming, active or stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import lt
from time import monotonic
from typing import Any
from uuid import UUID

from seekpoint import events
from seekpoint.errors import PartitionStopped, TopicRecreated, TopicUnknown
from seekpoint.events import Announcer
from seekpoint.kafka import client as kafka
from seekpoint.kafka.client import Client, Message
from seekpoint.ledger import Claim
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment.backlog import Backlog, Moment
from seekpoint.worker.assignment.chunk import Chunk, Read
from seekpoint.worker.assignment.kept import KeptChunks, part


@dataclass(slots=True)
class ActivePartition:
    """A partition that is read. ``read_position`` is the reader's own: it moves when a chunk is read, not on a commit.

    Where records have to wait, they wait in ``backlog``: it ends when the partition is no longer active. ``kept_from``
    is where those begin that were read and wait for the next batch.
    """

    claim: Claim
    read_position: int
    kept_from: int | None = None
    end: int | None = None  # the log's end, when the client said that it was reached
    quiet_since: float = 0.0
    backlog: Backlog | None = None
    leader_epoch: int | None = None  # of the last record that went into the backlog
    is_paused: bool = False  # its backlog is full: the client reads no more of it
    unreadable: dict[int, Exception] = field(
        default_factory=dict
    )  # the client's errors for records that were read, by offset

    @property
    def position(self) -> int:
        """Where the records that are given next begin: the ledger's position, unless a batch is in hand."""
        if self.kept_from is not None:
            return self.kept_from
        return self.read_position if self.backlog is None or not len(self.backlog) else self.backlog.position

    @property
    def last_epoch(self) -> int | None:
        """The leader epoch of the record in front of the read position; None where it is not known (open batch)."""
        if self.backlog is not None and len(self.backlog):
            return self.leader_epoch
        return self.claim.leader_epoch if self.read_position == self.claim.next_offset else None

    @property
    def has_trailing(self) -> bool:
        """Whether only control records lie between the position and the log's end."""
        return self.end is not None and self.end > self.read_position == self.position

    def passed(self, offset: int) -> None:
        """The ledger's position is ``offset`` now: what was on record in front of it is gone."""
        self.unreadable = {at: error for at, error in self.unreadable.items() if at >= offset}
        if self.backlog is not None:
            self.backlog.noted = -1


@dataclass(slots=True)
class ClaimingPartition:
    """A partition that is assigned and not claimed yet. ``known``: this worker's previous claim."""

    not_before: float = 0.0
    stalled: bool = False  # another transaction held its row
    known: Claim | None = None


@dataclass(slots=True)
class StoppedPartition:
    """A partition that is not read; ``claim`` is this worker's claim, where it was active before."""

    stop: PartitionStopped
    claim: Claim | None = None
    is_stored: bool = False  # the ledger has the stop
    store_at: float = 0.0  # when it is tried next, by the monotonic clock

    def is_over(self, token: UUID | None, stored: UUID | None, now: UUID | None) -> bool:
        """Whether to claim it again: the row has another token, it is another topic by now, or is known again.

        ``stored`` is the topic's id in the row, ``now`` what the brokers answer; None where there is none.
        """
        decided = token is not None and token != self.stop.token
        if decided or now is None or isinstance(self.stop, TopicRecreated):
            return decided
        return now != stored or isinstance(self.stop, TopicUnknown)


class _Accepted:
    """What is kept of one answer of the client. ``last`` is each partition's last message; ``waits`` have to wait."""

    def __init__(self) -> None:
        self.kept: list[Message] = []
        self.reads: dict[Partition, Read] = {}
        self.last: dict[Partition, Message] = {}
        self.waits: list[tuple[ActivePartition, Message]] = []

    def keep(self, placed: ActivePartition, messages: Sequence[Message], last: int) -> None:
        """These come next of their partition, the last one at this offset: the read position moves after it."""
        partition = placed.claim.partition
        read = self.reads.get(partition)
        if read is None:
            read = self.reads[partition] = Read(placed.claim, placed.read_position, placed.read_position)
        placed.read_position = read.end = last + 1
        self.last[partition] = messages[-1]
        self.kept += messages


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
    for at, run in groupby(zip(topics, numbers, strict=True)):
        end = start + sum(1 for _ in run)
        yield at, messages[start:end]
        start = end


class AssignedPartitions:
    """The state of every assigned partition, and the client kept in step with it. Does not know the ledger.

    ``revoked`` are partitions that Kafka took away and that were not released yet; ``out_of_range`` the offsets that
    the broker has refused, None where it has not named one; ``kept`` what was read and waits for the next batch;
    ``backlogged`` the
    active ones that have a backlog, in the order in which the scheduler reads from them.
    """

    def __init__(self, client: Client, announce: Announcer) -> None:
        self.active: dict[Partition, ActivePartition] = {}
        self.backlogged: dict[Partition, ActivePartition] = {}
        self.claiming: dict[Partition, ClaimingPartition] = {}
        self.stopped: dict[Partition, StoppedPartition] = {}
        self.revoked: set[Partition] = set()
        self.out_of_range: dict[Partition, int | None] = {}
        self.kept = KeptChunks()
        self._unreleased: list[Claim] = []  # claims of revoked partitions
        self._client, self._announce = client, announce

    # -- what the callbacks record --------------------------------------------------------------------

    def on_assigned(self, partitions: list[Partition]) -> None:
        """Kafka assigned these to this worker."""
        self.claiming.update((p, ClaimingPartition()) for p in partitions)
        self._announce(events.Assigned(partitions=tuple(partitions)))

    def on_revoked(self, partitions: list[Partition], is_lost: bool) -> None:
        """Kafka revoked these from this worker."""
        for partition in partitions:
            waiting = self.claiming.pop(partition, None)
            if waiting is not None and waiting.known is not None:
                self._unreleased.append(waiting.known)
        self.revoked.update(partitions)
        self._announce(events.Revoked(partitions=tuple(partitions), lost=is_lost))

    # -- changes of state, made by the loop -----------------------------------------------------------

    def forget_revoked(self) -> list[Claim]:
        """Drop the revoked partitions; returns the claims to release."""
        self._drop_revoked()
        left, self._unreleased = self._unreleased, []
        return left

    def _drop_revoked(self) -> None:
        if not self.revoked:
            return
        revoked, self.revoked = self.revoked, set()
        self._forget_read(revoked)
        self._unreleased += [self.active.pop(p).claim for p in revoked if p in self.active]
        stopped = [self.stopped.pop(p).claim for p in revoked if p in self.stopped]
        self._unreleased += [claim for claim in stopped if claim is not None]

    def claims(self) -> list[Claim]:
        """Every claim of this worker."""
        others = [at.claim for at in self.stopped.values()] + [at.known for at in self.claiming.values()]
        return [at.claim for at in self.active.values()] + [c for c in others if c is not None] + self._unreleased

    def activate(self, claims: Mapping[Partition, Claim]) -> None:
        """Read these from their claims' offsets."""
        if not claims:
            return
        self._client.assign({p: (c.next_offset, c.leader_epoch) for p, c in claims.items()}, self._positions())
        self._forget_read(claims)
        now = monotonic()
        for partition, claim in claims.items():
            self.claiming.pop(partition, None)
            self.stopped.pop(partition, None)
            self.out_of_range.pop(partition, None)
            self.active[partition] = ActivePartition(claim, claim.next_offset, quiet_since=now)
            self._announce(events.Activated(partition=partition, offset=claim.next_offset, epoch=claim.epoch))

    def continue_reading(self) -> None:
        """After a rebalance: continue to read the partitions that are still assigned, from their read positions."""
        self._client.continue_reading({p: (at.read_position, at.last_epoch) for p, at in self.active.items()})

    def deactivate(self, partitions: Collection[Partition]) -> None:
        """Stop reading these, and throw away what the client has buffered of them."""
        self._client.unassign(partitions, self._positions())
        self._forget_read(partitions)
        for partition in partitions:
            self.active.pop(partition, None)

    def _forget_read(self, partitions: Collection[Partition]) -> None:
        """Drop what was read of these and not applied: they are not read any more, or from another position."""
        for partition in partitions:
            self.backlogged.pop(partition, None)
        if len(self.kept):
            self.kept.take_all(partitions)

    def claim_later(self, partition: Partition, waiting: ClaimingPartition) -> None:
        """Claim it later; where it is revoked, release the claim instead: another one would fence its new owner."""
        if partition not in self.revoked:
            self.claiming[partition] = waiting
        elif waiting.known is not None:
            self._unreleased.append(waiting.known)

    def postpone(self, partitions: Iterable[Partition], until: float, *, is_stalled: bool = False) -> None:
        """Claim these not before ``until``; ``is_stalled``: another transaction holds their rows."""
        for partition in partitions:
            before = self.claiming[partition]
            self.claim_later(partition, ClaimingPartition(until, before.stalled or is_stalled, before.known))

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition until its offset is reset or it is assigned again; the others are read on.

        One that Kafka took away is not stopped here; if it was assigned again at once, the new claim's reader will.
        """
        if partition in self.revoked:
            return
        placed = self.active.get(partition)
        if placed is not None:
            stop.token = placed.claim.token
            self.deactivate([partition])
        before = self.claiming.pop(partition, ClaimingPartition())
        self.stopped[partition] = StoppedPartition(stop, before.known if placed is None else placed.claim)
        self._announce(events.PartitionStopped(partition=partition, error=stop))

    def suspend(self) -> None:
        """Read nothing, stay in the group, claim everything again later."""
        self._drop_revoked()
        for partition, placed in self.active.items():
            self.claiming.setdefault(partition, ClaimingPartition(known=placed.claim))
        self.deactivate(list(self.active))

    def read_again(self, partition: Partition) -> None:
        """Read from the read position: the client has stopped there, though the log has it."""
        placed = self.active[partition]
        self.out_of_range.pop(partition, None)
        self._client.assign({partition: (placed.read_position, placed.last_epoch)}, self._positions())
        placed.is_paused = False

    def _positions(self) -> dict[Partition, int]:
        """The read positions of what we may read, and can.

        A partition that Kafka took away must not be assigned again; one that is out of range would be refused again.
        """
        left_out = self.revoked | self.out_of_range.keys()
        return {p: at.read_position for p, at in self.active.items() if p not in left_out}

    # -- backlogs -------------------------------------------------------------------------------------

    def set_backlog(self, partition: Partition, backlog: Backlog | None) -> None:
        """Put what is read of an active partition into this backlog from now on; None: into none."""
        placed = self.active[partition]
        placed.backlog = backlog
        if backlog is None:
            self.backlogged.pop(partition, None)
        else:
            self.backlogged[partition] = placed

    def rotate(self, partition: Partition) -> None:
        """Move it to the end of the order: records of it were read."""
        self.backlogged[partition] = self.backlogged.pop(partition)

    # -- reading --------------------------------------------------------------------------------------

    def accept_messages(self, messages: Iterable[Message]) -> Chunk[Message]:
        """Keep what belongs to an active partition and was not read before; move the read positions over it (I3).

        What has to wait goes into its partition's backlog instead.
        """
        given, taken = list(messages), _Accepted()
        for at, run in _runs(given):
            if at is None or not self._accept_run(taken, at, run):
                self._accept_each(taken, run)
        if taken.waits:
            self._store(taken.waits)
        now = monotonic()
        for partition, message in taken.last.items():
            self.active[partition].quiet_since = now
            read = taken.reads[partition]
            read.leader_epoch, read.timestamp_ms = kafka.standing(message)
        return Chunk(taken.kept, taken.reads)

    def keep(self, chunk: Chunk[RawRecord]) -> None:
        """Keep what was read for a later batch, after what is kept already."""
        self.kept.append(chunk)
        for partition, read in chunk.reads.items():
            placed = self.active[partition]
            if placed.kept_from is None:
                placed.kept_from = read.start

    def keep_others(self, chunk: Chunk[RawRecord], held: frozenset[Partition]) -> Chunk[RawRecord]:
        """Return what is of held partitions, and keep the rest: the next batch begins with it."""
        kept = {p: read for p, read in chunk.reads.items() if p not in held}
        self.kept.put_back(part(chunk, kept))
        for partition, read in kept.items():
            self.active[partition].kept_from = read.start
        return part(chunk, {p: read for p, read in chunk.reads.items() if p in held})

    def take_kept(self, most: int | None = None) -> Chunk[RawRecord]:
        """The first of what was kept, ``most`` records of it, without partitions that were revoked since."""
        if most is not None:
            self.kept.divide_first(most)
        chunk = self.kept.take()
        reads = {p: read for p, read in chunk.reads.items() if p not in self.revoked}
        for partition, read in reads.items():
            self.active[partition].kept_from = read.end if self.kept.has(partition) else None
        return part(chunk, reads)

    def put_kept_into_backlog(self, partition: Partition) -> None:
        """What was kept of this partition waits in its backlog instead, after what waits there already."""
        placed, at = self.active[partition], Moment.now()
        assert placed.backlog is not None
        for chunk in self.kept.take_all({partition}):
            for record in chunk:
                placed.backlog.add(record, chunk.reads[partition].start, at)
                placed.leader_epoch = record.leader_epoch
        placed.kept_from = None

    def _accept_run(self, taken: _Accepted, at: Any, run: list[Message]) -> bool:
        """Keep records of one partition, without a look at each; False if one of them is not to be kept."""
        placed = self.active.get(at)
        if placed is None or placed.backlog is not None or at in self.revoked:
            return False
        offsets: list[Any] = [m.offset() for m in run]
        if offsets[0] < placed.read_position or not all(map(lt, offsets, offsets[1:])):
            return False
        taken.keep(placed, run, offsets[-1])
        return True

    def _accept_each(self, taken: _Accepted, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                self._in_stream(message)
                continue
            at: Any = (message.topic(), message.partition())
            placed = self.active.get(at)
            offset: Any = message.offset()
            if placed is None or offset < placed.read_position or at in self.revoked:
                continue  # read before it was activated again
            if placed.backlog is not None:
                taken.waits.append((placed, message))
                continue
            taken.keep(placed, (message,), offset)

    def _store(self, waits: Sequence[tuple[ActivePartition, Message]]) -> None:
        """Put these into their backlogs. The partitions stay quiet: they may be reset while they wait."""
        at, stored = Moment.now(), 0
        for placed, message in waits:
            record, error = kafka.readable(message)
            if placed.backlog is None or record.offset < placed.read_position:
                continue  # twice in one answer of the client
            if error is not None:
                placed.unreadable[record.offset] = error
            placed.backlog.add(record, placed.read_position, at)
            placed.read_position, placed.leader_epoch = record.offset + 1, record.leader_epoch
            stored += 1
        self._announce(events.ChunkRead(records=stored))

    def _in_stream(self, message: Message) -> None:
        """An event that came in the place of a record."""
        error: Any = message.error()
        partition = Partition(message.topic() or "", -1 if (n := message.partition()) is None else n)
        placed = self.active.get(partition)
        if error.code() == kafka.END_OF_PARTITION:
            offset: Any = message.offset()
            if placed is not None and offset > placed.read_position:
                placed.end = offset
        elif error.code() == kafka.OUT_OF_RANGE:
            self._note_out_of_range(partition, placed, message.offset())
        else:
            kafka.raise_if_fatal(error)
            self._announce(events.KafkaTrouble(error=f"{partition.topic}: {error.str()}"))

    def _note_out_of_range(self, partition: Partition, placed: ActivePartition | None, offset: int | None) -> None:
        """Note a refused offset, unless it is of an earlier assignment: the client's event survives a new one.

        A truncation is reported without an offset, and only where the client had a leader epoch to compare.
        """
        if placed is None:
            return
        if offset is None:
            is_current = placed.claim.leader_epoch is not None or placed.read_position > placed.claim.next_offset
        else:
            is_current = offset >= placed.read_position  # after it where the log has no records in between
        if is_current:
            self.out_of_range[partition] = offset
