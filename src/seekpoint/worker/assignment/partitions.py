"""The state of every assigned partition: claiming, active or stopped; after a revocation, leaving.

All transitions are here::

    on_assigned ──> claiming ── activate ──> active ── stop ──> stopped
                       ^  └──────── stop ──────────────────────────^ │
                       └───────── claim_again, suspend ──────────────┘
    on_revoked:  claiming, stopped ──> released;  active ──> leaving ── leave, claim_again ──> released
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from types import MappingProxyType

from seekpoint import events
from seekpoint.errors import PartitionStopped
from seekpoint.events import Announcer
from seekpoint.kafka.client import Client
from seekpoint.ledger import Claim
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment.backlog import Backlog, Moment
from seekpoint.worker.assignment.chunk import Chunk
from seekpoint.worker.assignment.chunk_queue import ChunkQueue, part
from seekpoint.worker.assignment.states import ActivePartition, ClaimingPartition, StoppedPartition


class AssignedPartitions:
    """The state of every assigned partition; keeps the client in step with it. Does not use the ledger.

    A partition that Kafka revoked while it was active is leaving: no more of it is read, and its claim is released
    after the open batch, which may have its records. If it is assigned again before that, it is also claiming.

    ``queue`` has the chunks that wait for the next batch. ``backlogged`` are the active partitions with a backlog, in
    the order in which the scheduler reads them. ``out_of_range`` has the offset of each active partition that the
    broker refused, None if it named no offset.
    """

    def __init__(self, client: Client, announce: Announcer) -> None:
        self._claiming: dict[Partition, ClaimingPartition] = {}
        self._active: dict[Partition, ActivePartition] = {}
        self._stopped: dict[Partition, StoppedPartition] = {}
        self._leaving: dict[Partition, ActivePartition] = {}
        self._released: list[Claim] = []  # claims to release in the ledger
        self._backlogged: dict[Partition, ActivePartition] = {}
        self._out_of_range: dict[Partition, int | None] = {}
        self.queue = ChunkQueue()
        self._client, self._announce = client, announce
        self.claiming: Mapping[Partition, ClaimingPartition] = MappingProxyType(self._claiming)
        self.active: Mapping[Partition, ActivePartition] = MappingProxyType(self._active)
        self.stopped: Mapping[Partition, StoppedPartition] = MappingProxyType(self._stopped)
        self.backlogged: Mapping[Partition, ActivePartition] = MappingProxyType(self._backlogged)
        self.out_of_range: Mapping[Partition, int | None] = MappingProxyType(self._out_of_range)

    def owned(self, partition: Partition) -> ActivePartition | None:
        """The partition's state, if it is active or leaving: the open batch may have its records."""
        return self._active.get(partition) or self._leaving.get(partition)

    def all_owned(self) -> Mapping[Partition, ActivePartition]:
        """Every active or leaving partition."""
        return {**self._leaving, **self._active} if self._leaving else self.active

    @property
    def has_revoked(self) -> bool:
        """Whether Kafka revoked partitions that are not released yet."""
        return bool(self._leaving or self._released)

    def claims(self) -> list[Claim]:
        """Every claim of this worker."""
        others = [state.claim for state in self._stopped.values()] + [state.known for state in self._claiming.values()]
        owned = [state.claim for state in chain(self._active.values(), self._leaving.values())]
        return owned + [claim for claim in others if claim is not None] + self._released

    # -- what the callbacks record --------------------------------------------------------------------

    def on_assigned(self, partitions: Collection[Partition]) -> None:
        """Record that Kafka assigned these partitions to this worker."""
        self.assign_fixed(partitions)
        self._announce(events.Assigned(partitions=tuple(partitions)))

    def assign_fixed(self, partitions: Iterable[Partition]) -> None:
        """Assign these partitions to this worker, without Kafka."""
        self._claiming.update((partition, ClaimingPartition()) for partition in partitions)

    def on_revoked(self, partitions: Collection[Partition], is_lost: bool) -> None:
        """Record that Kafka revoked these partitions from this worker."""
        self._forget_read(partitions)
        for partition in partitions:
            if (active := self._active.pop(partition, None)) is not None:
                self._leaving[partition] = active
            if (claiming := self._claiming.pop(partition, None)) is not None:
                self._release(claiming.known)
            if (stopped := self._stopped.pop(partition, None)) is not None:
                self._release(stopped.claim)
        self._announce(events.Revoked(partitions=tuple(partitions), lost=is_lost))

    def _release(self, claim: Claim | None) -> None:
        if claim is not None:
            self._released.append(claim)

    # -- changes of state, made by the loop -----------------------------------------------------------

    def leave(self) -> list[Claim]:
        """Drop the leaving partitions, after the open batch has ended; returns all claims to release."""
        claims = self._released + [state.claim for state in self._leaving.values()]
        self._released = []
        self._leaving.clear()
        return claims

    def activate(self, claims: Mapping[Partition, Claim]) -> None:
        """Read these partitions from their claims' offsets."""
        if not claims:
            return
        self._client.assign(
            {partition: (claim.next_offset, claim.leader_epoch) for partition, claim in claims.items()},
            self._positions(),
        )
        self._forget_read(claims)
        for partition, claim in claims.items():
            self._claiming.pop(partition, None)
            self._stopped.pop(partition, None)
            self._active[partition] = ActivePartition(claim, claim.next_offset)
            self._announce(events.Activated(partition=partition, offset=claim.next_offset, epoch=claim.epoch))

    def deactivate(self, partitions: Collection[Partition]) -> None:
        """Stop reading these partitions, and drop records that the client has buffered for them."""
        self._client.unassign(partitions, self._positions())
        self._forget_read(partitions)
        for partition in partitions:
            self._active.pop(partition, None)

    def claim_again(self, partition: Partition, claim: Claim | None, not_before: float = 0.0) -> None:
        """Stop reading, and claim again; release a leaving partition instead, whose new owner a claim would fence."""
        if self._leaving.pop(partition, None) is not None:
            self._release(claim)
            return
        if partition in self._active:
            self.deactivate([partition])
        self._stopped.pop(partition, None)
        self._claiming[partition] = ClaimingPartition(not_before, known=claim)

    def postpone(self, partitions: Iterable[Partition], until: float, *, is_stalled: bool = False) -> None:
        """Do not claim these partitions before ``until``; ``is_stalled``: another transaction holds their rows."""
        for partition in partitions:
            before = self._claiming[partition]
            self._claiming[partition] = ClaimingPartition(until, before.stalled or is_stalled, before.known)

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition until its offset is reset or it is assigned again; the others continue.

        A revoked partition is not stopped here; if it is assigned again, it stops after its new claim.
        """
        if partition in self._leaving:
            return
        if (active := self._active.get(partition)) is not None:
            claim: Claim | None = active.claim
            stop.token = active.claim.token
            self.deactivate([partition])
        elif (claiming := self._claiming.pop(partition, None)) is not None:
            claim = claiming.known
        else:
            return
        self._stopped[partition] = StoppedPartition(stop, claim)
        self._announce(events.PartitionStopped(partition=partition, error=stop))

    def suspend(self) -> None:
        """Stop reading, stay in the group, and claim everything again later."""
        claims = {partition: state.claim for partition, state in self._active.items()}
        self.deactivate(list(claims))
        self._claiming.update((partition, ClaimingPartition(known=claim)) for partition, claim in claims.items())

    # -- the client, kept in step ---------------------------------------------------------------------

    def continue_reading(self) -> None:
        """Continue to read the partitions that are still assigned after a rebalance, from their read positions.

        Skips partitions that are out of range: the client stopped fetching them, and refuses to seek.
        """
        positions = self._positions()
        self._client.continue_reading(
            {partition: (position, self._active[partition].last_epoch) for partition, position in positions.items()}
        )

    def read_again(self, partition: Partition) -> None:
        """Assign a partition again at its read position: the client has ended it, but the log has that offset."""
        active = self._active[partition]
        self._out_of_range.pop(partition, None)
        self._client.assign({partition: (active.read_position, active.last_epoch)}, self._positions())
        active.is_paused = False

    def pause(self, partitions: Collection[Partition]) -> None:
        """Pause these partitions, because their backlogs are full."""
        self._client.pause(partitions)
        for partition in partitions:
            self._active[partition].is_paused = True

    def resume(self, partitions: Collection[Partition]) -> None:
        """Resume reading these partitions, except those out of range: the client cannot seek there."""
        readable = [partition for partition in partitions if partition not in self._out_of_range]
        self._client.resume(
            {
                partition: (self._active[partition].read_position, self._active[partition].leader_epoch)
                for partition in readable
            }
        )
        for partition in partitions:
            self._active[partition].is_paused = False

    def refused(self, partition: Partition, offset: int | None) -> None:
        """Note that the broker refused this offset of an active partition; None if it named no offset."""
        self._out_of_range[partition] = offset

    def decided(self, partitions: Iterable[Partition]) -> None:
        """Forget which offsets of these partitions the broker refused."""
        for partition in partitions:
            self._out_of_range.pop(partition, None)

    def _positions(self) -> dict[Partition, int]:
        """The read positions of active partitions; omits those out of range, which the broker would refuse again."""
        return {
            partition: state.read_position
            for partition, state in self._active.items()
            if partition not in self._out_of_range
        }

    def _forget_read(self, partitions: Collection[Partition]) -> None:
        """Drop unapplied records of these partitions, because reading ends, or begins at another position."""
        self.decided(partitions)
        for partition in partitions:
            self._backlogged.pop(partition, None)
        if len(self.queue):
            self.queue.take_all(partitions)

    # -- records that were read and wait --------------------------------------------------------------

    def set_backlog(self, partition: Partition, backlog: Backlog | None) -> None:
        """Use this backlog for an active partition's next records; None: use no backlog."""
        active = self._active[partition]
        active.backlog = backlog
        if backlog is None:
            self._backlogged.pop(partition, None)
        else:
            self._backlogged[partition] = active

    def rotate(self, partition: Partition) -> None:
        """Move a partition to the end of the scheduler's order, after some of its records were returned."""
        self._backlogged[partition] = self._backlogged.pop(partition)

    def keep(self, chunk: Chunk[RawRecord]) -> None:
        """Keep a chunk for a later batch, at the end of the queue."""
        self.queue.append(chunk)
        for partition, read in chunk.reads.items():
            active = self._active[partition]
            if active.queued_from is None:
                active.queued_from = read.start

    def keep_others(self, chunk: Chunk[RawRecord], held: frozenset[Partition]) -> Chunk[RawRecord]:
        """Return the records of held partitions; keep the others for the start of the next batch."""
        others = part(chunk, {partition: read for partition, read in chunk.reads.items() if partition not in held})
        self.queue.put_back(others)
        for partition, read in others.reads.items():
            self._active[partition].queued_from = read.start
        return part(chunk, {partition: read for partition, read in chunk.reads.items() if partition in held})

    def take_queued(self, most: int | None = None) -> Chunk[RawRecord]:
        """Take the first queued chunk, or its first ``most`` records."""
        if most is not None:
            self.queue.divide_first(most)
        chunk = self.queue.take()
        for partition, read in chunk.reads.items():
            self._active[partition].queued_from = read.end if self.queue.has(partition) else None
        return chunk

    def put_queued_into_backlog(self, partition: Partition) -> None:
        """Move the queued records of a partition to the end of its backlog."""
        active, now = self._active[partition], Moment.now()
        assert active.backlog is not None
        for chunk in self.queue.take_all({partition}):
            for record in chunk:
                active.backlog.add(record, chunk.reads[partition].start, now)
                active.leader_epoch = record.leader_epoch
        active.queued_from = None
