"""From Kafka's assignment to a claimed, placed partition, and back. Callbacks only record; the loop acts.

A partition is *waiting* (assigned, not yet claimed), *placed* (claimed, read from the ledger's offset on) or
*parked* (claimed, not read until somebody decides). What Kafka says of ownership is a hint; only the ledger
decides (I2, I6).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Connection

from seekpoint import events
from seekpoint.errors import Fenced, KafkaUnavailable, PartitionStopped, RetryLater, TopicRecreated, TopicUnknown
from seekpoint.events import Announcer
from seekpoint.kafka.client import Client, Message
from seekpoint.kafka.identity import NO_ID, Answer, Identity
from seekpoint.kafka.offset_loss import classify
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import Claim, Expected, Ledger, Move, Position
from seekpoint.ledger.claim import recreated
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import Backoff, StartAt
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment.backlogs import Scheduler
from seekpoint.worker.assignment.chunk import Chunk, chain
from seekpoint.worker.assignment.claiming import Claiming
from seekpoint.worker.assignment.partitions import ActivePartition, AssignedPartitions, ClaimingPartition


class Assignment:
    """The partitions of one consumer, read from the ledger's offsets. For people who own their loop.

    ``consumer`` is a ``confluent_kafka.Consumer`` made with :func:`seekpoint.consumer_config`, ``kafka`` that
    same configuration (for an admin client that asks for topic ids). With ``partitions=[(topic, number), ...]``
    there is no group: the list is read, owned through the ledger alone, and the newest claim wins. With the
    ``pipeline``, records that may not be applied yet are kept back, and given by ``scheduler`` when they are due.
    Leaving the ``with`` block releases the claims and closes the consumer.
    """

    def __init__(
        self,
        consumer: Any,
        ledger: Ledger,
        topics: Collection[str],
        *,
        kafka: Mapping[str, Any],
        start: StartAt = StartAt.earliest(),  # noqa: B008 -- immutable
        partitions: Iterable[tuple[str, int]] | None = None,
        announce: Announcer | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.ledger, self.limits = ledger, ledger.limits
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.client = Client(consumer, kafka)
        self.identity = Identity(kafka, self.limits.kafka_timeout)
        self.watermarks = Watermarks(self.identity, committed=kafka.get("isolation.level") != "read_uncommitted")
        self._announce = announce or Announcer()
        self._partitions = AssignedPartitions(self.client, self._announce)
        self.scheduler = Scheduler(
            self._partitions, self.client, ledger, self.watermarks, self._announce, pipeline=pipeline
        )
        self._claims = Claiming(
            self._partitions,
            ledger,
            self.identity,
            self.watermarks,
            self._announce,
            start=start,
            scheduler=self.scheduler,
        )
        self._fixed = None if partitions is None else [Partition(*p) for p in partitions]
        self._chance = random.Random()  # noqa: S311 -- jitter
        self._backoff = Backoff().waits(self._chance)
        self._check_at = 0.0

    @property
    def active(self) -> Mapping[Partition, ActivePartition]:
        """What is read now."""
        return self._partitions.active

    @property
    def stopped(self) -> Mapping[Partition, PartitionStopped]:
        """What waits for a decision, and why."""
        return {partition: at.stop for partition, at in self._partitions.stopped.items()}

    def lag(self) -> tuple[dict[Partition, int], frozenset[Partition]]:
        """How many offsets each partition has yet to pass, stopped ones too; and those whose lag cannot be known.

        That is where the position is past the log's end, or the topic is not the one that was read. Raises
        KafkaUnavailable.
        """
        placed = {p: at.position for p, at in self.active.items()}
        ends = self.watermarks.ends(list(placed))
        stopped = {p: at.stop.offset for p, at in self._partitions.stopped.items()}
        asked = [
            p for p, at in self._partitions.stopped.items() if not isinstance(at.stop, TopicRecreated | TopicUnknown)
        ]
        if asked:
            try:
                ends |= self.watermarks.ends(asked)
            except KafkaUnavailable as error:  # a stopped partition keeps no other from being looked at
                self._announce(events.KafkaTrouble(error=str(error)))
        behind = {p: ends[p].offset - at for p, at in (placed | stopped).items() if p in ends}
        known = {p: n for p, n in behind.items() if n >= 0}
        return known, frozenset((placed | stopped).keys() - known.keys())

    @property
    def is_claiming(self) -> bool:
        """Whether assigned partitions are not claimed yet."""
        return bool(self._partitions.claiming)

    # -- for people who own their loop ----------------------------------------------------------------

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def accept_poll(self, messages: Iterable[Message]) -> Chunk[Message]:
        """Call it with what each ``consume`` returned, and apply only what it gives back.

        Drops what is stale, acts on what the callbacks recorded (releases, claims, places), and notices moves.
        Raises ClusterChanged, HandlerOutdated, KafkaUnavailable, and database errors as they are; after any of them
        everything is claimed anew by the next call.
        """
        chunk = self.accept_messages(messages)
        try:
            self.maintain()
        except BaseException:
            self.suspend()  # the caller never sees this chunk: read it again, from where the ledger stands
            raise
        return chunk

    def advance(self, tx: Connection, *chunks: Chunk[Message]) -> list[Claim]:
        """Move the offsets over these chunks, in your transaction; call it before your own statements.

        Asks for the topics' ids, then holds and advances. Raises Fenced (nothing may be written; call
        :meth:`resync`), TopicRecreated, KafkaUnavailable. Give the result to :meth:`accept` after COMMIT.
        """
        reads = chain(chunks)
        answer = self.identity.ask({p.topic for p in reads})
        transaction = self.ledger.hold(tx, [Expected(r.claim, r.start) for r in reads.values()])
        if strange := self.topic_id_mismatches(answer, reads):
            if stop := next(filter(None, strange.values()), None):
                raise stop
            self.stop_or_reclaim(strange)  # claimed again by a later accept_poll()
            topics = ", ".join(sorted({p.topic for p in strange}))
            raise KafkaUnavailable(f"unknown to the broker that was asked: {topics}")
        return self.ledger.advance(tx, [r.move() for r in reads.values()], transaction)

    def accept(self, moved: Iterable[Claim]) -> None:
        """Take the claims over, after COMMIT."""
        now = monotonic()
        for claim in moved:
            placed = self.active.get(claim.partition)
            if placed is not None and placed.claim.token == claim.token:
                placed.claim, placed.quiet_since = claim, now
                if placed.backlog is not None or placed.unreadable:
                    placed.passed(claim.next_offset)
        self._backoff = Backoff().waits(self._chance)  # progress resets the waits

    def resync(self) -> None:
        """After an exception around COMMIT: ask the ledger what is true, and read on from there.

        If the database is away, everything is claimed again by a later :meth:`accept_poll`, when it is back.
        """
        try:
            self.reconcile({})
        except Exception as error:
            if not is_transient(error):
                raise
            self._announce(events.DatabaseTrouble(error=error))
            self.suspend()

    # -- joining and leaving --------------------------------------------------------------------------

    def join(self) -> None:
        """Subscribe, or take the fixed partitions; nothing is read before the first :meth:`maintain`."""
        if self._fixed is None:
            self.client.subscribe(self.topics, self._partitions.on_assigned, self._partitions.on_revoked)
        else:
            self._partitions.claiming.update((p, ClaimingPartition()) for p in self._fixed)

    def leave(self) -> None:
        """Release every claim and leave the group; what was read and not committed is read again elsewhere."""
        try:
            self._store_stops(is_last=True)
            self._claims.release(self._partitions.claims())
        finally:
            self.client.close()

    @property
    def has_revoked(self) -> bool:
        """Whether Kafka took a partition away since the last :meth:`maintain`: draw nothing more, commit, tend."""
        return bool(self._partitions.revoked)

    # -- reading --------------------------------------------------------------------------------------

    def accept_messages(self, messages: Iterable[Message]) -> Chunk[Message]:
        """Keep what belongs to a placed partition and was not read before; move the cursors over it."""
        chunk = self._partitions.accept_messages(messages)
        if self.scheduler:
            self.scheduler.bound()
        return chunk

    def schedule_retry(self, stop: RetryLater, records: Sequence[RawRecord], position: int) -> None:
        """Keep what was read of one partition until its first record, which failed, is due again; after COMMIT."""
        self.scheduler.schedule_retry(stop, records, position)

    # -- tending: the loop's own step -----------------------------------------------------------------

    def maintain(self) -> None:
        """Act on what was recorded: release what is gone, decide on lost offsets, claim and place, look for moves."""
        if self.client.rebalanced:
            self._partitions.continue_reading()
        self._claims.release(self._partitions.forget_revoked())
        if self._partitions.out_of_range:
            self._check_out_of_range()
        now = monotonic()
        if self._partitions.claiming:
            self._claims.claim(now)
        if self.scheduler:
            self._maintain_backlogs()
        if now >= self._check_at:
            self._check_at = now + self.limits.idle_check
            self._check_idle(now)
        self._store_stops()

    def _store_stops(self, *, is_last: bool = False) -> None:
        """Store the stops that the ledger does not have yet, for those who look at it from outside.

        A row that another session has locked must not keep the other partitions waiting: it is tried again each
        ``Limits.idle_check``, and once more at the end (``is_last``).
        """
        now = monotonic()
        new = [at for at in self._partitions.stopped.values() if not at.is_stored and (is_last or now >= at.store_at)]
        if not new:
            return
        for at in new:
            at.store_at = now + self.limits.idle_check
        try:
            locked = self.ledger.stop(at.stop for at in new)
        except Exception as error:
            if not is_transient(error):
                raise
            return  # nothing hangs on it: it is tried again, and a database that is away shows in the rest
        for at in new:
            at.is_stored = at.stop.partition not in locked

    def _maintain_backlogs(self) -> None:
        self.scheduler.maintain()
        try:
            self.scheduler.record_due_by()
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self.reconcile({})

    def _check_idle(self, now: float) -> None:
        """What happened to partitions that we are not writing: moves, pauses, recreated topics (I5), failovers."""
        quiet = [p for p, at in self.active.items() if now - at.quiet_since >= self.limits.idle_check]
        asked = [*quiet, *self._partitions.stopped]
        if not (self.active or self._partitions.stopped or self._partitions.claiming):
            self.ledger.check_version()  # nothing is held or claimed, where a newer version would show
            if (differs := self.ledger.differs(self.topics)) is not None:
                raise differs
        if not asked:
            return
        answer = self.identity.ask({p.topic for p in asked})
        try:
            self.stop_or_reclaim(self.topic_id_mismatches(answer, quiet))
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))
        self._pass_ends([p for p in quiet if p in self.active and self.active[p].has_trailing])
        rows = self.ledger.positions_of(asked, locked=False)
        for partition in quiet:
            placed = self.active.get(partition)
            if placed is not None and (partition not in rows or rows[partition].token != placed.claim.token):
                self._claim_lost(partition, rows.get(partition))
        if any(p in self.active and rows[p].next_offset < self.active[p].claim.next_offset for p in quiet):
            self.reconcile({})
        try:
            self._check_stopped(rows, answer)
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))

    def _check_stopped(self, rows: Mapping[Partition, Position], answer: Answer) -> None:
        """Claim again what somebody has decided about, and what is another topic by now: the claim says so."""
        ids = answer.result()
        for partition, at in list(self._partitions.stopped.items()):
            row = rows.get(partition)
            token, topic_id = (None, None) if row is None else (row.token, row.topic_id)
            now = ids[partition.topic]
            if at.is_over(token, topic_id, None if now == NO_ID != topic_id else now):
                del self._partitions.stopped[partition]
                self._partitions.claim_later(partition, ClaimingPartition(known=at.claim))

    def stop_or_reclaim(self, strange: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""
        for topic in sorted({p.topic for p, stop in strange.items() if stop is None}):
            self._claims.note_unknown(topic, monotonic())
        for partition, stop in strange.items():
            if stop is not None:
                self.stop(partition, stop)
            elif (placed := self.active.get(partition)) is not None and partition not in self._partitions.revoked:
                self._partitions.deactivate([partition])
                self._partitions.claim_later(partition, ClaimingPartition(known=placed.claim))

    def _pass_ends(self, partitions: Sequence[Partition]) -> None:
        """Advance idle partitions over trailing control records, so that they never look like loss (I3)."""
        if not partitions:
            return
        answer = self.identity.ask({p.topic for p in partitions})
        ends = self.watermarks.ends(partitions)
        moves = []
        for partition in partitions:
            placed, edge = self.active[partition], ends[partition]
            if placed.end is not None:
                # No record was applied at this end: only the epoch that the broker has *there* may be kept.
                epoch = edge.leader_epoch if edge.offset == placed.end else None
                moves.append(Move(placed.claim, placed.cursor, placed.end, epoch))
        if strange := self.topic_id_mismatches(answer, partitions):
            self.stop_or_reclaim(strange)
            return
        try:
            moved = self.ledger.advance_alone(moves)
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self.reconcile({p: self.active[p].cursor for p in partitions})
            return
        for claim in moved:
            placed = self.active[claim.partition]
            placed.claim, placed.cursor, placed.end = claim, claim.next_offset, None

    # -- refused, lost, parked ------------------------------------------------------------------------

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        """What hold must find: every placed partition at its position, those of a batch where its reading began."""
        return [Expected(placed.claim, starts.get(p, placed.position)) for p, placed in self.active.items()]

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        """Ask the ledger, under the rows' locks, what is true; returns the partitions whose batch must be dropped.

        ``starts`` is where the reading of the batch in hand began. A partition that stands exactly there may
        be tried again; everything else is placed anew or claimed again.
        """
        rows = self.ledger.positions_of(self.active)
        dropped: set[Partition] = set()
        fresh: dict[Partition, Claim] = {}
        for partition, placed in list(self.active.items()):
            row, expected = rows.get(partition), starts.get(partition, placed.position)
            if row is None or row.token != placed.claim.token:
                dropped.add(partition)
                self._claim_lost(partition, row)
            elif row.next_offset == placed.position:
                placed.claim = replace(placed.claim, next_offset=row.next_offset, leader_epoch=row.leader_epoch)
                if partition in starts and expected != row.next_offset:  # all that was read is committed already
                    dropped.add(partition)
                    self._claims.resynced(partition, expected, row.next_offset, "reply lost")
            elif partition not in starts or row.next_offset != expected:
                dropped.add(partition)
                known = replace(
                    placed.claim, next_offset=row.next_offset, leader_epoch=row.leader_epoch, epoch=row.epoch
                )
                if row.attempt_offset is not None:  # when it is due, and how often it was tried, the claim will say
                    self._partitions.deactivate([partition])
                    self._partitions.claim_later(partition, ClaimingPartition(known=known))
                elif partition not in self._partitions.revoked:  # Kafka took it away meanwhile: not to be read any more
                    fresh[partition] = replace(
                        known,
                        unreleased=row.unreleased_claims,
                        attempt=None,
                        suspect_end=row.suspect_end,
                        crashed_part_end=None if row.suspect_running else row.suspect_part_end,
                    )
                if row.next_offset > placed.claim.next_offset:
                    self._claims.resynced(partition, expected, row.next_offset, "reply lost")
                elif row.next_offset < placed.claim.next_offset:
                    self._claims.rolled_back(partition, placed.claim.next_offset, row.next_offset)
        self._claims.activate(fresh)
        return dropped

    def _claim_lost(self, partition: Partition, row: Position | None) -> None:
        """The claim is not ours any more: stop reading at once; claim again if Kafka still says it is ours."""
        placed = self.active[partition]
        self._announce(events.ClaimLost(partition=partition))
        self._partitions.deactivate([partition])
        moved = row is not None and row.owner == self.ledger.owner  # an operator's move keeps the owner
        if self._fixed is not None and not moved:
            raise Fenced(f"{partition} was claimed by another worker; without a group the newest claim wins")
        wait = 0.0 if moved else next(self._backoff)
        self._partitions.claim_later(
            partition, ClaimingPartition(monotonic() + wait, known=placed.claim)
        )  # to be released in any case

    def suspend(self) -> None:
        """The database or the brokers are away: read nothing, stay in the group, claim everything again later."""
        self._partitions.suspend()
        self._check_at = 0.0

    def stop(self, partition: Partition, stop: PartitionStopped) -> None:
        """Stop reading one partition until its row is moved or it is assigned anew; the others go on."""
        self._partitions.stop(partition, stop)

    def _check_out_of_range(self) -> None:
        """The broker has no record at the cursor: find out why, and who put it there, and stop in front of it (I4).

        What was read before and waits is applied first: it may be nowhere else any more.
        """
        at = {p: self.active[p] for p in self._partitions.out_of_range if p in self.active}
        troubled = {p: placed.cursor for p, placed in at.items() if placed.position == placed.cursor}
        if not troubled:
            return
        strange = self.topic_id_mismatches(self.identity.ask({p.topic for p in troubled}), troubled)
        self.stop_or_reclaim(strange)
        lost = {p: cursor for p, cursor in troubled.items() if p not in strange}
        moves = {p: self.ledger.last_reset(p) for p in lost}
        by_hand = {p: str(move) for p, move in moves.items() if move is not None and move.to == lost[p]}
        self.stop_or_reclaim(classify(lost, self.watermarks, by_hand))
        self._partitions.out_of_range = at.keys() - troubled.keys()

    # -- identity -------------------------------------------------------------------------------------

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> dict[Partition, PartitionStopped | None]:
        """Those of ``partitions`` whose topic is not the one their claim belongs to, each with its stop.

        None where the topic's id is unknown at this moment: nothing of it may commit, and nothing is decided.
        Raises KafkaUnavailable.
        """
        ids: Mapping[str, UUID | None] = answer.result()
        found: dict[Partition, PartitionStopped | None] = {}
        for partition in partitions:
            placed = self.active.get(partition)
            now = ids[partition.topic]
            if placed is None or now == placed.claim.topic_id:
                continue
            if now is None or now == NO_ID:
                found[partition] = None
            else:
                found[partition] = recreated(partition, placed.claim.next_offset, placed.claim.topic_id, now)
        return found
