"""The values of metrics at one moment, combined if their labels are equal."""

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
    """Collects values. ``per_partition=False`` combines the values of a group's partitions as the metric defines.

    If several workers have a gauge of one partition, during a rebalance or because a worker hangs, the greatest value
    counts: a sum would be twice the position.
    """

    def __init__(self, *, per_partition: bool = True) -> None:
        self._per_partition = per_partition
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._buckets: dict[Metric, dict[Labels, Buckets]] = {}

    def add(self, metric: Metric, value: float | None, *labels: object) -> None:
        """Add one value with the metric's labels in order; None means unknown, and adds no series."""
        if value is None:
            return
        assert len(labels) == len(metric.labels), metric.name
        is_of_partition = metric.kind is Kind.GAUGE and "partition" in metric.labels
        rule = "max" if is_of_partition and metric.combine == "sum" else metric.combine
        _combine(self._values.setdefault(metric, {}), tuple(map(str, labels)), float(value), rule)

    def add_at(self, metric: Metric, value: float | None, group: str, partition: Partition, *labels: object) -> None:
        """Add the value of one partition."""
        self.add(metric, value, group, partition.topic, partition.number, *labels)

    def add_buckets(self, metric: Metric, buckets: Buckets, *labels: str) -> None:
        """Add a histogram."""
        by_labels = self._buckets.setdefault(metric, {})
        by_labels[labels] = by_labels[labels] + buckets if labels in by_labels else buckets

    def of(self, metric: Metric) -> dict[Labels, float]:
        """The metric's values, by their labels."""
        values = self._values.get(metric, {})
        if self._per_partition:
            return values
        folded: dict[Labels, float] = {}
        for labels, value in values.items():
            named = zip(metric.labels, labels, strict=True)
            key = tuple("" if name in {"topic", "partition"} else label for name, label in named)
            _combine(folded, key, value, metric.combine)
        return folded

    def histograms_of(self, metric: Metric) -> dict[Labels, Buckets]:
        """The metric's histograms, by their labels."""
        return self._buckets.get(metric, {})


def _combine(values: dict[Labels, float], labels: Labels, value: float, rule: str) -> None:
    if labels not in values:
        values[labels] = value
    elif rule == "sum":
        values[labels] += value
    else:
        values[labels] = _COMBINE[rule](values[labels], value)


class Source(Protocol):
    """A source of metrics: a :class:`Tally` of a worker, or the :class:`LedgerGauges`."""

    def add_to(self, samples: Samples) -> None:
        """Add the current values; may be called from any thread."""
