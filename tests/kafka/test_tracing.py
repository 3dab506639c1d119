"""A worker's transactions as spans, on real servers."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from seekpoint import OnPoison, Poison
from seekpoint.metrics import Tracing
from support.worker_group import WorkerGroup

PRODUCERS = [0x11, 0x22]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def header(number: int) -> list[tuple[str, bytes]]:
    return [("traceparent", f"00-{number:032x}-{number:016x}-01".encode())]


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


@pytest.mark.pins("batch")
def test_a_transaction_is_one_consumer_span_with_the_handlers_spans_in_it(
    worker_group: WorkerGroup, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    name = worker_group.topic()
    tracer = provider.get_tracer("a handler's")

    def handle(tx: Any, batch: Any) -> None:
        with tracer.start_as_current_span("charge"):
            for record in batch:
                if record.value == "bad":
                    raise Poison("no", record)
        worker_group.record_table.enter(tx, batch)

    for number, value in zip(PRODUCERS, ["good", "bad"], strict=True):
        worker_group.produce(name, [value], headers=header(number))
    pipeline = worker_group.pipeline(name, handle=handle, on_poison=OnPoison.DEAD_LETTER)
    worker_group.finish(worker_group.worker(pipeline, tracing=Tracing(provider)), name, [(0, 1)])
    first, *_, last = spans = named(exporter, f"process {name}")
    assert last.attributes is not None
    assert dict(last.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": worker_group.group,
        "messaging.destination.name": name,
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 1,
        "seekpoint.attempt": len(spans),
    }
    assert [link.context.trace_id for link in last.links] == PRODUCERS
    assert [event.name for event in last.events] == ["held", "applied", "advanced"]
    assert (last.kind, last.status.status_code) == (trace.SpanKind.CONSUMER, trace.StatusCode.UNSET)
    assert first.status.status_code is trace.StatusCode.ERROR, "rolled back"
    assert first.attributes is not None
    assert first.attributes["error.type"] == "Poison"
    assert first.context is not None
    assert named(exporter, "charge")[0].parent == first.context


def test_a_stream_of_values_is_linked_too(
    worker_group: WorkerGroup, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    name = worker_group.topic()
    worker_group.produce(name, 500, headers=header(0x33))
    worker_group.finish(worker_group.worker(name, tracing=Tracing(provider)), name, [(0, 499)])
    spans = named(exporter, f"process {name}")
    counts = [span.attributes["messaging.batch.message_count"] for span in spans if span.attributes is not None]
    assert sum(counts) == 500  # type: ignore[arg-type]
    assert all([link.context.trace_id for link in span.links] == [0x33] for span in spans)
