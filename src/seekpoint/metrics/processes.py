"""Metrics of several processes as those of one: each sends its own as plain data."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from seekpoint.metrics import catalogue as of
from seekpoint.metrics.catalogue import CATALOGUE, Kind
from seekpoint.metrics.samples import Buckets, Samples

Data = Mapping[str, list[list[Any]]]  # a metric's name, and of each series the labels and the value


def as_data(samples: Samples) -> Data:
    """The values as JSON can have them."""
    found: dict[str, list[list[Any]]] = {}
    for metric in CATALOGUE:
        series = [[list(labels), value] for labels, value in samples.of(metric).items()]
        series += [[list(labels), one.counts, one.total] for labels, one in samples.histograms_of(metric).items()]
        if series:
            found[metric.name] = series
    return found


def _add_data(data: Data, samples: Samples, *, gauges: bool) -> None:
    for metric in CATALOGUE:
        if metric.kind is Kind.GAUGE and not gauges:
            continue
        for labels, *value in data.get(metric.name, ()):
            if metric.kind is Kind.HISTOGRAM:
                samples.add_buckets(metric, Buckets(tuple(value[0]), value[1]), *labels)
            else:
                samples.add(metric, value[0], *labels)


class ProcessTotals:
    """Has the metrics of all processes: counters are of those that have ended, too, so that no sum ever falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, Data] = {}
        self._ended: Data = {}
        self._count = 0

    def update(self, process: int, data: Data) -> None:
        """These are the process's metrics now."""
        with self._lock:
            self._running[process] = data

    def end(self, process: int) -> None:
        """The process has ended: its counters stay, and its gauges go."""
        with self._lock:
            self._count += 1
            samples = Samples()
            for data in (self._ended, self._running.pop(process, {})):
                _add_data(data, samples, gauges=False)
            self._ended = as_data(samples)

    def add_to(self, samples: Samples) -> None:
        """Add the values of now; may be called from any thread."""
        with self._lock:
            running, ended, count = list(self._running.values()), self._ended, self._count
        _add_data(ended, samples, gauges=False)
        for data in running:
            _add_data(data, samples, gauges=True)
        samples.add(of.PROCESSES, len(running))
        samples.add(of.PROCESSES_ENDED, count)
