"""Counts a worker's events in plain integers; needs no metrics library."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from importlib.metadata import version
from time import monotonic
from typing import Any

from seekpoint import events
from seekpoint.metrics import catalogue as of
from seekpoint.metrics.catalogue import Metric
from seekpoint.metrics.samples import BOUNDS, Buckets, Samples
from seekpoint.records import Partition
from seekpoint.worker.worker import Worker

# Counters that are 0 before their first event, because otherwise a rate would miss that event.
_FROM_ZERO: tuple[tuple[Any, ...], ...] = (
    *((of.TRANSACTIONS, outcome) for outcome in ("refused", "unknown")),
    *((of.TROUBLES, server) for server in ("database", "kafka", "codec")),
    *((metric,) for metric in (of.CLAIMS, of.CLAIMS_LOST, of.RETRIES, of.ISOLATIONS, of.CRASH_SUSPICIONS)),
    *((metric,) for metric in (of.OTHER_COMMITS, of.MIRROR_FAILURES)),
)


class Tally:
    """The metrics of one worker, counted from its events. Make it before the worker runs.

    Reading takes no lock of the worker, and queries no server.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.group = worker.pipeline.group
        self._counts: dict[tuple[Metric, tuple[str, ...]], int] = {}
        self._records, self._seconds = 0, 0.0
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._last_commit: dict[Partition, float] = {}
        self._sink_rows = {", ".join(sink.tables): 0 for sink in worker.pipeline.sinks}
        self._on: dict[type[events.Event], Callable[[Any], None]] = {
            events.Committed: self._committed,
            events.Refused: lambda _: self._count(of.TRANSACTIONS, "refused"),
            events.CommitUnknown: lambda _: self._count(of.TRANSACTIONS, "unknown"),
            events.Activated: lambda _: self._count(of.CLAIMS),
            events.ClaimLost: lambda _: self._count(of.CLAIMS_LOST),
            events.Resynced: lambda event: self._count(of.RESYNCS, event.cause),
            events.PartitionStopped: lambda event: self._count(of.STOPS, type(event.error).__name__),
            events.RetryScheduled: lambda _: self._count(of.RETRIES),
            events.WaitingForRetry: self._waiting,
            events.Bisecting: lambda _: self._count(of.ISOLATIONS),
            events.DeadLettered: self._dead_lettered,
            events.CrashSuspected: lambda _: self._count(of.CRASH_SUSPICIONS),
            events.DatabaseTrouble: lambda _: self._count(of.TROUBLES, "database"),
            events.OtherCommits: lambda event: self._count(of.OTHER_COMMITS, amount=len(event.commits)),
            events.MirrorFailed: lambda _: self._count(of.MIRROR_FAILURES),
            events.KafkaTrouble: lambda _: self._count(of.TROUBLES, "kafka"),
            events.CodecTrouble: lambda _: self._count(of.TROUBLES, "codec"),
        }
        worker.add_observer(self)

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        if (count := self._on.get(type(event))) is not None:
            count(event)

    def _count(self, metric: Metric, *labels: str, amount: int = 1) -> None:
        key = (metric, labels)
        self._counts[key] = self._counts.get(key, 0) + amount

    def _committed(self, event: events.Committed) -> None:
        self._records += event.records
        self._seconds += event.seconds
        self._buckets[bisect_left(BOUNDS, event.seconds)] += 1
        for table, rows in event.rows.items():
            self._sink_rows[table] = self._sink_rows.get(table, 0) + rows
        for span in event.spans:
            self._last_commit[span.partition] = event.at

    def _waiting(self, event: events.WaitingForRetry) -> None:
        if event.attempt:  # otherwise the batch did not fail
            self._count(of.RETRIES)

    def _dead_lettered(self, event: events.DeadLettered) -> None:
        self._count(of.DEAD_LETTERS, event.partition.topic, event.state.value, event.failure.cause.value)

    def add_to(self, samples: Samples) -> None:
        """Add the worker's counts and state; may be called from any thread."""
        buckets = tuple(self._buckets)
        samples.add(of.RECORDS, self._records, self.group)
        samples.add(of.TRANSACTIONS, sum(buckets), self.group, "committed")
        for table, count in self._sink_rows.copy().items():
            samples.add(of.SINK_ROWS, count, self.group, table)
        samples.add_buckets(of.DURATION, Buckets(buckets, self._seconds), self.group)
        for metric, *zero in _FROM_ZERO:
            samples.add(metric, 0, self.group, *zero)
        for (metric, labels), count in self._counts.copy().items():
            samples.add(metric, count, self.group, *labels)
        self._add_state(samples)

    def _add_state(self, samples: Samples) -> None:
        group, health = self.group, self.worker.health()
        samples.add(of.LIVE, health.live, group)
        samples.add(of.READY, health.ready, group)
        samples.add(of.STALE, health.stale, group)
        samples.add(of.TROUBLE, health.trouble is not None, group)
        samples.add(of.WORKER_INFO, 1, group, self.worker.pipeline.version, version("seekpoint"))
        for partition, offset in health.positions.items():
            samples.add_at(of.NEXT_OFFSET, offset, group, partition)
        for partition, lag in health.lag.items():
            if partition not in health.lag_unknown:
                samples.add_at(of.LAG, lag, group, partition)
        for partition, error in health.stopped.items():
            samples.add_at(of.STOPPED, 1, group, partition, type(error).__name__)
        for partition in health.retrying:
            samples.add_at(of.WAITING, 1, group, partition, "retry")
        for partition in health.delayed:
            samples.add_at(of.WAITING, 1, group, partition, "delay")
        since_epoch = time.time() - monotonic()
        for partition, last in self._last_commit.copy().items():
            if partition in health.positions:  # otherwise another worker has it
                samples.add_at(of.LAST_COMMIT, round(last + since_epoch, 3), group, partition)
