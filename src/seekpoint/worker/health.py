"""Collects events in a snapshot that any thread may read."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.errors import PartitionStopped
from seekpoint.records import Partition
from seekpoint.worker.waiting import Stopwatch

STALE_AFTER = 60.0  # seconds without progress after which a worker with waiting records or a trouble is stale
MARGIN = 0.1  # of Limits.transaction_age; by then the server has ended the transaction, and the handler has an error


@dataclass(frozen=True, slots=True)
class Health:
    """A worker's state at one moment; values are copies, safe to keep.

    ``live``: the worker's thread runs, and users' code (handler, ``row=``, codec) has run for at most 1.1 times
    ``Limits.transaction_age``; answer a liveness probe with it. Waits do not count: for Kafka, a lock, a server that
    does not answer or a retry, or outside the group. ``stuck``: for how many seconds users' code has run, if longer
    than that, else None. ``ready``: the worker is in the group, without trouble. ``stale``: no commit for a minute,
    although there is trouble, an open batch, or records that could be applied (not delayed ones, nor retries); only
    ``stale`` shows a database that never answers. ``trouble`` says what is wrong now, ``standby`` why the worker waits
    outside the group: a reload to its version, or its tables.

    By partition: ``lag``, in offsets up to the last stable offset, at the last sample, of stopped partitions too;
    ``stopped``, why it waits for a decision; ``retrying``, the record whose next attempt it waits for; ``suspects``,
    how many offsets are left that may contain a crashing record. ``lag_unknown`` are the partitions whose lag is not
    known (see ``LagSampled``), ``delayed`` those that wait until their next record is old enough.
    """

    live: bool = False
    ready: bool = False
    stale: bool = False
    trouble: str | None = None
    standby: str | None = None
    error: BaseException | None = None
    stuck: float | None = None
    positions: Mapping[Partition, int] = field(default_factory=dict)
    stopped: Mapping[Partition, PartitionStopped] = field(default_factory=dict)
    lag: Mapping[Partition, int] = field(default_factory=dict)
    lag_unknown: frozenset[Partition] = frozenset()
    retrying: Mapping[Partition, events.RetryScheduled] = field(default_factory=dict)
    delayed: frozenset[Partition] = frozenset()
    suspects: Mapping[Partition, int] = field(default_factory=dict)
    records: int = 0
    transactions: int = 0
    fenced: int = 0
    last_commit: float | None = None


_WITHIN_BATCH = {events.ChunkRead, events.Held, events.Applied, events.Advanced}  # most events; none is shown


class HealthBoard:
    """An observer that keeps the current :class:`Health`."""

    def __init__(
        self, stale_after: float = STALE_AFTER, *, stopwatch: Stopwatch | None = None, allowed: float = math.inf
    ) -> None:
        """``stopwatch`` runs while users' code does; ``allowed`` is ``Limits.transaction_age``."""
        self._stopwatch, self._allowed = stopwatch or Stopwatch(), allowed * (1 + MARGIN)
        self._lock = threading.Lock()
        self._stale_after = stale_after
        self._health = Health()  # the state without the fields that each commit changes; these follow
        self._positions: dict[Partition, int] = {}
        self._records = self._transactions = 0
        self._last_commit: float | None = None
        self._has_work = False  # records could be applied now
        self._has_open_batch = False
        self._draining = self._has_joined = False
        self.has_started = False  # the worker has joined the group, or waits outside of it
        self._due_since: float | None = None  # a commit is due since then: last commit, or start of work or trouble

    def read(self) -> Health:
        """The state now; may be called from any thread."""
        with self._lock:
            since = self._due_since
            health = replace(
                self._health,
                positions=dict(self._positions),
                records=self._records,
                transactions=self._transactions,
                last_commit=self._last_commit,
            )
        stale = health.live and since is not None and monotonic() - since > self._stale_after
        if not health.live or (seconds := self._stopwatch.seconds()) <= self._allowed:
            return replace(health, stale=stale)
        return replace(health, stale=stale, live=False, ready=False, stuck=seconds)

    def __call__(self, event: events.Event) -> None:
        """Update the state from one event."""
        if type(event) in _WITHIN_BATCH:
            return
        with self._lock:
            before, health = self._health, self._next(self._health, event)
            if health is not before:
                self._health, self._has_work = health, _has_work(health)
            if isinstance(event, events.Draining):
                self._draining = True
            elif isinstance(event, events.BatchOpened):
                self._has_open_batch = True
            elif isinstance(event, events.Committed):
                self._has_open_batch = False
            if not (self._has_open_batch or health.trouble is not None or self._has_work):
                self._due_since = None
            elif self._due_since is None or isinstance(event, events.Committed):
                self._due_since = event.at

    def batch_ended(self) -> None:
        """Note that no batch is open any more, committed or not."""
        if not self._has_open_batch:  # only the worker's thread changes it
            return
        with self._lock:
            self._has_open_batch = False
            if self._health.trouble is None and not self._has_work:
                self._due_since = None

    def _next(self, health: Health, event: events.Event) -> Health:  # noqa: PLR0911, PLR0912, C901 -- one case per event
        match event:
            case events.Committed():  # the most frequent ones first
                return self._committed(health, event)
            case events.BatchOpened():
                return health
            case events.Starting():
                return replace(health, live=True)
            case events.Started():
                self._has_joined = self.has_started = True
                return replace(health, live=True, ready=True, standby=None)
            case events.OnStandby():
                self.has_started = True
                return replace(health, live=True, ready=False, standby=f"reload {event.run}, {event.state}")
            case events.DeclarationRefused():
                self.has_started = True
                return replace(health, live=True, ready=False, standby=event.reason)
            case events.StandbyEnded():
                return replace(health, standby=None)
            case events.WorkerStopped():
                return replace(health, live=False, ready=False, standby=None, error=event.error)
            case events.Activated():
                self._positions[event.partition] = event.offset
                return _without(health, {event.partition}, "suspects", "stopped", "retrying")
            case events.Revoked() | events.Released():
                partitions = set(event.partitions)
                for partition in partitions:
                    self._positions.pop(partition, None)
                health = _without(health, partitions, "lag", "retrying", "suspects")
                health = replace(health, lag_unknown=health.lag_unknown - partitions)
                return (
                    health if self._draining else _without(health, partitions, "stopped")
                )  # keep the stops when the worker leaves: no operator has decided yet
            case events.PartitionStopped():
                health = _without(health, {event.partition}, "retrying")
                return replace(health, stopped={**health.stopped, event.partition: event.error})
            case events.SuspectsLeft():
                suspects = {**health.suspects, event.partition: event.left}
                return replace(health, suspects={partition: count for partition, count in suspects.items() if count})
            case events.RetryScheduled():
                return replace(health, retrying={**health.retrying, event.partition: event})
            case events.Refused():
                return replace(health, fenced=health.fenced + 1)
            case events.Paused():
                return replace(health, ready=False, trouble=event.reason)
            case events.DatabaseTrouble() | events.KafkaTrouble() | events.CodecTrouble():
                return replace(health, ready=False, trouble=str(event.as_fields()["error"]))
            case events.Recovered():
                return replace(health, ready=self._has_joined and health.standby is None, trouble=None)
            case events.LagSampled():
                delayed = event.not_due - health.retrying.keys()
                return replace(health, lag=dict(event.lag), lag_unknown=event.unknown, delayed=delayed)
            case _:
                return health

    def _committed(self, health: Health, event: events.Committed) -> Health:
        moved = {span.partition: span.end for span in event.spans}
        self._positions.update(moved)
        self._records, self._transactions = self._records + event.records, self._transactions + 1
        self._last_commit = event.at
        passed = {partition for partition, retry in health.retrying.items() if moved.get(partition, 0) > retry.offset}
        return _without(health, passed, "retrying") if passed else health


def _without(health: Health, partitions: Collection[Partition], *names: str) -> Health:
    """``health`` without these partitions in the fields ``names``."""
    remaining: dict[str, Any] = {
        name: {partition: entry for partition, entry in getattr(health, name).items() if partition not in partitions}
        for name in names
    }
    return replace(health, **remaining)


def _has_work(health: Health) -> bool:
    """Whether records could be applied now."""
    waits = health.retrying.keys() | health.delayed | health.stopped.keys()
    return any(lag and partition not in waits for partition, lag in health.lag.items())
