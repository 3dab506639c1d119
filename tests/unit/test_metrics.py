"""A worker's events become counts and gauges; Prometheus and OpenTelemetry show the same values."""

from __future__ import annotations

from time import monotonic, time
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from seekpoint import Append, Bytes, Pipeline, Worker, events
from seekpoint.errors import ConfigError, OffsetLost
from seekpoint.metrics import CATALOGUE, Buckets, Kind, Samples, Source, Tally, catalogue
from seekpoint.metrics.otel import instrument
from seekpoint.metrics.prometheus import PREFIX, Collector, exposition
from seekpoint.records import Cause, Failure, Partition, Span, State

A, B = Partition("a", 0), Partition("a", 1)
FAILURE = Failure(Cause.HANDLER, "ValueError: no")


def worker(group: str = "g", version: int = 1) -> Worker:
    sink = Append("shop.orders", columns=["body"], row=lambda record: (record.value,))
    pipeline = Pipeline(group, topics="a", value=Bytes(), sinks=[sink], version=version)
    return Worker(pipeline, engine="postgresql://nowhere/none", kafka={"bootstrap.servers": "nowhere:1"})


def announce(to: Worker, *seen: events.Event) -> None:
    for event in seen:
        to._announce(event)


def committed(partition: Partition, start: int, end: int, seconds: float = 0.003) -> events.Committed:
    rows = {"shop.orders": 2 * (end - start)}
    return events.Committed(spans=(Span(partition, start, end),), records=end - start, seconds=seconds, rows=rows)


def activated(partition: Partition, offset: int = 0) -> events.Activated:
    return events.Activated(partition=partition, offset=offset, epoch=1)


def scraped(*tallies: Source, **options: Any) -> dict[tuple[str, ...], float]:
    """Each value by its name and its labels: group, topic, partition, and then the others by name."""
    order = ["group", "topic", "partition", "state"]
    text = exposition(*tallies, **options).decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)

    def place(name: str) -> tuple[int, str]:
        return (order.index(name) if name in order else len(order), name)

    return {
        (
            sample.name.removeprefix(PREFIX),
            *(sample.labels[name] for name in sorted(sample.labels, key=place)),
        ): sample.value
        for sample in samples
    }


def one_of_each() -> tuple[Worker, Tally]:
    observed = worker()
    tally = Tally(observed)
    announce(
        observed,
        events.Starting(group="g"),
        events.Started(group="g", owner="o"),
        activated(A),
        activated(B, 5),
        committed(A, 0, 10),
        committed(B, 5, 7, seconds=2.0),
        events.Refused(reason="fenced"),
        events.CommitUnknown(error=OSError("cut")),
        events.ClaimLost(partition=A),
        events.Resynced(partition=A, expected=1, found=2, cause="reply lost"),
        events.RetryScheduled(partition=B, offset=7, attempt=1, attempts=3, wait=1.0, failure=FAILURE, then="stop"),
        events.Bisecting(error=ValueError("no")),
        events.DeadLettered(partition=A, offset=3, state=State.DEAD_LETTERED, failure=FAILURE),
        events.CrashSuspected(partition=A, crashes=2, until=9),
        events.KafkaTrouble(error="away"),
        events.OtherCommits(commits={A: 3, B: 4}),
        events.MirrorFailed(error="broken"),
        events.LagSampled(lag={A: 3, B: 4}),
        events.PartitionStopped(partition=A, error=OffsetLost(A, 10, "gone")),
    )
    return observed, tally


def test_each_event_is_counted() -> None:
    samples = scraped(one_of_each()[1])
    assert (samples["records_total", "g"], samples["sink_rows_total", "g", "shop.orders"]) == (12, 24)
    assert {key[2]: samples[key] for key in samples if key[0] == "transactions_total"} == {
        "committed": 2, "refused": 1, "unknown": 1,
    }  # fmt: skip
    assert (samples["transaction_duration_seconds_count", "g"], samples["claims_total", "g"]) == (2, 2)
    assert samples["transaction_duration_seconds_sum", "g"] == pytest.approx(2.003)
    assert samples["transaction_duration_seconds_bucket", "g", "0.005"] == 1
    assert samples["transaction_duration_seconds_bucket", "g", "+Inf"] == 2
    assert samples["resyncs_total", "g", "reply lost"] == samples["stops_total", "g", "OffsetLost"] == 1
    assert samples["dead_letters_total", "g", "a", "dead_lettered", "handler"] == 1
    assert samples["troubles_total", "g", "kafka"] == 1
    assert samples["other_commits_total", "g"] == 2, "partitions"
    for name in ("claims_lost", "retries", "isolations", "crash_suspicions", "mirror_failures"):
        assert samples[f"{name}_total", "g"] == 1, name


def test_the_state_is_the_workers_health() -> None:
    samples = scraped(one_of_each()[1])
    assert (samples["live", "g"], samples["ready", "g"], samples["trouble", "g"], samples["stale", "g"]) == (1, 0, 1, 0)
    assert (samples["next_offset", "g", "a", "0"], samples["next_offset", "g", "a", "1"]) == (10, 7)
    assert samples["lag_records", "g", "a", "0"] == 3, "a stopped partition keeps its lag"
    assert samples["partition_stopped", "g", "a", "0", "OffsetLost"] == 1
    assert samples["partition_waiting", "g", "a", "1", "retry"] == 1
    assert samples["last_commit_timestamp_seconds", "g", "a", "1"] == pytest.approx(time(), abs=5)


def test_every_metric_of_a_worker_has_a_series() -> None:
    samples = Samples()
    one_of_each()[1].add_to(samples)
    wanted = {metric.name for metric in CATALOGUE if "worker" in metric.sources}
    assert {m.name for m in CATALOGUE if samples.of(m) or samples.histograms_of(m)} == wanted


def test_a_partition_that_is_gone_has_no_series() -> None:
    observed, tally = one_of_each()
    announce(observed, events.Revoked(partitions=(B,), lost=False))
    assert not [key for key in scraped(tally) if key[0] in {"next_offset", "lag_records"} and key[3] == "1"]
    assert ("last_commit_timestamp_seconds", "g", "a", "1") not in scraped(tally)


def test_a_lag_that_is_not_known_has_no_series() -> None:
    observed, tally = one_of_each()
    announce(observed, events.LagSampled(lag={A: 3, B: 0}, unknown=frozenset({A})))
    assert {key[3] for key in scraped(tally) if key[0] == "lag_records"} == {"1"}


def test_two_workers_of_a_group_are_one_and_two_groups_are_two() -> None:
    first, other, third = worker(), worker(), worker("h")
    tallies = [Tally(first), Tally(other), Tally(third)]
    for observed in (first, third):
        announce(observed, events.Starting(group="g"), events.Started(group="g", owner="o"))
    announce(first, activated(A), committed(A, 0, 5))
    announce(other, activated(B), committed(B, 0, 7))
    samples = scraped(*tallies)
    assert (samples["records_total", "g"], samples["records_total", "h"]) == (12, 0)
    assert (samples["live", "g"], samples["live", "h"]) == (0, 1), "one of two does not live"
    assert samples["transaction_duration_seconds_count", "g"] == 2


def test_a_partition_that_two_workers_have_is_not_counted_twice() -> None:
    """While it is handed over, or one of them is hung: also where partitions are combined."""
    first, other = worker(), worker()
    tallies = Tally(first), Tally(other)
    for observed, end in ((first, 10), (other, 20)):
        announce(observed, activated(A), committed(A, 0, end), activated(B), committed(B, 0, 5))
        announce(observed, events.LagSampled(lag={A: 30 - end, B: 0}))
        announce(observed, events.PartitionStopped(partition=A, error=OffsetLost(A, 10, "gone")))
    samples, folded = scraped(*tallies), scraped(*tallies, per_partition=False)
    assert (samples["next_offset", "g", "a", "0"], samples["lag_records", "g", "a", "0"]) == (20, 20)
    assert (folded["next_offset", "g", "", ""], folded["lag_records", "g", "", ""]) == (25, 20)
    assert samples["partition_stopped", "g", "a", "0", "OffsetLost"] == 1
    assert folded["partition_stopped", "g", "", "", "OffsetLost"] == 1
    assert samples["records_total", "g"] == folded["records_total", "g"] == 40, "counters are added"


def test_partitions_can_be_combined() -> None:
    samples = scraped(one_of_each()[1], per_partition=False)
    assert samples["lag_records", "g", "", ""] == 7
    assert not [key for key in samples if key[2:4] == ("a", "0")]


def test_a_worker_without_partitions_and_before_its_start_is_scraped() -> None:
    samples = scraped(Tally(worker()))
    assert (samples["live", "g"], samples["records_total", "g"]) == (0, 0)
    assert not [key for key in samples if len(key) > 3 and key[0] != "worker_info"]


def test_a_registry_learns_the_names_without_values() -> None:
    class Refusing:
        def add_to(self, samples: Samples) -> None:
            raise AssertionError("a registry asks no server")

    registry = CollectorRegistry()
    registry.register(Collector(Refusing()))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector())


def test_names_and_labels_follow_the_rules_of_prometheus() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert metric.help.endswith("."), metric.name
        assert "`" not in metric.help, "it is plain text"
        assert not metric.name.endswith("_total"), "the client library appends it"
        assert (metric.unit == "seconds") == metric.name.endswith("_seconds"), metric.name
        assert metric.labels[:1] in {("group",), (), ("run",)}, metric.name


def test_an_observer_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a function that takes an event"):
        worker().add_observer(7)  # type: ignore[arg-type]


def test_open_telemetry_has_the_same_values() -> None:
    reader = InMemoryMetricReader()
    first, other = worker(), worker("h")
    tally = Tally(first)
    instrument(tally, Tally(other), meter_provider=MeterProvider([reader]))
    announce(first, events.Starting(group="g"), activated(A), committed(A, 0, 10), events.LagSampled(lag={A: 3}))
    announce(first, events.OtherCommits(commits={A: 3, B: 4}), events.MirrorFailed(error="broken"))
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points for metric in scope.metrics}
    group = {"messaging.system": "kafka", "messaging.consumer.group.name": "g"}
    labels = {**group, "messaging.destination.name": "a", "messaging.destination.partition.id": "0"}
    assert _point(points["seekpoint.records"], group).value == 10
    assert _point(points["seekpoint.other_commits"], group).value == 2
    assert _point(points["seekpoint.mirror_failures"], group).value == 1
    assert _point(points["seekpoint.transactions"], {**group, "seekpoint.outcome": "committed"}).value == 1
    assert _point(points["seekpoint.lag_records"], labels).value == 3
    histogram = _point(points["seekpoint.transaction_duration"], group)
    samples = Samples()
    tally.add_to(samples)
    (mine,) = samples.histograms_of(catalogue.DURATION).values()
    assert (tuple(histogram.bucket_counts), histogram.sum) == (mine.counts, pytest.approx(mine.total))
    gauges = {f"seekpoint.{m.name}" for m in CATALOGUE if m.kind is Kind.GAUGE and "worker" not in m.sources}
    assert not gauges & points.keys(), "the exporter's are not the worker's"


def _point(points: Any, attributes: dict[str, str]) -> Any:
    (point,) = (candidate for candidate in points if dict(candidate.attributes) == attributes)
    return point


def test_histograms_are_added() -> None:
    assert Buckets((1, 0), 0.5) + Buckets((1, 2), 1.5) == Buckets((2, 2), 2.0)


def test_counting_reads_no_clock_and_takes_little_time() -> None:
    """A hundred thousand transactions in well under ten seconds: microseconds each, in the worst case."""
    tally, event = Tally(worker()), committed(A, 0, 10)
    begun = monotonic()
    for _ in range(100_000):
        tally(event)
    assert monotonic() - begun < 10
