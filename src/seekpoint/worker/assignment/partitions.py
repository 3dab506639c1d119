"""Every assigned partition in one state: claiming, active or stopped; and leaving, once Kafka took it away.

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
from seekpoint.worker.assignment.kept import KeptChunks, part
from seekpoint.worker.assignment.states import ActivePartition, ClaimingPartition, StoppedPartition


class AssignedPartitions:
    """The state of every assigned partition, and the client kept in step with it. Does not know the ledger.

    A partition that Kafka took away while it was active is leaving: nothing more is read of it, its records may be in
    the open batch, and its claim is released after that. It may be assigned again meanwhile, and waits to be claimed.

    ``kept`` is what was read and waits for the next batch; ``backlogged`` are the active partitions that have a
    backlog, in the order in which the scheduler reads from them; ``out_of_range`` are offsets of active partitions that
    the broker has refused, None where it has not named one.
    """

    def __init__(self, client: Client, announce: Announcer) -> None:
        self._claiming: dict[Partition, ClaimingPartition] = {}
        self._active: dict[Partition, ActivePartition] = {}
        self._stopped: dict[Partition, StoppedPartition] = {}
        self._leaving: dict[Partition, ActivePartition] = {}
        self._released: list[Claim] = []  # of this worker no more; the ledger does not know it yet
        self._backlogged: dict[Partition, ActivePartition] = {}
        self._out_of_range: dict[Partition, int | None] = {}
        self.kept = KeptChunks()
        self._client, self._announce = client, announce
        self.claiming: Mapping[Partition, ClaimingPartition] = MappingProxyType(self._claiming)
        self.active: Mapping[Partition, ActivePartition] = MappingProxyType(self._active)
        self.stopped: Mapping[Partition, StoppedPartition] = MappingProxyType(self._stopped)
        self.backlogged: Mapping[Partition, ActivePartition] = MappingProxyType(self._backlogged)
        self.out_of_range: Mapping[Partition, int | None] = MappingProxyType(self._out_of_range)

    def owned(self, partition: Partition) -> ActivePartition | None:
        """The partition if its records may be in the open batch: active or leaving."""
        return self._active.get(partition) or self._leaving.get(partition)

    def all_owned(self) -> Mapping[Partition, ActivePartition]:
        """Every active or leaving partition."""
        return {**self._leaving, **self._active} if self._leaving else self.active

    @property
    def has_revoked(self) -> bool:
        """Whether Kafka took partitions away that are still to be released."""
        return bool(self._leaving or self._released)

    def claims(self) -> list[Claim]:
        """Every claim of this worker."""
        others = [at.claim for at in self._stopped.values()] + [at.known for at in self._claiming.values()]
        owned = [at.claim for at in chain(self._active.values(), self._leaving.values())]
        return owned + [claim for claim in others if claim is not None] + self._released

    # -- what the callbacks record --------------------------------------------------------------------

    def on_assigned(self, partitions: Collection[Partition]) -> None:
        """Kafka assigned these to this worker."""
        self.assign_fixed(partitions)
        self._announce(events.Assigned(partitions=tuple(partitions)))

    def assign_fixed(self, partitions: Iterable[Partition]) -> None:
        """These are this worker's without Kafka's assignment."""
        self._claiming.update((p, ClaimingPartition()) for p in partitions)

    def on_revoked(self, partitions: Collection[Partition], is_lost: bool) -> None:
        """Kafka revoked these from this worker."""
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
        """The open batch has ended: drop the leaving partitions; returns all claims to release."""
        self._release_leaving()
        left, self._released = self._released, []
        return left

    def _release_leaving(self) -> None:
        self._released += [at.claim for at in self._leaving.values()]
        self._leaving.clear()

    def activate(self, claims: Mapping[Partition, Claim]) -> None:
        """Read these from their claims' offsets."""
        if not claims:
            return
        self._client.assign({p: (c.next_offset, c.leader_epoch) for p, c in claims.items()}, self._positions())
        self._forget_read(claims)
        for partition, claim in claims.items():
            self._claiming.pop(partition, None)
            self._stopped.pop(partition, None)
            self._active[partition] = ActivePartition(claim, claim.next_offset)
            self._announce(events.Activated(partition=partition, offset=claim.next_offset, epoch=claim.epoch))

    def deactivate(self, partitions: Collection[Partition]) -> None:
        """Stop reading these, and throw away what the client has buffered of them."""
        self._client.unassign(partitions, self._positions())
        self._forget_read(partitions)
        for partition in partitions:
            self._active.pop(partition, None)

    def claim_again(self, partition: Partition, known: Claim | None, not_before: float = 0.0) -> None:
        """Read it no more, and claim it; a leaving one is released instead: a claim would fence its new owner."""
        if self._leaving.pop(partition, None) is not None:
            self._release(known)
            return
        if partition in self._active:
            self.deactivate([partition])
        self._stopped.pop(partition, None)
        self._claiming[partition] = ClaimingPartition(not_before, known=known)

    def postpone(self, partitions: Iterable[Partition], until: float, *, is_stalled: bool = False) -> None:
        """Claim these not before ``until``; ``is_stalled``: another transaction holds their rows."""
        for partition in partitions:
            before = self._claiming[partition]
            self._claiming[partition] = ClaimingPartition(until, before.stalled or is_stalled, before.known)

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition until its offset is reset or it is assigned again; the others are read on.

        One that Kafka took away is not stopped here; if it was assigned again at once, the new claim's reader will.
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
        """Read nothing, stay in the group, claim everything again later."""
        self._release_leaving()
        known = {partition: at.claim for partition, at in self._active.items()}
        self.deactivate(list(known))
        self._claiming.update((partition, ClaimingPartition(known=claim)) for partition, claim in known.items())

    # -- the client, kept in step ---------------------------------------------------------------------

    def continue_reading(self) -> None:
        """After a rebalance: continue to read the partitions that are still assigned, from their read positions.

        The client has ended those that are out of range, and refuses to seek there: they wait for what was read before.
        """
        able = self._positions()
        self._client.continue_reading({p: (at, self._active[p].last_epoch) for p, at in able.items()})

    def read_again(self, partition: Partition) -> None:
        """Read from the read position: the client has stopped there, though the log has it."""
        active = self._active[partition]
        self._out_of_range.pop(partition, None)
        self._client.assign({partition: (active.read_position, active.last_epoch)}, self._positions())
        active.is_paused = False

    def pause(self, partitions: Collection[Partition]) -> None:
        """Read nothing more of these for now: their backlogs are full."""
        self._client.pause(partitions)
        for partition in partitions:
            self._active[partition].is_paused = True

    def resume(self, partitions: Collection[Partition]) -> None:
        """Read these on; one that is out of range cannot be sought, and is assigned again when that is decided."""
        able = [p for p in partitions if p not in self._out_of_range]
        self._client.resume({p: (self._active[p].read_position, self._active[p].leader_epoch) for p in able})
        for partition in partitions:
            self._active[partition].is_paused = False

    def refused(self, partition: Partition, offset: int | None) -> None:
        """The broker has no record of an active partition at this offset, which it may not name."""
        self._out_of_range[partition] = offset

    def decided(self, partitions: Iterable[Partition]) -> None:
        """Forget what the broker has refused of these."""
        for partition in partitions:
            self._out_of_range.pop(partition, None)

    def _positions(self) -> dict[Partition, int]:
        """The read positions of what can be read: one that is out of range would be refused again."""
        return {p: at.read_position for p, at in self._active.items() if p not in self._out_of_range}

    def _forget_read(self, partitions: Collection[Partition]) -> None:
        """Drop what was read of these and not applied: they are not read any more, or from another position."""
        self.decided(partitions)
        for partition in partitions:
            self._backlogged.pop(partition, None)
        if len(self.kept):
            self.kept.take_all(partitions)

    # -- what was read and waits ----------------------------------------------------------------------

    def set_backlog(self, partition: Partition, backlog: Backlog | None) -> None:
        """Put what is read of an active partition into this backlog from now on; None: into none."""
        active = self._active[partition]
        active.backlog = backlog
        if backlog is None:
            self._backlogged.pop(partition, None)
        else:
            self._backlogged[partition] = active

    def rotate(self, partition: Partition) -> None:
        """Move it to the end of the order: records of it were read."""
        self._backlogged[partition] = self._backlogged.pop(partition)

    def keep(self, chunk: Chunk[RawRecord]) -> None:
        """Keep what was read for a later batch, after what is kept already."""
        self.kept.append(chunk)
        for partition, read in chunk.reads.items():
            active = self._active[partition]
            if active.kept_from is None:
                active.kept_from = read.start

    def keep_others(self, chunk: Chunk[RawRecord], held: frozenset[Partition]) -> Chunk[RawRecord]:
        """Return what is of held partitions, and keep the rest: the next batch begins with it."""
        kept = part(chunk, {p: read for p, read in chunk.reads.items() if p not in held})
        self.kept.put_back(kept)
        for partition, read in kept.reads.items():
            self._active[partition].kept_from = read.start
        return part(chunk, {p: read for p, read in chunk.reads.items() if p in held})

    def take_kept(self, most: int | None = None) -> Chunk[RawRecord]:
        """The first of what was kept, ``most`` records of it."""
        if most is not None:
            self.kept.divide_first(most)
        chunk = self.kept.take()
        for partition, read in chunk.reads.items():
            self._active[partition].kept_from = read.end if self.kept.has(partition) else None
        return chunk

    def put_kept_into_backlog(self, partition: Partition) -> None:
        """What was kept of this partition waits in its backlog instead, after what waits there already."""
        active, at = self._active[partition], Moment.now()
        assert active.backlog is not None
        for chunk in self.kept.take_all({partition}):
            for record in chunk:
                active.backlog.add(record, chunk.reads[partition].start, at)
                active.leader_epoch = record.leader_epoch
        active.kept_from = None
