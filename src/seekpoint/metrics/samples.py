"""The values of metrics at one moment, combined where their labels are equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seekpoint.metrics.catalogue import Kind, Metric
from seekpoint.records import Partition

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: how many values were in each bucket (one more than ``BOUNDS``), and their sum."""

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: Buckets) -> Buckets:
        return Buckets(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.total + other.total)


Labels = tuple[str, ...]
_COMBINE = {"max": max, "min": min}


class Samples:
    """Collects values. With ``per_partition=False`` those of a group's partitions become one, as the metric says.

    Of one partition's gauges that several workers have, while it is handed over or one of them hangs, the greatest
    counts: a sum would be twice the position.
    """

    def __init__(self, *, per_partition: bool = True) -> None:
        self._per_partition = per_partition
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._buckets: dict[Metric, dict[Labels, Buckets]] = {}

    def add(self, metric: Metric, value: float | None, *labels: object) -> None:
        """Add one value with the metric's labels in order; None: it is not known, and there is no series."""
        if value is None:
            return
        assert len(labels) == len(metric.labels), metric.name
        is_of_partition = metric.kind is Kind.GAUGE and "partition" in metric.labels
        how = "max" if is_of_partition and metric.combine == "sum" else metric.combine
        _combine(self._values.setdefault(metric, {}), tuple(map(str, labels)), float(value), how)

    def add_at(self, metric: Metric, value: float | None, group: str, at: Partition, *labels: object) -> None:
        """Add the value of one partition."""
        self.add(metric, value, group, at.topic, at.number, *labels)

    def add_buckets(self, metric: Metric, buckets: Buckets, *labels: str) -> None:
        """Add a histogram."""
        known = self._buckets.setdefault(metric, {})
        known[labels] = known[labels] + buckets if labels in known else buckets

    def of(self, metric: Metric) -> dict[Labels, float]:
        """The metric's values, by their labels."""
        found = self._values.get(metric, {})
        if self._per_partition:
            return found
        folded: dict[Labels, float] = {}
        for labels, value in found.items():
            named = zip(metric.labels, labels, strict=True)
            key = tuple("" if name in {"topic", "partition"} else one for name, one in named)
            _combine(folded, key, value, metric.combine)
        return folded

    def histograms_of(self, metric: Metric) -> dict[Labels, Buckets]:
        """The metric's histograms, by their labels."""
        return self._buckets.get(metric, {})


def _combine(known: dict[Labels, float], labels: Labels, value: float, how: str) -> None:
    if labels not in known:
        known[labels] = value
    elif how == "sum":
        known[labels] += value
    else:
        known[labels] = _COMBINE[how](known[labels], value)


class Source(Protocol):
    """What has metrics: a :class:`Tally` of a worker, or the :class:`LedgerGauges`."""

    def add_to(self, samples: Samples) -> None:
        """Add the values of now; may be called from any thread."""
