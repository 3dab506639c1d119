"""Checks of partitions without traffic: resets and pauses (I5), recreated topics and lost records (I4), failovers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from seekpoint import events
from seekpoint.errors import Fenced, KafkaUnavailable
from seekpoint.kafka.identity import NO_ID, Answer
from seekpoint.kafka.offset_loss import classify as classify_loss
from seekpoint.ledger import Move, Position
from seekpoint.records import Partition
from seekpoint.worker.assignment.claiming import Claiming
from seekpoint.worker.assignment.reconcile import Reconciler
from seekpoint.worker.assignment.resources import Resources


class IdleChecks:
    """The checks of one consumer's partitions, run every ``Limits.idle_check`` seconds."""

    def __init__(
        self, resources: Resources, topics: Collection[str], claiming: Claiming, reconciler: Reconciler
    ) -> None:
        self._partitions, self._ledger, self._announce = resources.partitions, resources.ledger, resources.announce
        self._identity, self._watermarks = resources.identity, resources.watermarks
        self._topics, self._claiming, self._reconciler = topics, claiming, reconciler
        self._next = 0.0  # when they run next, by the monotonic clock

    def run_soon(self) -> None:
        """Run them at the next opportunity."""
        self._next = 0.0

    def check_idle_partitions(self, now: float) -> None:
        """Run every check, if it is time."""
        every = self._ledger.limits.idle_check
        if now < self._next:
            return
        self._next = now + every
        active, stopped = self._partitions.active, self._partitions.stopped
        if not (active or stopped or self._partitions.claiming):
            self._check_group()
        quiet = [p for p, at in active.items() if now - at.quiet_since >= every]
        if not (asked := [*quiet, *stopped]):
            return
        answer = self._identity.ask({p.topic for p in asked})
        self._check_topic_ids(answer, quiet)
        self._pass_log_ends([p for p in quiet if p in active and active[p].has_trailing])
        rows = self._ledger.positions_of(asked, locked=False)
        self._check_claims(rows, quiet)
        self._check_stopped(rows, answer)

    def _check_group(self) -> None:
        """Where nothing is held or claimed, a newer version or another declaration would never show."""
        self._ledger.check_version()
        if (differs := self._ledger.differs(self._topics)) is not None:
            raise differs

    def _check_topic_ids(self, answer: Answer, quiet: Sequence[Partition]) -> None:
        """Stop quiet partitions whose topic was recreated."""
        try:
            mismatches = self._claiming.topic_id_mismatches(answer, quiet)
            self._claiming.stop_or_reclaim(mismatches)
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))

    def _pass_log_ends(self, partitions: Sequence[Partition]) -> None:
        """Advance idle partitions over trailing control records, so that they never look like loss (I3)."""
        if not partitions:
            return
        answer = self._identity.ask({p.topic for p in partitions})
        ends = self._watermarks.ends(partitions)
        active = self._partitions.active
        moves = []
        for partition in partitions:
            at, edge = active[partition], ends[partition]
            if at.end is not None:
                # No record was applied at this end: only the epoch that the broker has *there* may be kept.
                epoch = edge.leader_epoch if edge.offset == at.end else None
                moves.append(Move(at.claim, at.read_position, at.end, epoch))
        if mismatches := self._claiming.topic_id_mismatches(answer, partitions):
            self._claiming.stop_or_reclaim(mismatches)
            return
        try:
            moved = self._ledger.advance_alone(moves)
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self._reconciler.reconcile({p: active[p].read_position for p in partitions})
            return
        for claim in moved:
            active[claim.partition].passed_end(claim)

    def _check_claims(self, rows: Mapping[Partition, Position], quiet: Sequence[Partition]) -> None:
        """Notice that a quiet partition was reset, paused or claimed by another worker, or lost in a failover."""
        active = self._partitions.active
        for partition in quiet:
            at, row = active.get(partition), rows.get(partition)
            if at is not None and (row is None or row.token != at.claim.token):
                self._reconciler.claim_lost(at.claim, row)
        if any(p in active and rows[p].next_offset < active[p].claim.next_offset for p in quiet):
            self._reconciler.reconcile({})

    def _check_stopped(self, rows: Mapping[Partition, Position], answer: Answer) -> None:
        """Claim again what was decided about, and what is another topic by now: the claim says so."""
        try:
            ids = answer.result()
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))
            return
        for partition, at in list(self._partitions.stopped.items()):
            row = rows.get(partition)
            token, topic_id = (None, None) if row is None else (row.token, row.topic_id)
            now = ids[partition.topic]
            if at.is_over(token, topic_id, None if now == NO_ID != topic_id else now):
                self._partitions.claim_again(partition, at.claim)

    def check_out_of_range(self) -> None:
        """The broker has no record at the read position: find out why, and who reset it, and stop in front of it (I4).

        What was read before and is delayed is applied first: it may be nowhere else any more.
        """
        active, refused = self._partitions.active, self._partitions.out_of_range
        missing = {p: active[p].read_position for p in refused if active[p].position == active[p].read_position}
        if not missing:
            return
        answer = self._identity.ask({p.topic for p in missing})
        mismatches = self._claiming.topic_id_mismatches(answer, missing)
        self._claiming.stop_or_reclaim(mismatches)
        lost = {p: read_position for p, read_position in missing.items() if p not in mismatches}
        for partition in self._in_range(lost):
            self._partitions.read_again(partition)
            del lost[partition]
        resets = {p: self._ledger.last_reset(p) for p in lost}
        by_hand = {p: str(reset) for p, reset in resets.items() if reset is not None and reset.to == lost[p]}
        self._claiming.stop_or_reclaim(classify_loss(self._ledger.group, lost, self._watermarks, by_hand))
        self._partitions.decided(missing)

    def _in_range(self, positions: Mapping[Partition, int]) -> list[Partition]:
        """Those that the log has, where the broker has refused a later offset.

        That was the client's position before an operator set an earlier one, or the log was truncated since.
        """
        refused = self._partitions.out_of_range
        later = [p for p, position in positions.items() if (offset := refused[p]) is not None and offset > position]
        logs = self._watermarks.logs(later) if later else {}
        return [p for p, (start, end) in logs.items() if start <= positions[p] <= end]
