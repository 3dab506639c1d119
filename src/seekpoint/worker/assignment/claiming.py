"""Claims assigned partitions, activates them at the ledger's position, and releases them (I2, I6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from psycopg.types.json import Jsonb

from seekpoint import events
from seekpoint.errors import GroupPaused, PartitionStopped, TableMissing, TopicRecreated
from seekpoint.kafka.identity import NO_ID, Answer
from seekpoint.kafka.offset_loss import unknown
from seekpoint.ledger import Claim
from seekpoint.ledger.sql import STATUS
from seekpoint.pipeline.declared import declared_sums
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import StartAt
from seekpoint.records import Partition
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.scheduler import Scheduler
from seekpoint.worker.assignment.topic_tables import TopicTables

# A broker that has lost the controller answers from old metadata until it is fenced, after 9 s by default
# (broker.session.timeout.ms); a broker that has just started, for less time. A topic unknown for longer was deleted.
UNKNOWN_FOR = 10.0  # seconds
UNKNOWN_ANSWERS = 5  # at least, in that time


@dataclass(slots=True)
class _Unknown:
    """Consecutive answers that a topic is unknown."""

    since: float
    last: float
    answers: int = 0


class Claiming:
    """Claims, activates and releases the partitions of one consumer."""

    def __init__(
        self, resources: Resources, start: StartAt, scheduler: Scheduler, pipeline: Pipeline | None = None
    ) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._identity, self._watermarks = resources.identity, resources.watermarks
        self._start, self._scheduler = start, scheduler
        self._to_release: list[Claim] = []
        self._paused: str | None = None
        self._claim_at = 0.0
        self._unknown: dict[str, _Unknown] = {}
        self.tables = TopicTables(resources, pipeline)
        self._pipeline = pipeline
        self._with_sums: set[str] = set()  # the topics whose tables with sums are stored

    def release(self, claims: Sequence[Claim]) -> None:
        """Release these claims; if the database does not answer, the next call releases them."""
        self._to_release += claims
        if self._to_release:
            self._ledger.release(self._to_release)
            self._announce(events.Released(partitions=tuple(claim.partition for claim in self._to_release)))
            self._to_release = []

    def claim(self, now: float) -> None:
        """Claim and activate the partitions that may be claimed by now."""
        if now < self._claim_at:
            return
        due = [partition for partition, state in self._partitions.claiming.items() if state.not_before <= now]
        if not due:
            return
        all_ids = self._identity.ask({partition.topic for partition in due}).result()
        ids = {topic: topic_id for topic, topic_id in all_ids.items() if topic_id is not None}
        self._await_topics([partition for partition in due if partition.topic not in ids], now)
        existing = [partition for partition in due if partition.topic in ids]
        if not existing:
            return
        without_table = self.tables.refusals({partition.topic for partition in existing})
        patient = not all(self._partitions.claiming[partition].stalled for partition in existing)
        try:
            claimed = self._ledger.claim(
                existing,
                ids,
                cluster_id=self._identity.cluster_id(),
                start=lambda topic: self._watermarks.resolve(topic, self._start, self._ledger.group),
                patient=patient,
            )
        except GroupPaused as error:
            self._claim_at = now + self._ledger.limits.idle_check
            if self._paused != str(error):
                self._announce(events.Paused(reason=str(error)))
            self._paused = str(error)
            return
        self._paused = None
        if claimed.stalled:
            self._announce(events.Stalled(partitions=claimed.stalled, terminated=claimed.terminated))
            self._partitions.postpone(claimed.stalled, now + self._ledger.limits.idle_check, is_stalled=True)
        self._await_topics([partition for partition in claimed.refused if ids[partition.topic] == NO_ID], now)
        for partition, stop in claimed.refused.items():
            if ids[partition.topic] != NO_ID:
                self._partitions.stop(partition, stop)
        self._declare_sums({partition.topic for partition in claimed.granted})
        self.activate({partition: claimed.granted[partition] for partition in existing if partition in claimed.granted})
        self._stop_topics(claimed.granted, without_table)

    def _stop_topics(self, claims: Mapping[Partition, Claim], reasons: Mapping[str, str]) -> None:
        """Stop the partitions of topics without a table, under their new claims, before anything of them is read."""
        for partition, claim in claims.items():
            if (reason := reasons.get(partition.topic)) is not None:
                self._partitions.stop(partition, TableMissing.of(partition, claim.next_offset, reason))

    def _declare_sums(self, topics: Collection[str]) -> None:
        """Store which tables have sums before the first record is added: a reset needs to know (I1)."""
        sums = {} if self._pipeline is None else declared_sums(self._pipeline)
        if new := {topic: sums[topic] for topic in sorted(topics) if topic in sums and topic not in self._with_sums}:
            with self._ledger.begin() as tx:
                tx.execute(STATUS["store_declared"], version=self._ledger.version, declared=Jsonb(new))
            self._with_sums |= new.keys()

    # -- topics that the brokers do not know ----------------------------------------------------------

    def note_unknown(self, topic: str, now: float) -> None:
        """Count an answer that the topic is unknown: no record of it commits until a broker answers with its id."""
        absence, longest_gap = self._unknown.get(topic), max(UNKNOWN_FOR, 3 * self._ledger.limits.idle_check)
        if absence is None or now - absence.last > longest_gap:
            absence = self._unknown[topic] = _Unknown(now, now)
            self._announce(
                events.KafkaTrouble(error=f"topic {topic!r} is unknown to the broker that was asked; asking again")
            )
        absence.answers, absence.last = absence.answers + 1, now

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""
        for topic in sorted({partition.topic for partition, stop in stops.items() if stop is None}):
            self.note_unknown(topic, monotonic())
        for partition, stop in stops.items():
            if stop is not None:
                self._partitions.stop(partition, stop)
            elif (owned := self._partitions.owned(partition)) is not None:
                self._partitions.claim_again(partition, owned.claim)

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> dict[Partition, PartitionStopped | None]:
        """The partitions whose topic was recreated since the claim, each with its stop.

        None instead of a stop if the topic's id is unknown now: its records must not be committed until the id is
        known. Raises KafkaUnavailable.
        """
        ids = answer.result()
        mismatches: dict[Partition, PartitionStopped | None] = {}
        for partition in partitions:
            owned, topic_id = self._partitions.owned(partition), ids[partition.topic]
            if owned is None or topic_id == owned.claim.topic_id:
                continue
            if topic_id is None or topic_id == NO_ID:
                mismatches[partition] = None
            else:
                claim = owned.claim
                mismatches[partition] = TopicRecreated.of(
                    self._ledger.group, partition, claim.next_offset, stored=claim.topic_id, topic_id=topic_id
                )
        return mismatches

    def _await_topics(self, partitions: Sequence[Partition], now: float) -> None:
        """Ask again later for topics that are unknown; stop partitions whose topic has been unknown for long."""
        for topic in sorted({partition.topic for partition in partitions}):
            self.note_unknown(topic, now)
        lasting = {
            topic
            for topic, absence in self._unknown.items()
            if now - absence.since >= UNKNOWN_FOR and absence.answers >= UNKNOWN_ANSWERS
        }
        stopped = [partition for partition in partitions if partition.topic in lasting]
        rows = self._ledger.positions_of(stopped, locked=False) if stopped else {}
        for partition in stopped:
            row = rows.get(partition)
            stop = unknown(partition, 0 if row is None else row.next_offset)
            stop.token = None if row is None else row.token
            self._partitions.stop(partition, stop)
        waiting = [partition for partition in partitions if partition.topic not in lasting]
        self._partitions.postpone(waiting, now + self._ledger.limits.idle_check)
        for topic in {partition.topic for partition in stopped}:
            del self._unknown[topic]

    def activate(self, claims: Mapping[Partition, Claim]) -> None:
        """Start reading at the ledger's positions (I6)."""
        for partition, claim in claims.items():
            self._unknown.pop(partition.topic, None)
            before = self._partitions.claiming.get(partition)
            previous = None if before is None else before.known
            # Our own claim raised the epoch by one; a reset in between would have raised it once more.
            if previous is not None and claim.next_offset < previous.next_offset and claim.epoch <= previous.epoch + 1:
                self.rolled_back(partition, previous.next_offset, claim.next_offset)
        suspects = self._scheduler.suspects(claims.values())
        self._partitions.activate(claims)
        self._scheduler.begin(claims.values(), suspects)

    def rolled_back(self, partition: Partition, expected: int, stored: int) -> None:
        """Record that a failover lost commits. Rows and position were lost together, so the records are read again."""
        self._announce(events.Resynced(partition=partition, expected=expected, found=stored, cause="rolled back"))
        self._ledger.record_action(
            "rolled back", partition, expected, stored, reason="the database lost commits of this worker"
        )
