"""Metrics for OpenTelemetry, with the extra ``otel``: observable instruments, and one histogram."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from seekpoint import events
from seekpoint.metrics.catalogue import CATALOGUE, DURATION, Kind, Metric
from seekpoint.metrics.samples import BOUNDS, Labels, Samples
from seekpoint.metrics.tally import Tally

_ATTRIBUTES = {
    "group": "messaging.consumer.group.name",
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
}


def instrument(*tallies: Tally, meter_provider: MeterProvider | None = None, per_partition: bool = True) -> None:
    """Register the metrics of these workers with OpenTelemetry; call it once, before the workers run.

    Names begin with ``seekpoint.``; attributes follow the semantic conventions for messaging, if these define them.
    ``meter_provider`` is the global one by default. ``per_partition=False`` combines the values of a group's
    partitions. Only the histogram of transactions is recorded on the worker's thread.
    """
    meter = (meter_provider or get_meter_provider()).get_meter("seekpoint")
    histogram = meter.create_histogram(
        "seekpoint.transaction_duration", "s", DURATION.help, explicit_bucket_boundaries_advisory=BOUNDS
    )
    for tally in tallies:
        attributes = _attributes(DURATION, (tally.group,))

        def record(event: events.Event, attributes: dict[str, str] = attributes) -> None:
            if type(event) is events.Committed:
                histogram.record(event.seconds, attributes)

        tally.worker.add_observer(record)
    for metric in CATALOGUE:
        if "worker" not in metric.sources or metric.kind is Kind.HISTOGRAM:
            continue
        create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
        name = f"seekpoint.{metric.name.removesuffix('_seconds')}"
        create(name, [_Callback(metric, tallies, per_partition)], "s" if metric.unit else "", metric.help)


class _Callback:
    """Reads one metric of all workers."""

    def __init__(self, metric: Metric, tallies: Sequence[Tally], per_partition: bool) -> None:
        self._metric, self._tallies, self._per_partition = metric, tallies, per_partition

    def __call__(self, _options: CallbackOptions) -> Iterable[Observation]:
        samples = Samples(per_partition=self._per_partition)
        for tally in self._tallies:
            tally.add_to(samples)
        values = samples.of(self._metric).items()
        return [Observation(value, _attributes(self._metric, labels)) for labels, value in values]


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    named = zip(metric.labels, labels, strict=True)
    attributes = {_ATTRIBUTES.get(name, f"seekpoint.{name}"): value for name, value in named if value}
    return {"messaging.system": "kafka", **attributes}
