"""Carries out the group's requests for replays between a worker's batches, a part of one at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Literal

from seekpoint.errors import Fenced, GroupPaused
from seekpoint.ledger import Ledger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.sql import REPLAY_REQUEST
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.session import ConnectionSocket, Session
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, is_timeout, is_transient, sqlstate
from seekpoint.records import one_line, storable
from seekpoint.worker.replay.dead_letter_admin import open_at
from seekpoint.worker.replay.replay_one import Replayer
from seekpoint.worker.waiting import Stopwatch, waiting

MOST, SECONDS = 100, 1.0  # dead letters, and time, between two batches
LOCK_WAIT = 0.2  # seconds for a partition whose batch another worker has in hand; then it is tried after the next batch
REFUSALS = 100  # sentences that are kept of a request; more are counted
STORE_WAIT = 1.0  # seconds for the request's own row
# A started request has failed when its worker was not seen for so many of our own intervals, and at least so many
# seconds: its worker's interval may be longer than ours, and it is seen every 20 seconds at least.
ABANDONED, LEAST_AGE = 6, 60.0
NO_WORKER = "its worker ended before it did: look at the dead letters that are left, and request them again"
OUTDATED = (
    "the group is at a newer handler version than when it was made: look at the dead letters that are left, and "
    "request them again"
)


MakeReplayer = Callable[[DeadLetters, str], AbstractContextManager[Replayer]]


class RequestedReplays:
    """At most one request of a worker at a time. ``check`` runs on the status thread, the rest on the worker's.

    An error of storing how a request is goes to the status thread, which announces it; it is tried again after
    ``Limits.lag_check`` seconds, and so is a replay whose error may pass. ``stopping`` ends its retries.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: Ledger,
        *,
        stopwatch: Stopwatch | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._pipeline, self._ledger = pipeline, ledger
        self._stopwatch, self._stopping = stopwatch or Stopwatch(), stopping or threading.Event()
        self._wire = ConnectionSocket(waiting(self._stopwatch))
        self._interval = ledger.limits.lag_check
        self._is_requested = self._is_paused = False
        self._current: _Request | None = None
        self._error: Exception | None = None  # to be announced
        self._again_at = 0.0

    # -- the status thread ------------------------------------------------------------------------------

    def check(self, ledger: Ledger | None = None) -> None:
        """See whether there is a request to take, and a pause; fail those whose worker has crashed, or is outdated.

        ``ledger`` is the status thread's, which takes no connection that the worker may need. Says that the worker of
        the request in hand is alive. Raises what could not be stored. Nothing of a worker that was given up: its thread
        may never come back, and its request is found as abandoned.
        """
        if self._wire.is_cut:
            return
        current, owner = self._current, self._ledger.owner
        with (ledger or self._ledger).begin() as tx:
            if current is not None:
                tx.execute(REPLAY_REQUEST["request_seen"], id=current.id, owner=owner)
            tx.execute(
                REPLAY_REQUEST["fail_abandoned"], age=max(LEAST_AGE, ABANDONED * self._interval), error=NO_WORKER
            )
            tx.execute(REPLAY_REQUEST["fail_outdated"], error=OUTDATED)
            found = tx.execute(REPLAY_REQUEST["is_requested"], version=self._ledger.version, owner=owner).one()
        self._is_requested, self._is_paused = found.is_requested, found.is_paused
        if self._error is not None:
            raise self._error

    # -- the worker's thread ----------------------------------------------------------------------------

    def is_due(self, *, is_claiming: bool) -> bool:
        """Whether there is something to do; asks nothing. While the worker claims, nothing is taken or replayed."""
        if monotonic() < self._again_at:
            return False
        if self._current is None:
            return self._is_requested and not is_claiming
        return not is_claiming or self._is_paused or self._current.state != "started"

    def work(self) -> None:
        """Take a request, replay the next part of the one in hand, or hand it back while the group is paused.

        Raises no error: what ends a replay fails the request, and not the worker.
        """
        self._is_requested = False
        try:
            if self._current is None:
                self._current = self._take()
            if (request := self._current) is None:
                return
            if request.state == "started":
                if self._is_paused:
                    request.state = "requested"
                elif request.replay_some(self._replayer):
                    self._again_at = monotonic() + self._interval
            if not self._wire.is_cut:
                self._store(request)
        except Exception as error:  # noqa: BLE001 -- a missing right, or no answer: batches do not depend on it
            self._error, self._again_at = error, monotonic() + self._interval
        else:
            self._error = None

    def cut(self) -> None:
        """Close the connection from another thread: nothing is replayed any more."""
        self._wire.cut()

    def close(self, *, hand_back: bool) -> None:
        """Give up the request in hand: another worker continues it (``hand_back``), or it has failed.

        Where that cannot be stored, it is found as abandoned, and fails.
        """
        request, self._current = self._current, None
        if request is None:
            return
        if request.state == "started" and hand_back:
            request.state = "requested"
        elif request.state == "started":
            request.state, request.error = "failed", NO_WORKER
        self._store(request)

    def _take(self) -> _Request | None:
        """Committed before its first record: one that crashes the process is not replayed at each start."""
        with self._ledger.begin(lock_wait=STORE_WAIT) as tx:
            parameters = {"version": self._ledger.version, "owner": self._ledger.owner}
            row = tx.execute(REPLAY_REQUEST["take_request"], **parameters).one_or_none()
        return None if row is None else _Request(self._ledger, row)

    def _store(self, request: _Request) -> None:
        """Store how far the request is; then it is in hand no longer if it has ended, was handed back, or was taken."""
        with self._ledger.begin(lock_wait=STORE_WAIT) as tx:
            done = tx.execute(
                REPLAY_REQUEST["record_request"],
                id=request.id,
                owner=self._ledger.owner,
                state=request.state,
                error=request.error,
                remaining=request.remaining if request.state == "requested" else None,
                replayed=request.replayed,
                failed=request.failed,
                refused=request.refused,
                refusals=request.refusals,
            )
        if request.state != "started" or done.rowcount == 0:
            self._current = None

    @contextmanager
    def _replayer(self, dead_letters: DeadLetters, actor: str) -> Iterator[Replayer]:
        session = Session(self._ledger.engine, lends=self._pipeline.handle is not None, wire=self._wire)
        try:
            yield Replayer(
                self._pipeline,
                dead_letters,
                session,
                actor,
                while_paused=False,
                among=None,  # the request is in the history already
                stopwatch=self._stopwatch,
                stopping=self._stopping,
            )
        finally:
            session.close()


class _Request:
    """The request in hand: which dead letters are left of it, and how it ends."""

    def __init__(self, ledger: Ledger, row: Any) -> None:
        self._dead_letters = DeadLetters(ledger, LOCK_WAIT)
        self.id: int = row.id
        self.replayed, self.failed, self.refused = int(row.replayed), int(row.failed), int(row.refused)
        self.refusals = list[str](row.refusals or ())
        self.state: Literal["requested", "started", "done", "failed"] = "started"
        self.error: str | None = None
        self._left, self._actor, self._reason = deque[int](row.dead_letters), row.actor, row.reason
        self._tried: set[int] = set()

    @property
    def remaining(self) -> list[int]:
        """The ids that are left, in order."""
        return [each for each in dict.fromkeys(self._left) if each not in self._tried]

    def replay_some(self, make: MakeReplayer) -> bool:
        """Replay until none is left or a limit is reached; whether an error that may pass says to continue later.

        What ends the whole request is its ``error``.
        """
        until = monotonic() + SECONDS
        try:
            with make(self._dead_letters, self._actor) as replayer:
                for _ in range(MOST):
                    if not self._left:
                        break
                    self._replay_first(replayer)
                    if monotonic() >= until:
                        break
        except GroupPaused:
            self.state = "requested"
        except Exception as error:  # noqa: BLE001 -- user code, or a server that is away: the batches go their own way
            if is_transient(error) and not is_timeout(error):  # what takes too long would take as long again
                return sqlstate(error) != LOCK_NOT_AVAILABLE
            self.state, self.error = "failed", one_line(error)
        else:
            if not self._left:
                self.state = "done"
        return False

    def _replay_first(self, replayer: Replayer) -> None:
        """Replay the first one that is left; the next one of its key, which it has blocked, is the first one then."""
        first = self._left[0]
        if first in self._tried:  # after another one of its key
            self._left.popleft()
            return
        try:
            outcome, following = replayer.replay(first, self._reason)
        except Fenced as refusal:
            self._left.popleft()
            self.refused += 1
            if len(self.refusals) < REFUSALS:
                self.refusals.append(storable(refusal.reason))
            return
        self._left.popleft()
        self._tried.add(first)
        self.replayed += outcome.is_applied
        self.failed += outcome.failure is not None
        if following is not None:
            follower = open_at(self._dead_letters, outcome.dead_letter, following)
            self._left.extendleft([] if follower is None else [follower.id])
