"""Stores rows for operators, and polls for requested replays, on a thread that a running worker never waits for."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from secrets import randbelow
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.events import Announcer
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.records import Partition, one_line

PRUNE = 60  # a partition's samples are pruned on every 60th write
MINUTE = 60.0  # seconds between two prunings, if no samples are written
ENDED = "ended"
RENEWAL = 20.0  # seconds between two polls, at most; a poll also shows that a request's worker is alive
END = 1.0  # seconds that an ending worker waits for its last row


@dataclass(frozen=True, slots=True)
class _Status:
    """The status to write: the worker's state and its partitions."""

    state: str
    partitions: Collection[Partition] = ()
    trouble: str | None = None


class StatusWriter:
    """Writes a worker's row, samples of its positions and logs, and its pipeline's declarations by topic.

    ``describe_work`` describes the open batch or replay; its text is stored if the worker's thread sets no status for
    long. A newer status replaces one that is not written yet. The worker's thread announces the first of consecutive
    errors.
    """

    def __init__(
        self,
        ledger: GroupLedger,
        watermarks: Watermarks,
        declared: Mapping[str, Any],
        announce: Announcer,
        *,
        client_id: str | None = None,
        poll_replay_requests: Callable[[GroupLedger], None] = lambda _: None,
        describe_work: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._process = WorkerProcess(socket.gethostname(), os.getpid(), client_id, version("seekpoint"))
        self._ledger, self._watermarks, self._announce = ledger, watermarks, announce
        self._poll_replay_requests, self._describe_work = poll_replay_requests, describe_work
        self.declared = declared  # by topic; the worker's thread replaces it
        self._stored: set[str] = set()  # the topics whose declaration is stored
        self._every, self._sample_every = ledger.limits.lag_check, ledger.limits.sample_positions
        self._show_at = self._write_at = self._sample_at = self._prune_at = 0.0
        self._has_claimed = False
        self._samples = randbelow(PRUNE)  # random: otherwise workers that live less than an hour would prune only some
        self._error: Exception | None = None  # to be announced
        self._has_failed = False
        self._next: _Status | None = None
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="seekpoint-status", daemon=True)
        self._thread.start()

    # -- the worker's thread ----------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether to call :meth:`show`: every ``Limits.lag_check`` seconds."""
        return now >= self._show_at

    def show(self, state: str, partitions: Collection[Partition], now: float, trouble: str | None = None) -> None:
        """Pass the worker's state to the thread that stores it. ``partitions``: claimed, and of known topics."""
        is_first_claim = bool(partitions) and not self._has_claimed
        self._has_claimed = self._has_claimed or is_first_claim
        # More often until the first claim, to write soon after it.
        self._show_at = now + (self._every if self._has_claimed else min(self._every, 1.0))
        with self._changed:
            error, self._error = self._error, None
            if is_first_claim or now >= self._write_at:
                self._write_at = now + self._every
                self._next = _Status(state, partitions, trouble)
                self._changed.notify()
        if error is not None:
            self._announce(events.StatusNotStored(error=error))

    def end(self, wait: float = END, error: BaseException | None = None) -> None:
        """Store that the worker has ended, and by which error, and end the thread; waits for it ``wait`` seconds."""
        with self._changed:
            self._next, self._has_ended = _Status(ENDED, trouble=None if error is None else one_line(error)), True
            self._changed.notify()
        self._thread.join(wait)

    # -- its own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            status, has_ended = self._await()
            if status is None and has_ended:
                return
            # On a separate connection: a write that hangs must not delay a claim, even if the pool has only two
            # connections.
            with self._ledger.apart() as ledger:
                self._store(status, ledger, has_ended=has_ended)

    def _store(self, status: _Status | None, ledger: GroupLedger, *, has_ended: bool) -> None:
        tables = StatusTables(ledger, self._process)
        if status is None:
            self._error_of(partial(self._poll_replay_requests, ledger))  # in a long handler the worker is alive
            self._error_of(partial(self._write_work, tables))
            return
        errors = [self._error_of(partial(self._write, status, tables))]
        if not has_ended:
            errors.append(self._error_of(partial(self._poll_replay_requests, ledger)))
        error = next(filter(None, errors), None)
        with self._changed:
            if error is not None and not self._has_failed:
                self._error = error
            self._has_failed = error is not None

    @staticmethod
    def _error_of(step: Callable[[], None]) -> Exception | None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 -- whatever it is, offsets and rows do not depend on it
            return error
        return None

    def _await(self) -> tuple[_Status | None, bool]:
        """The next status, or None if the worker set none for long; and whether the worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._has_ended, min(2 * self._every, RENEWAL))
            status, self._next = self._next, None
            return status, self._has_ended

    def _write_work(self, tables: StatusTables) -> None:
        """Renew the worker's row during a long transaction: otherwise the worker counts as gone after a minute."""
        if (work := self._describe_work()) is not None:
            tables.seen("running", work)  # a trouble is over: a transaction is open again

    def _write(self, status: _Status, tables: StatusTables) -> None:
        tables.seen(status.state, status.trouble)
        claimed = {partition.topic for partition in status.partitions}
        if new := {topic: self.declared[topic] for topic in claimed - self._stored if topic in self.declared}:
            tables.declare(new)
            self._stored |= new.keys()
        now = monotonic()
        if status.partitions and self._sample_every > 0 and now >= self._sample_at:
            self._sample_at = now + self._sample_every
            tables.sample(self._watermarks.logs(sorted(status.partitions)))
        if now >= self._prune_at:
            self._prune_at = now + (self._sample_every or MINUTE)
            self._samples += 1
            partitions = sorted(status.partitions)
            tables.prune([partition for n, partition in enumerate(partitions) if n % PRUNE == self._samples % PRUNE])
