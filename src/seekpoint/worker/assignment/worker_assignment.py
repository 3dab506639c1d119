"""The partitions of one consumer, as a worker uses them: claimed, read from the ledger's offsets, released.

Callbacks of Kafka's client only record; :meth:`WorkerAssignment.maintain` acts. Kafka's assignment is a hint; the
ledger decides who owns a partition (I2, I6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic

from seekpoint import events
from seekpoint.errors import Fenced, KafkaUnavailable, PartitionStopped, TopicRecreated, TopicUnknown
from seekpoint.kafka.client import Message
from seekpoint.kafka.identity import Answer
from seekpoint.ledger import Claim, Expected
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import StartAt
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import Partition, RawRecord
from seekpoint.worker.assignment.accept import accept_messages
from seekpoint.worker.assignment.backlog import RetryLater
from seekpoint.worker.assignment.chunk import Chunk
from seekpoint.worker.assignment.claiming import Claiming
from seekpoint.worker.assignment.held import HeldPartitions
from seekpoint.worker.assignment.idle_checks import IdleChecks
from seekpoint.worker.assignment.reconcile import Reconciler
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.scheduler import Scheduler
from seekpoint.worker.assignment.states import ActivePartition


class WorkerAssignment:
    """One consumer's partitions, in step with Kafka's assignment and with the ledger.

    With ``partitions`` there is no group: the ledger alone decides who owns a partition, and the newest claim wins.
    With a ``pipeline``, ``scheduler`` holds back records until they are due.
    """

    def __init__(
        self,
        resources: Resources,
        topics: Collection[str],
        start: StartAt,
        partitions: Iterable[tuple[str, int]] | None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self.client, self.identity, self._watermarks = resources.client, resources.identity, resources.watermarks
        self._fixed = None if partitions is None else [Partition(*partition) for partition in partitions]
        self.scheduler = Scheduler(resources, pipeline)
        self._claiming = Claiming(resources, start, self.scheduler, pipeline)
        self._reconciler = Reconciler(resources, self._claiming, has_group=self._fixed is None)
        self._held = HeldPartitions()
        self._checks = IdleChecks(
            resources, [topics] if isinstance(topics, str) else [*topics], self._claiming, self._reconciler
        )

    @property
    def active(self) -> Mapping[Partition, ActivePartition]:
        """The partitions that are read now."""
        return self.partitions.active

    @property
    def stopped(self) -> Mapping[Partition, PartitionStopped]:
        """The partitions that wait for an operator's decision, and why."""
        return {partition: state.stop for partition, state in self.partitions.stopped.items()}

    @property
    def is_claiming(self) -> bool:
        """Whether any assigned partition is not claimed yet."""
        return bool(self.partitions.claiming)

    def lag(self) -> tuple[dict[Partition, int], frozenset[Partition]]:
        """Each partition's lag, and the partitions whose lag is not known, as in ``Assignment.lag``."""
        active = {partition: state.position for partition, state in self.active.items()}
        # A partition without a leader must not hide the lag of the others.
        ends = self._watermarks.ends(list(active), skip=True)
        if active and not ends:
            raise KafkaUnavailable(f"no broker answers for the log of {', '.join(map(str, sorted(active)))}")
        stopped = {partition: stop.offset for partition, stop in self.stopped.items()}
        ends |= self._watermarks.ends([p for p in self.with_known_log if p in stopped], skip=True)
        after = {
            partition: ends[partition].offset - position
            for partition, position in (active | stopped).items()
            if partition in ends
        }
        valid = {partition: n for partition, n in after.items() if n >= 0}
        return valid, frozenset((active | stopped).keys() - valid.keys())

    @property
    def with_known_log(self) -> list[Partition]:
        """Active partitions, and stopped ones whose log is still the one that was read."""
        is_other = (TopicRecreated, TopicUnknown)
        return [
            *self.active,
            *(partition for partition, stop in self.stopped.items() if not isinstance(stop, is_other)),
        ]

    def current_claims(self) -> list[Claim]:
        """The claims of :attr:`with_known_log`, as of their last COMMIT; omits revoked partitions."""
        active, stopped = self.partitions.active, self.partitions.stopped
        claims = [
            active[partition].claim if partition in active else stopped[partition].claim
            for partition in self.with_known_log
        ]
        return [claim for claim in claims if claim is not None]

    # -- joining and leaving --------------------------------------------------------------------------

    def join(self) -> None:
        """Subscribe, or take the fixed partitions; nothing is read before the first :meth:`maintain`."""
        if self._fixed is None:
            self.client.subscribe(self._checks.topics, self.partitions.on_assigned, self.partitions.on_revoked)
        else:
            self.partitions.assign_fixed(self._fixed)

    def add_topics(self, topics: Collection[str]) -> None:
        """Subscribe to further topics in addition to the present ones."""
        subscribed = [*self._checks.topics, *topics]
        self.client.subscribe(subscribed, self.partitions.on_assigned, self.partitions.on_revoked)
        self._checks.topics = subscribed

    def leave(self, deadline: float = 10.0) -> None:
        """Release every claim and leave the group; the next owners read uncommitted records again.

        After ``deadline`` seconds the client is closed in the background.
        """
        try:
            self._store_stops(is_last=True)
        finally:  # a claim that is not released counts as a crash
            try:
                self._claiming.release(self.partitions.claims())
            finally:
                self.client.close(deadline)

    def suspend(self) -> None:
        """Stop reading while database or brokers do not answer; stay in the group, and claim again later."""
        self.partitions.suspend()
        self._checks.run_soon()

    # -- reading --------------------------------------------------------------------------------------

    def accept_messages(self, messages: Iterable[Message]) -> Chunk[Message]:
        """Keep new messages of active partitions, and move the read positions past them."""
        chunk = accept_messages(self.partitions, messages, self._announce)
        if self.scheduler:
            self.scheduler.bound()
        return chunk

    def keep_others(self, chunk: Chunk[RawRecord], held: frozenset[Partition], *, is_full: bool) -> Chunk[RawRecord]:
        """Return the records of held partitions; keep the others for the start of the next batch.

        A transaction that locked another row later could deadlock with that of another worker. ``is_full``: the client
        may have more.
        """
        if chunk.reads.keys() <= held:
            return chunk
        self.closed_by_another(is_full=is_full)
        return self.partitions.keep_others(chunk, held)

    def closed_by_another(self, *, is_full: bool) -> None:
        """Note that a chunk of a partition that was not held closed the batch."""
        self._held.closed_by_another(is_full=is_full)

    def schedule_retry(self, retry: RetryLater, records: Sequence[RawRecord], position: int) -> None:
        """Keep a partition's records until the first one, which failed, is due again; call it after COMMIT."""
        self.scheduler.schedule_retry(retry, records, position)

    # -- between two batches --------------------------------------------------------------------------

    def maintain(self) -> None:
        """Act on recorded events: release revoked partitions, stop those out of range, claim, and check idle ones."""
        if self.client.rebalanced:
            self.partitions.continue_reading()
        self._claiming.release(self.partitions.leave())
        if self.partitions.out_of_range:
            self._checks.check_out_of_range()
        now = monotonic()
        if self.partitions.claiming:
            self._claiming.claim(now)
        if self.scheduler:
            self._maintain_backlogs()
        self._checks.check_idle_partitions(now)
        self._store_stops()

    def _maintain_backlogs(self) -> None:
        self.scheduler.maintain()
        try:
            self.scheduler.record_due_by()
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self.reconcile({})

    def _store_stops(self, *, is_last: bool = False) -> None:
        """Store new stops in the ledger, for operators.

        A row that another session has locked must not block the other partitions. Its stop is stored at a later check,
        every ``Limits.idle_check`` seconds, or at the end (``is_last``).
        """
        now = monotonic()
        new = [
            state
            for state in self.partitions.stopped.values()
            if not state.is_stored and (is_last or now >= state.store_at)
        ]
        if not new:
            return
        for state in new:
            state.store_at = now + self._ledger.limits.idle_check
        try:
            locked = self._ledger.record_stops(state.stop for state in new)
        except Exception as error:
            if not is_transient(error):
                raise
            return  # tried again later; if the database does not answer, other statements raise the error
        for state in new:
            state.is_stored = state.stop.partition not in locked

    # -- around a transaction -------------------------------------------------------------------------

    def expected(self, starts: Mapping[Partition, int]) -> list[Expected]:
        """The claim and offset that *hold* must find for each partition that it locks.

        The offset is where the batch begins, or the position if the batch has none of the partition's records.
        """
        owned = self.partitions.all_owned()
        held = self._held.of(starts, owned)
        return [
            Expected(owned[partition].claim, starts.get(partition, owned[partition].position)) for partition in held
        ]

    def accept(self, moved: Iterable[Claim]) -> None:
        """Take over the moved claims, after COMMIT."""
        moved = list(moved)
        self._held.moved(claim.partition for claim in moved)
        for claim in moved:
            owned = self.partitions.owned(claim.partition)
            if owned is not None and owned.claim.token == claim.token:
                owned.committed(claim)
        self._reconciler.reset_backoff()

    def reconcile(self, starts: Mapping[Partition, int]) -> set[Partition]:
        """Compare with the ledger after a refusal; returns the partitions to drop from the batch."""
        return self._reconciler.reconcile(starts)

    def topic_ids(self, read_by: float, topics: Collection[str]) -> Answer:
        """An answer about these topics' ids, requested after ``read_by``, when their records had been read.

        A new request also names the topics of queued records, so that their transactions can use the answer.
        """
        return self.identity.ask_after(read_by, topics, also=self.partitions.queue.topics)

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> Mapping[Partition, PartitionStopped | None]:
        """The partitions whose topic was recreated since the claim; None instead of a stop if its id is unknown now."""
        return self._claiming.topic_id_mismatches(answer, partitions)

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""
        self._claiming.stop_or_reclaim(stops)
