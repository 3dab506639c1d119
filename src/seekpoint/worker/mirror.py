"""Commits the ledger's positions to Kafka for display, and warns of commits to the group by other consumers."""

from __future__ import annotations

from concurrent.futures import Future
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.kafka.commits import Commit
from seekpoint.kafka.questions import in_background
from seekpoint.records import Partition
from seekpoint.worker.assignment import Resources, WorkerAssignment

EVERY = 5.0  # seconds between two commits, or Limits.lag_check if that is less
ANSWER = 5.0  # seconds that a separate thread waits for the group's commits before it asks again
LAST = 2.0  # seconds that an ending worker waits for the answer to its last commit
AGAIN = 600.0  # seconds after which unchanged positions are committed again, because Kafka deletes old commits
TRIES = 3  # consecutive failures before one is announced: commits are also refused during a rebalance


class Mirror:
    """Commits positions to Kafka if ``is_on``, and always warns of other consumers' commits.

    It commits the claims' positions, which Postgres has committed, even after a reset to an earlier position. It raises
    nothing, waits for no answer, and no decision depends on Kafka's commits. It commits a partition's position only
    after Kafka has returned the partition's commit from before this worker.
    """

    def __init__(self, resources: Resources, assignment: WorkerAssignment, *, is_on: bool) -> None:
        self._client, self._announce = resources.client, resources.announce
        self._every = min(EVERY, resources.ledger.limits.lag_check)
        self._assignment, self._is_on = assignment, is_on
        self._next = self._again_at = 0.0
        self._checked: set[Partition] = set()  # partitions whose earlier commit Kafka has returned
        self._question: tuple[set[Partition], Future[dict[Partition, Commit] | None]] | None = None
        self._sent: dict[Partition, Commit] = {}
        self._is_pending = False
        self._failures = 0
        self._error: str | None = None  # to be announced

    def maintain(self, now: float) -> None:
        """Commit positions that have moved, and ask for the commits of new partitions, if that is due."""
        try:
            self._maintain(now)
        except Exception as error:  # noqa: BLE001 -- whatever it is, offsets and rows do not depend on it
            self._failed(str(error))

    def _maintain(self, now: float) -> None:
        if self._error is not None:
            self._announce(events.MirrorFailed(error=self._error))
            self._error = None
        self._take_answer()
        if now < self._next or not (current := self._current()):
            return
        self._next = now + self._every
        if self._question is None and (new := current.keys() - self._checked):
            self._question = new, in_background(self._client.committed, new, ANSWER)
        if now >= self._again_at:
            self._again_at = now + AGAIN
            self._sent.clear()
        self._commit(current)

    def finish(self) -> bool:
        """Commit the last positions; waits at most ``LAST`` seconds. False if Kafka has not answered."""
        until = monotonic() + LAST
        try:
            self._await(until)
            self._take_answer()
            self._commit(self._current())
            self._await(until)
        except Exception as error:  # noqa: BLE001 -- as above
            self._failed(str(error))
        return not self._is_pending

    def _await(self, until: float) -> None:
        """Wait for the answer to a commit; records read meanwhile are not applied: the next owner reads them again."""
        while self._is_pending and (remaining := until - monotonic()) > 0:
            self._client.read(1, remaining)

    def answered(self, error: Any, offsets: list[Any]) -> None:
        """Record the answer to a commit; the client calls it, on any thread."""
        self._is_pending = False
        failed = error or next((offset.error for offset in offsets if offset.error is not None), None)
        if failed is None:
            self._failures = 0
        else:
            self._failed(failed.str())

    def _failed(self, why: str) -> None:
        self._is_pending = False
        self._sent = {}
        self._count(why)

    def _count(self, why: str) -> None:
        self._failures += 1
        if self._failures == TRIES:
            self._error = why

    def _current(self) -> dict[Partition, Commit]:
        claims = self._assignment.current_claims()
        return {claim.partition: Commit.mirror(claim.next_offset, claim.leader_epoch, claim.epoch) for claim in claims}

    def _take_answer(self) -> None:
        """Warn once for each partition whose commit no mirror wrote; ask again if Kafka has not answered."""
        if self._question is None or not self._question[1].done():
            return
        (partitions, answer), self._question = self._question, None
        if (commits := answer.result()) is None:
            if self._is_on:
                self._count(
                    "Kafka has not answered which offsets the group has committed: none is replaced until it has"
                )
            return
        self._checked |= partitions
        self._next = 0.0
        if others := {partition: commit.offset for partition, commit in commits.items() if not commit.is_mirror}:
            self._announce(events.OtherCommits(commits=others))

    def _commit(self, current: dict[Partition, Commit]) -> None:
        if not self._is_on or self._is_pending:
            return
        self._sent = {partition: commit for partition, commit in self._sent.items() if partition in current}
        moved = {
            partition: commit
            for partition, commit in current.items()
            if partition in self._checked and self._sent.get(partition) != commit
        }
        if not moved:
            return
        self._is_pending = True
        self._sent |= moved
        if (refused := self._client.commit(moved)) is not None:
            self._failed(refused.str())
