"""The span of a transaction: its links, its end, and a tracer that raises."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg import OperationalError
from sqlalchemy.exc import DBAPIError

from seekpoint import Bytes, Pipeline, Worker
from seekpoint.errors import ConfigError
from seekpoint.metrics.tracing import LINKS, LOOKED_AT, Tracing
from seekpoint.postgres.session import CommitUnanswered
from seekpoint.testing import raw

PIPELINE: Pipeline[Any, Any] = Pipeline("g", topics="a", value=Bytes(), handle=lambda tx, batch: None)


Headers = dict[str, bytes | None]


def traceparent(number: int) -> Headers:
    return {"traceparent": f"00-{number:032x}-{number:016x}-01".encode()}


class FakeBatch:
    """A batch of which more is read while it is applied."""

    def __init__(self, headers: Iterable[Headers]) -> None:
        self.records = [raw(b"", topic="a", offset=n, headers=[*header.items()]) for n, header in enumerate(headers)]

    def replay(self) -> Iterator[list[Any]]:
        return iter([self.records[:3], self.records[3:]])


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


def test_each_producers_span_is_linked_once_also_of_records_that_come_later(
    spans: Tracing, exporter: InMemorySpanExporter
) -> None:
    reading = FakeBatch([traceparent(7), {}, {"traceparent": None}, traceparent(7)])
    with spans.transaction(PIPELINE, reading.replay, 1):
        reading.records += FakeBatch([{"traceparent": b"\xff no"}, {**traceparent(8), "mine": b"\xff"}]).records
    (span,) = exporter.get_finished_spans()
    assert linked(span) == [7, 8]
    assert (span.name, span.kind, span.parent) == ("process a", trace.SpanKind.CONSUMER, None)


def test_links_and_looks_are_limited(spans: Tracing, exporter: InMemorySpanExporter) -> None:
    none: Headers = {}
    for headers in ([*map(traceparent, range(1, LINKS + 9))], [none] * LOOKED_AT + [traceparent(1)]):
        with spans.transaction(PIPELINE, FakeBatch(headers).replay, 1):
            pass
    many, late = exporter.get_finished_spans()
    assert linked(many) == [*range(1, LINKS + 1)]
    assert linked(late) == []


def test_headers_without_a_valid_span_do_not_count_as_links(spans: Tracing, exporter: InMemorySpanExporter) -> None:
    invalid: list[Headers] = [{"traceparent": b"no span %d" % n} for n in range(LINKS)]
    with spans.transaction(PIPELINE, FakeBatch([*invalid, traceparent(1)]).replay, 1):
        pass
    (span,) = exporter.get_finished_spans()
    assert linked(span) == [1]


LOST = CommitUnanswered(DBAPIError("COMMIT", {}, OperationalError("a secret")))


@pytest.mark.parametrize(("error", "name"), [(ValueError("a secret"), "ValueError"), (LOST, "OperationalError")])
def test_an_error_is_its_class_alone(
    spans: Tracing, exporter: InMemorySpanExporter, error: Exception, name: str
) -> None:
    with pytest.raises(type(error), match="a secret"), spans.transaction(PIPELINE, FakeBatch([]).replay, 2):
        raise error
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.attributes["seekpoint.attempt"]) == (name, 2)
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "secret" not in span.to_json()
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("step", ["on_start", "on_end"])
def test_a_tracer_that_raises_does_not_disturb_the_worker(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(*_: Any) -> None:
        raise RuntimeError("the backend is broken")

    processor = SpanProcessor()
    monkeypatch.setattr(processor, step, raising)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    done = False
    with caplog.at_level(logging.ERROR), Tracing(provider).transaction(PIPELINE, FakeBatch([]).replay, 1):
        done = True
    assert done
    assert [record.name for record in caplog.records] == ["seekpoint.metrics.tracing"]


def test_what_is_no_tracer_is_refused() -> None:
    kafka = {"bootstrap.servers": "nowhere:1"}
    with pytest.raises(ConfigError, match=r"must be a seekpoint\.metrics\.Tracing"):
        Worker(PIPELINE, engine="postgresql://nowhere/none", kafka=kafka, tracing=True)  # type: ignore[arg-type]
