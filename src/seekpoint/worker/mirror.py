"""What Kafka shows of the group: the ledger's positions, committed there for display, and commits that are not ours."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.kafka.commits import Commit
from seekpoint.records import Partition
from seekpoint.worker.assignment import Resources, WorkerAssignment

EVERY = 5.0  # seconds between two commits, at the least
ANSWER = 1.0  # seconds that are waited for what Kafka has committed, once for each partition
LAST = 2.0  # seconds that the end of a worker waits for the answer to its last commit
AGAIN = 600.0  # seconds after which positions are committed that have not moved: Kafka deletes old commits
TRIES = 3  # failures in a row before one is announced: a rebalance refuses commits, too


class Mirror:
    """Commits positions to Kafka where it ``is_on``, and warns of commits of other consumers in any case.

    Positions are those of the claims: of transactions that were committed, also where they were reset to earlier ones.
    Nothing is raised, commits are not waited for, and no decision depends on what Kafka has.
    """

    def __init__(self, resources: Resources, assignment: WorkerAssignment, *, is_on: bool) -> None:
        self._client, self._announce = resources.client, resources.announce
        self._every = min(EVERY, resources.ledger.limits.lag_check)
        self._assignment, self._is_on = assignment, is_on
        self._next = self._again_at = 0.0
        self._checked: set[Partition] = set()  # Kafka was asked what commits there were before ours
        self._sent: dict[Partition, Commit] = {}
        self._is_pending = False
        self._failures = 0
        self._error: str | None = None  # to be announced

    def maintain(self, now: float) -> None:
        """Commit what has moved, if it is time, and ask for commits of partitions that are new here."""
        try:
            self._maintain(now)
        except Exception as error:  # noqa: BLE001 -- whatever it is, offsets and rows do not depend on it
            self._failed(str(error))

    def _maintain(self, now: float) -> None:
        if self._error is not None:
            self._announce(events.MirrorFailed(error=self._error))
            self._error = None
        if now < self._next or not (current := self._current()):
            return
        self._next = now + self._every
        if new := current.keys() - self._checked:
            self._check(new)
        if now >= self._again_at:
            self._again_at = now + AGAIN
            self._sent.clear()
        self._commit(current)

    def finish(self) -> bool:
        """Commit what has moved, at the end; waits ``LAST`` seconds at most. False where Kafka has not answered."""
        until = monotonic() + LAST
        try:
            self._await(until)
            self._commit(self._current())
            self._await(until)
        except Exception as error:  # noqa: BLE001 -- as above
            self._failed(str(error))
        return not self._is_pending

    def _await(self, until: float) -> None:
        """Wait for the answer to a commit; what is read meanwhile was not applied, and is read again elsewhere."""
        while self._is_pending and (left := until - monotonic()) > 0:
            self._client.read(1, left)

    def answered(self, error: Any, offsets: list[Any]) -> None:
        """The client's callback for a commit, on any thread: only records."""
        self._is_pending = False
        failed = error or next((at.error for at in offsets if at.error is not None), None)
        if failed is None:
            self._failures = 0
        else:
            self._failed(failed.str())

    def _failed(self, why: str) -> None:
        self._is_pending = False
        self._sent = {}
        self._failures += 1
        if self._failures == TRIES:
            self._error = why

    def _current(self) -> dict[Partition, Commit]:
        claims = self._assignment.current_claims()
        return {c.partition: Commit.mirror(c.next_offset, c.leader_epoch, c.epoch) for c in claims}

    def _check(self, partitions: AbstractSet[Partition]) -> None:
        """Warn of commits that are not a mirror's, once for each partition; where Kafka does not answer, of none."""
        self._checked |= partitions
        found = self._client.committed(partitions, ANSWER)
        if others := {partition: commit.offset for partition, commit in found.items() if not commit.is_mirror}:
            self._announce(events.OtherCommits(commits=others))

    def _commit(self, current: dict[Partition, Commit]) -> None:
        if not self._is_on or self._is_pending:
            return
        self._sent = {partition: commit for partition, commit in self._sent.items() if partition in current}
        moved = {p: commit for p, commit in current.items() if p in self._checked and self._sent.get(p) != commit}
        if not moved:
            return
        self._is_pending = True
        self._sent |= moved
        if (refused := self._client.commit(moved)) is not None:
            self._failed(refused.str())
