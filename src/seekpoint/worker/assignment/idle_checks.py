"""Checks of partitions without traffic: resets and pauses (I5), recreated topics and lost records (I4), failovers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from seekpoint import events
from seekpoint.errors import Fenced, KafkaUnavailable, TableMissing
from seekpoint.kafka.identity import NO_ID, SHORT_TIMEOUT, Answer
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
        self.topics, self._claiming, self._reconciler = topics, claiming, reconciler
        self._next = 0.0  # when the checks run next, by the monotonic clock

    def run_soon(self) -> None:
        """Run the checks at the next call."""
        self._next = 0.0

    def check_idle_partitions(self, now: float) -> None:
        """Run the checks, if they are due."""
        every = self._ledger.limits.idle_check
        if now < self._next:
            return
        self._next = now + every
        active, stopped = self._partitions.active, self._partitions.stopped
        if not (active or stopped or self._partitions.claiming):
            self._check_group()
        quiet = [partition for partition, state in active.items() if now - state.quiet_since >= every]
        if not (checked := [*quiet, *stopped]):
            return
        timeout = min(SHORT_TIMEOUT, self._identity.timeout)
        answer = self._identity.ask({partition.topic for partition in checked}, timeout)
        self._check_topic_ids(answer, quiet)
        self._pass_log_ends(
            [partition for partition in quiet if partition in active and active[partition].has_trailing]
        )
        rows = self._ledger.positions_of(checked, locked=False)
        self._check_claims(rows, quiet)
        self._check_stopped(rows, answer)

    def _check_group(self) -> None:
        """Check version and declaration, for a worker without partitions: it makes no claims, which check both."""
        self._ledger.check_version()
        if (differs := self._ledger.differs(self.topics)) is not None:
            raise differs

    def _check_topic_ids(self, answer: Answer, quiet: Sequence[Partition]) -> None:
        """Stop quiet partitions whose topic was recreated."""
        try:
            mismatches = self._claiming.topic_id_mismatches(answer, quiet)
            self._claiming.stop_or_reclaim(mismatches)
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))

    def _pass_log_ends(self, partitions: Sequence[Partition]) -> None:
        """Advance idle partitions past trailing control records, which must never look like lost records (I3)."""
        if not partitions:
            return
        answer = self._identity.ask({partition.topic for partition in partitions})
        ends = self._watermarks.ends(partitions)
        active = self._partitions.active
        moves = []
        for partition in partitions:
            state, edge = active[partition], ends[partition]
            if state.end is not None:
                # No record was applied at this end: store a leader epoch only if the broker reports it for this offset.
                epoch = edge.leader_epoch if edge.offset == state.end else None
                moves.append(Move(state.claim, state.read_position, state.end, epoch))
        if mismatches := self._claiming.topic_id_mismatches(answer, partitions):
            self._claiming.stop_or_reclaim(mismatches)
            return
        try:
            moved = self._ledger.advance_alone(moves)
        except Fenced as error:
            self._announce(events.Refused(reason=error.reason))
            self._reconciler.reconcile({partition: active[partition].read_position for partition in partitions})
            return
        for claim in moved:
            active[claim.partition].passed_end(claim)

    def _check_claims(self, rows: Mapping[Partition, Position], quiet: Sequence[Partition]) -> None:
        """Notice that a quiet partition was reset, paused or claimed by another worker, or that commits were lost."""
        active = self._partitions.active
        for partition in quiet:
            state, row = active.get(partition), rows.get(partition)
            if state is not None and (row is None or row.token != state.claim.token):
                self._reconciler.claim_lost(state.claim, row)
        if any(
            partition in active and rows[partition].next_offset < active[partition].claim.next_offset
            for partition in quiet
        ):
            self._reconciler.reconcile({})

    def _check_stopped(self, rows: Mapping[Partition, Position], answer: Answer) -> None:
        """Claim a stopped partition again after a decision, or if its topic was recreated: the claim reports that."""
        try:
            ids = answer.result()
        except KafkaUnavailable as error:
            self._announce(events.KafkaTrouble(error=str(error)))
            return
        stopped = list(self._partitions.stopped.items())
        waiting = {partition.topic for partition, state in stopped if isinstance(state.stop, TableMissing)}
        written = waiting - self._claiming.tables.refusals(waiting).keys()  # an operator has created the table
        for partition, state in stopped:
            row = rows.get(partition)
            token, topic_id = (None, None) if row is None else (row.token, row.topic_id)
            now = ids[partition.topic]
            if partition.topic in written or state.is_over(token, topic_id, None if now == NO_ID != topic_id else now):
                self._partitions.claim_again(partition, state.claim)

    def check_out_of_range(self) -> None:
        """Stop partitions whose read position is out of range; the stop says why, and who reset it (I4).

        Records that were already read are applied first, because the log may no longer have them.
        """
        active, refused = self._partitions.active, self._partitions.out_of_range
        missing = {
            partition: active[partition].read_position
            for partition in refused
            if active[partition].position == active[partition].read_position
        }
        if not missing:
            return
        answer = self._identity.ask({partition.topic for partition in missing})
        mismatches = self._claiming.topic_id_mismatches(answer, missing)
        self._claiming.stop_or_reclaim(mismatches)
        lost = {partition: read_position for partition, read_position in missing.items() if partition not in mismatches}
        for partition in self._in_range(lost):
            self._partitions.read_again(partition)
            del lost[partition]
        resets = {partition: self._ledger.last_reset(partition) for partition in lost}
        by_hand = {
            partition: str(reset)
            for partition, reset in resets.items()
            if reset is not None and reset.to == lost[partition]
        }
        self._claiming.stop_or_reclaim(classify_loss(self._ledger.group, lost, self._watermarks, by_hand))
        self._partitions.decided(missing)

    def _in_range(self, positions: Mapping[Partition, int]) -> list[Partition]:
        """Partitions whose position is in the log, although the broker has refused a later offset.

        The client asked for that later offset before an operator reset the position to an earlier one, or the log was
        truncated.
        """
        refused = self._partitions.out_of_range
        later = [
            partition
            for partition, position in positions.items()
            if (offset := refused[partition]) is not None and offset > position
        ]
        logs = self._watermarks.logs(later) if later else {}
        return [partition for partition, (start, end) in logs.items() if start <= positions[partition] <= end]
