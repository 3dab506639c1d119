"""What Kafka shows of the group: the ledger's positions, committed there for display, and commits that are not ours."""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.kafka.client import Client
from seekpoint.kafka.commits import Commit
from seekpoint.records import Partition
from seekpoint.worker.assignment import Resources, WorkerAssignment

EVERY = 5.0  # seconds between two commits, at the least
ANSWER = 5.0  # seconds that a thread of its own waits for what Kafka has committed, before it is asked again
LAST = 2.0  # seconds that the end of a worker waits for the answer to its last commit
AGAIN = 600.0  # seconds after which positions are committed that have not moved: Kafka deletes old commits
TRIES = 3  # failures in a row before one is announced: a rebalance refuses commits, too


class Mirror:
    """Commits positions to Kafka where it ``is_on``, and warns of commits of other consumers in any case.

    Positions are those of the claims: of transactions that were committed, also where they were reset to earlier ones.
    Nothing is raised, no answer is waited for, and no decision depends on what Kafka has. A partition is committed
    once Kafka has answered what commits there were before.
    """

    def __init__(self, resources: Resources, assignment: WorkerAssignment, *, is_on: bool) -> None:
        self._client, self._announce = resources.client, resources.announce
        self._every = min(EVERY, resources.ledger.limits.lag_check)
        self._assignment, self._is_on = assignment, is_on
        self._next = self._again_at = 0.0
        self._checked: set[Partition] = set()  # Kafka has answered what commits there were before ours
        self._question: _Question | None = None
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
        self._take_answer()
        if now < self._next or not (current := self._current()):
            return
        self._next = now + self._every
        if self._question is None and (new := current.keys() - self._checked):
            self._question = _Question(self._client, new)
        if now >= self._again_at:
            self._again_at = now + AGAIN
            self._sent.clear()
        self._commit(current)

    def finish(self) -> bool:
        """Commit what has moved, at the end; waits ``LAST`` seconds at most. False where Kafka has not answered."""
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
        self._count(why)

    def _count(self, why: str) -> None:
        self._failures += 1
        if self._failures == TRIES:
            self._error = why

    def _current(self) -> dict[Partition, Commit]:
        claims = self._assignment.current_claims()
        return {c.partition: Commit.mirror(c.next_offset, c.leader_epoch, c.epoch) for c in claims}

    def _take_answer(self) -> None:
        """Warn of commits that are not a mirror's, once for each partition; where Kafka has not answered, ask again."""
        if (question := self._question) is None or not question.is_over.is_set():
            return
        self._question = None
        if (found := question.answer) is None:
            if self._is_on:
                self._count("no answer about the group's commits: none is replaced before")
            return
        self._checked |= question.partitions
        self._next = 0.0
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


class _Question:
    """What Kafka has committed, asked on a thread of its own; ``answer`` is None where it has not answered."""

    def __init__(self, client: Client, partitions: AbstractSet[Partition]) -> None:
        self.partitions = set(partitions)
        self.answer: dict[Partition, Commit] | None = None
        self.is_over = threading.Event()
        threading.Thread(target=self._ask, args=[client], name="seekpoint-commits", daemon=True).start()

    def _ask(self, client: Client) -> None:
        try:
            self.answer = client.committed(self.partitions, ANSWER)
        finally:
            self.is_over.set()
