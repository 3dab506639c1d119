"""Claims assigned partitions, activates them at the ledger's position, and releases them (I2, I6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from seekpoint import events
from seekpoint.errors import GroupPaused, PartitionStopped, TopicRecreated
from seekpoint.kafka.identity import NO_ID, Answer
from seekpoint.kafka.offset_loss import unknown
from seekpoint.ledger import Claim
from seekpoint.pipeline.policy import StartAt
from seekpoint.records import Partition
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.assignment.scheduler import Scheduler

# A broker that has lost the controller answers from old metadata until it is fenced, after 9 s by default
# (broker.session.timeout.ms); one that has just started, for less. A topic that is unknown for longer is gone.
UNKNOWN_FOR = 10.0  # seconds
UNKNOWN_ANSWERS = 5  # at the least, in that time


@dataclass(slots=True)
class _Unknown:
    """Answers in a row that a topic is not known."""

    since: float
    last: float
    answers: int = 0


class Claiming:
    """Claims, activates and releases the partitions of one consumer."""

    def __init__(self, resources: Resources, start: StartAt, scheduler: Scheduler) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._identity, self._watermarks = resources.identity, resources.watermarks
        self._start, self._scheduler = start, scheduler
        self._to_release: list[Claim] = []
        self._paused: str | None = None
        self._claim_at = 0.0
        self._unknown: dict[str, _Unknown] = {}

    def release(self, claims: Sequence[Claim]) -> None:
        """Release these; where the database does not answer, with the next call."""
        self._to_release += claims
        if self._to_release:
            self._ledger.release(self._to_release)
            self._announce(events.Released(partitions=tuple(c.partition for c in self._to_release)))
            self._to_release = []

    def claim(self, now: float) -> None:
        """Claim and activate what may be claimed by now."""
        if now < self._claim_at:
            return
        due = [p for p, w in self._partitions.claiming.items() if w.not_before <= now]
        if not due:
            return
        found = self._identity.ask({p.topic for p in due}).result()
        ids = {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}
        self._await_topics([p for p in due if p.topic not in ids], now)
        wanted = [p for p in due if p.topic in ids]
        if not wanted:
            return
        patient = not all(self._partitions.claiming[p].stalled for p in wanted)
        try:
            claimed = self._ledger.claim(
                wanted,
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
        self._await_topics([p for p in claimed.refused if ids[p.topic] == NO_ID], now)
        for partition, stop in claimed.refused.items():
            if ids[partition.topic] != NO_ID:
                self._partitions.stop(partition, stop)
        self.activate({p: claimed.granted[p] for p in wanted if p in claimed.granted})

    # -- topics that the brokers do not know ----------------------------------------------------------

    def note_unknown(self, topic: str, now: float) -> None:
        """The brokers have answered that there is no such topic: nothing of it commits until its id is answered."""
        at, apart = self._unknown.get(topic), max(UNKNOWN_FOR, 3 * self._ledger.limits.idle_check)
        if at is None or now - at.last > apart:
            at = self._unknown[topic] = _Unknown(now, now)
            self._announce(
                events.KafkaTrouble(error=f"topic {topic!r} is unknown to the broker that was asked; asking again")
            )
        at.answers, at.last = at.answers + 1, now

    def stop_or_reclaim(self, stops: Mapping[Partition, PartitionStopped | None]) -> None:
        """Stop these partitions; those without a stop are claimed again when the brokers know their topics again."""
        for topic in sorted({p.topic for p, stop in stops.items() if stop is None}):
            self.note_unknown(topic, monotonic())
        for partition, stop in stops.items():
            if stop is not None:
                self._partitions.stop(partition, stop)
            elif (owned := self._partitions.owned(partition)) is not None:
                self._partitions.claim_again(partition, owned.claim)

    def topic_id_mismatches(
        self, answer: Answer, partitions: Iterable[Partition]
    ) -> dict[Partition, PartitionStopped | None]:
        """Those of ``partitions`` whose topic is not the one their claim belongs to, each with its stop.

        None where the topic's id is unknown at this moment: nothing of it may commit, and nothing is decided.
        Raises KafkaUnavailable.
        """
        ids = answer.result()
        found: dict[Partition, PartitionStopped | None] = {}
        for partition in partitions:
            owned, topic_id = self._partitions.owned(partition), ids[partition.topic]
            if owned is None or topic_id == owned.claim.topic_id:
                continue
            if topic_id is None or topic_id == NO_ID:
                found[partition] = None
            else:
                known = owned.claim
                found[partition] = TopicRecreated.of(
                    self._ledger.group, partition, known.next_offset, stored=known.topic_id, topic_id=topic_id
                )
        return found

    def _await_topics(self, partitions: Sequence[Partition], now: float) -> None:
        """Ask again for topics that are unknown, and stop their partitions where they are unknown for long."""
        for topic in sorted({p.topic for p in partitions}):
            self.note_unknown(topic, now)
        lasting = {
            t for t, at in self._unknown.items() if now - at.since >= UNKNOWN_FOR and at.answers >= UNKNOWN_ANSWERS
        }
        stopped = [p for p in partitions if p.topic in lasting]
        rows = self._ledger.positions_of(stopped, locked=False) if stopped else {}
        for partition in stopped:
            row = rows.get(partition)
            stop = unknown(partition, 0 if row is None else row.next_offset)
            stop.token = None if row is None else row.token
            self._partitions.stop(partition, stop)
        waiting = [p for p in partitions if p.topic not in lasting]
        self._partitions.postpone(waiting, now + self._ledger.limits.idle_check)
        for topic in {p.topic for p in stopped}:
            del self._unknown[topic]

    def activate(self, claims: Mapping[Partition, Claim]) -> None:
        """Assign the client at the ledger's position (I6)."""
        for partition, claim in claims.items():
            self._unknown.pop(partition.topic, None)
            before = self._partitions.claiming.get(partition)
            known = None if before is None else before.known
            # An offset that was reset in between would have raised the epoch by one more than our own claim did.
            if known is not None and claim.next_offset < known.next_offset and claim.epoch <= known.epoch + 1:
                self.rolled_back(partition, known.next_offset, claim.next_offset)
        suspects = self._scheduler.suspects(claims.values())
        self._partitions.activate(claims)
        self._scheduler.begin(claims.values(), suspects)

    def rolled_back(self, partition: Partition, known: int, found: int) -> None:
        """A failover lost commits, rows and position together: record it. The records are read again from the log."""
        self._announce(events.Resynced(partition=partition, expected=known, found=found, cause="rolled back"))
        self._ledger.record_action(
            "rolled back", partition, known, found, reason="the database lost what was committed here"
        )
