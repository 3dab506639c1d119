"""Carries out the group's requested replays between a worker's batches, part by part."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Literal

from seekpoint.durations import format_duration
from seekpoint.errors import Fenced, GroupPaused
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.sql import REPLAY_REQUEST
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.session import ConnectionSocket, Session
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, is_timeout, is_transient, sqlstate
from seekpoint.records import one_line, storable
from seekpoint.worker.async_handler import Call
from seekpoint.worker.replay.group_dead_letters import open_at
from seekpoint.worker.replay.replay_one import Replayer
from seekpoint.worker.waiting import Stopwatch, waiting

MOST, SECONDS = 100, 1.0  # dead letters, and time, between two batches
LOCK_WAIT = 0.2  # seconds to wait for another worker's batch of the partition, before trying again after the next batch
REFUSALS = 100  # most refusals of a request that are stored; further ones are only counted
STORE_WAIT = 1.0  # seconds to wait for a lock on the request's row
# A started request is abandoned if its worker was not seen for ABANDONED of our intervals, and LEAST_AGE seconds: the
# worker's interval may be longer than ours, but it is seen at least every 20 seconds.
ABANDONED, LEAST_AGE = 6, 60.0
NO_WORKER = "the worker ended before the replay did: check which dead letters are left, and request them again"
OUTDATED = (
    "the group has a newer handler version than when the replay was requested: check which dead letters are left, and "
    "request them again"
)


MakeReplayer = Callable[[DeadLetters, str], AbstractContextManager[Replayer]]


class RequestedReplays:
    """Carries out one request at a time. ``check`` runs on the status thread, the other methods on the worker's thread.

    The status thread announces an error in storing a request's progress. Storing, and a replay after a transient error,
    are retried after ``Limits.lag_check`` seconds. ``stopping`` ends the retries of a replay.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ledger: GroupLedger,
        *,
        stopwatch: Stopwatch | None = None,
        stopping: threading.Event | None = None,
        handler: Call | None = None,
    ) -> None:
        self._pipeline, self._ledger, self._handler = pipeline, ledger, handler
        self._stopwatch, self._stopping = stopwatch or Stopwatch(), stopping or threading.Event()
        self._wire = ConnectionSocket(waiting(self._stopwatch))
        self._interval = ledger.limits.lag_check
        self._is_requested = self._is_paused = False
        self._current: _Request | None = None
        self._replays_since: float | None = None  # since when :meth:`work` replays a part of a request
        self._error: Exception | None = None  # to be announced
        self._again_at = 0.0

    # -- the status thread ------------------------------------------------------------------------------

    def check(self, ledger: GroupLedger | None = None) -> None:
        """Look for a request and for a pause; fail requests that are outdated, or whose worker has crashed.

        ``ledger`` belongs to the status thread, and has a separate connection. With a current request, stores that this
        worker is alive. Raises the last error of :meth:`work`. Does nothing once the worker was given up: its thread
        may never return, and other workers then find its request abandoned.
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
            row = tx.execute(REPLAY_REQUEST["is_requested"], version=self._ledger.version, owner=owner).one()
        self._is_requested, self._is_paused = row.is_requested, row.is_paused
        if self._error is not None:
            raise self._error

    def describe_open_replay(self) -> str | None:
        """How long the replay of a requested dead letter has taken; None if none is replayed now."""
        since, request = self._replays_since, self._current
        if since is None or request is None:
            return None
        return f"replaying dead letters of request {request.id} for {format_duration(monotonic() - since)}"

    # -- the worker's thread ----------------------------------------------------------------------------

    def is_due(self, *, is_claiming: bool) -> bool:
        """Whether :meth:`work` has something to do, without I/O. While the worker claims, it has nothing to do."""
        if monotonic() < self._again_at:
            return False
        if self._current is None:
            return self._is_requested and not is_claiming
        return not is_claiming or self._is_paused or self._current.state != "started"

    def work(self) -> None:
        """Take a request, replay the next part of the current one, or hand that back while the group is paused.

        Raises no error: an error that ends a replay fails the request, not the worker.
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
                elif self._replay_some(request):
                    self._again_at = monotonic() + self._interval
            if not self._wire.is_cut:
                self._store(request)
        except Exception as error:  # noqa: BLE001 -- a missing right, or no answer: batches do not depend on it
            self._error, self._again_at = error, monotonic() + self._interval
        else:
            self._error = None

    def _replay_some(self, request: _Request) -> bool:
        self._replays_since = monotonic()
        try:
            return request.replay_some(self._replayer)
        finally:
            self._replays_since = None

    def cut(self) -> None:
        """Close the connection from another thread: nothing is replayed any more."""
        self._wire.cut()

    def close(self, *, hand_back: bool) -> None:
        """Give up the current request: hand it back to other workers (``hand_back``), or fail it.

        If that cannot be stored, another worker finds it abandoned, and fails it.
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
        """Take a request and commit that before the replay, so that a crashing record is not replayed at each start."""
        with self._ledger.begin(lock_wait=STORE_WAIT) as tx:
            parameters = {"version": self._ledger.version, "owner": self._ledger.owner}
            row = tx.execute(REPLAY_REQUEST["take_request"], **parameters).one_or_none()
        return None if row is None else _Request(self._ledger, row)

    def _store(self, request: _Request) -> None:
        """Store the request's progress; drop the request if it has ended, was handed back, or has another worker."""
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
                among=None,  # the history has the request
                stopwatch=self._stopwatch,
                stopping=self._stopping,
                handler=self._handler,
            )
        finally:
            session.close()


class _Request:
    """The current request, its remaining dead letters, and how it ends."""

    def __init__(self, ledger: GroupLedger, row: Any) -> None:
        self._dead_letters = DeadLetters(ledger, LOCK_WAIT)
        self.id: int = row.id
        self.replayed, self.failed, self.refused = int(row.replayed), int(row.failed), int(row.refused)
        self.refusals = list[str](row.refusals or ())
        self.state: Literal["requested", "started", "done", "failed"] = "started"
        self.error: str | None = None
        self._dead_letter_ids, self._actor, self._reason = deque[int](row.dead_letters), row.actor, row.reason
        self._tried: set[int] = set()

    @property
    def remaining(self) -> list[int]:
        """The remaining ids, in order."""
        return [
            dead_letter_id
            for dead_letter_id in dict.fromkeys(self._dead_letter_ids)
            if dead_letter_id not in self._tried
        ]

    def replay_some(self, make: MakeReplayer) -> bool:
        """Replay until none is left or a limit is reached; returns whether to wait after a transient error.

        An error that ends the whole request becomes its ``error``.
        """
        until = monotonic() + SECONDS
        try:
            with make(self._dead_letters, self._actor) as replayer:
                for _ in range(MOST):
                    if not self._dead_letter_ids:
                        break
                    self._replay_first(replayer)
                    if monotonic() >= until:
                        break
        except GroupPaused:
            self.state = "requested"
        except Exception as error:  # noqa: BLE001 -- user code, or an unreachable server: batches do not depend on it
            if is_transient(error) and not is_timeout(error):  # a statement that timed out would time out again
                return sqlstate(error) != LOCK_NOT_AVAILABLE
            self.state, self.error = "failed", one_line(error)
        else:
            if not self._dead_letter_ids:
                self.state = "done"
        return False

    def _replay_first(self, replayer: Replayer) -> None:
        """Replay the first remaining dead letter; then the next open one of its key becomes the first."""
        first = self._dead_letter_ids[0]
        if first in self._tried:  # was replayed after another one of its key
            self._dead_letter_ids.popleft()
            return
        try:
            outcome, following = replayer.replay(first, self._reason)
        except Fenced as refusal:
            self._dead_letter_ids.popleft()
            self.refused += 1
            if len(self.refusals) < REFUSALS:
                self.refusals.append(storable(refusal.reason))
            return
        self._dead_letter_ids.popleft()
        self._tried.add(first)
        self.replayed += outcome.is_applied
        self.failed += outcome.failure is not None
        if following is not None:
            follower = open_at(self._dead_letters, outcome.dead_letter, following)
            self._dead_letter_ids.extendleft([] if follower is None else [follower.id])
