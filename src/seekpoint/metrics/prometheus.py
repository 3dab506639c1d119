"""Metrics for Prometheus, with the extra ``prometheus``: a collector for ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as _Collector

from seekpoint.metrics.catalogue import CATALOGUE, Kind
from seekpoint.metrics.samples import BOUNDS, Samples, Source

PREFIX = "seekpoint_"
_LES = [*map(str, BOUNDS), "+Inf"]


class Collector(_Collector):
    """Collects the metrics of these sources at each scrape: ``REGISTRY.register(Collector(Tally(worker)))``.

    Make one collector for all workers of a process: it combines values with equal labels. ``per_partition=False`` also
    combines the values of a group's partitions (lag is their sum, headroom the least); topic and partition are then
    empty.
    """

    def __init__(self, *sources: Source, per_partition: bool = True) -> None:
        self._sources, self._per_partition = sources, per_partition

    def describe(self) -> Iterable[Family]:
        """Every family without values, so that registering queries no server."""
        return [Family(PREFIX + metric.name, metric.help, metric.kind.value) for metric in CATALOGUE]

    def collect(self) -> Iterable[Family]:
        """The current values."""
        samples = Samples(per_partition=self._per_partition)
        for source in self._sources:
            source.add_to(samples)
        yield from _valued(samples)
        for metric in CATALOGUE:
            if histograms := samples.histograms_of(metric):
                family = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
                for labels, buckets in histograms.items():
                    cumulative = zip(_LES, accumulate(buckets.counts), strict=True)
                    family.add_metric(labels, list(cumulative), buckets.total)
                yield family


def _valued(samples: Samples) -> Iterable[Family]:
    for metric in CATALOGUE:
        if values := samples.of(metric):
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


def exposition(*sources: Source, per_partition: bool = True) -> bytes:
    """The current metrics of these sources, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(Collector(*sources, per_partition=per_partition))
    return generate_latest(registry)


@contextmanager
def serving(host: str, port: int, *sources: Source, per_partition: bool = True) -> Iterator[int]:
    """Answer scrapes at ``http://HOST:PORT/metrics`` during the block; yields the port (0: a free one).

    Raises OSError if the address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(Collector(*sources, per_partition=per_partition))
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
