"""Spans of a worker's transactions for OpenTelemetry, with the extra ``otel``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain, islice
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from seekpoint import events
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.session import TransactionFailed
from seekpoint.records import RawRecord, error_attribute
from seekpoint.worker.failed import Failed

Chunks = Callable[[], Iterable[Iterable[RawRecord]]]

logger = logging.getLogger("seekpoint.metrics.tracing")

LINKS = 32  # most links of one span
LOOKED_AT = 1000  # most records of one transaction whose headers are searched for links


class Tracing:
    """Creates one consumer span for each transaction: ``Worker(…, tracing=Tracing())``.

    ``tracer_provider`` is the global one by default. The span is current inside handlers, so spans from the
    instrumentation of SQLAlchemy and HTTP clients become its children. It links to the spans that produced its records:
    up to 32, found by the global propagator in the headers of the first 1,000 records. Names follow OpenTelemetry's
    semantic conventions for messaging. A transaction that was rolled back has the status ERROR and the error's class as
    ``error.type``. Spans contain no key, value, header or error text. An exception of the tracer is logged and ignored.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("seekpoint", version("seekpoint"), tracer_provider)

    @contextmanager
    def transaction(self, pipeline: Pipeline[Any, Any], records: Chunks, attempt: int) -> Iterator[None]:
        """Trace the block that applies and commits a batch once, whose ``records`` may grow meanwhile."""
        links = _Links()
        if (span := self._begin(pipeline, records, attempt, links)) is None:
            yield
            return
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            _end(span, records, links, error)
            raise
        else:
            _end(span, records, links)
        finally:
            context.detach(token)

    def _begin(self, pipeline: Pipeline[Any, Any], records: Chunks, attempt: int, links: _Links) -> Span | None:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": pipeline.group,
            "seekpoint.attempt": attempt,
        }
        name = "process"
        if len(pipeline.topics) == 1:
            attributes["messaging.destination.name"] = pipeline.topics[0]
            name = f"process {pipeline.topics[0]}"
        try:
            span_links = list(links.new_of(records))
            return self._tracer.start_span(
                name, context.Context(), kind=SpanKind.CONSUMER, attributes=attributes, links=span_links
            )
        except Exception:
            logger.exception("a span could not be started; ignored")
            return None

    def __call__(self, event: events.Event) -> None:
        """Add the steps of a transaction to its span."""
        match event:
            case events.Held():
                trace.get_current_span().add_event("held")
            case events.Applied():
                span = trace.get_current_span()
                span.add_event("applied")
                span.set_attribute("messaging.batch.message_count", event.records)
            case events.Advanced():
                span = trace.get_current_span()
                span.add_event("advanced", {"seekpoint.spans": [str(offsets) for offsets in event.spans[:LINKS]]})
                if len(event.spans) == 1:
                    span.set_attribute("messaging.destination.partition.id", str(event.spans[0].partition.number))


def _end(span: Span, records: Chunks, links: _Links, error: BaseException | None = None) -> None:
    try:
        if span.is_recording():
            for link in links.new_of(records):  # for records that were read after the span began
                span.add_link(link.context)
        if error is not None:
            span.set_attribute("error.type", _type_of(error))
            span.set_status(Status(StatusCode.ERROR))
        span.end()
    except Exception:
        logger.exception("a span could not be ended; ignored")


def _type_of(error: BaseException) -> str:
    """The class of the error, or of the driver's error that SQLAlchemy has wrapped."""
    while isinstance(error, TransactionFailed | Failed):
        error = error.error
    return type(error_attribute(error, "orig") or error).__qualname__


class _Links:
    """Finds the spans that produced one transaction's records, each once."""

    def __init__(self) -> None:
        self._known: set[tuple[bytes | None, ...]] = set()
        self._names = propagate.get_global_textmap().fields
        self._looked_at = self._link_count = 0

    def new_of(self, chunks: Chunks) -> Iterator[Link]:
        """Links to the spans of records that no earlier call has searched."""
        records = islice(chain.from_iterable(chunks()), self._looked_at, LOOKED_AT)
        return self._links(records)

    def _links(self, records: Iterable[RawRecord]) -> Iterator[Link]:
        for record in records:
            if self._link_count >= LINKS:
                return
            self._looked_at += 1
            headers = {name: value for name, value in record.headers if name in self._names and value is not None}
            key = tuple(headers.values())
            if not headers or key in self._known:
                continue
            self._known.add(key)
            carrier = {name: value.decode("utf-8", "replace") for name, value in headers.items()}
            span_context = trace.get_current_span(propagate.extract(carrier, context.Context())).get_span_context()
            if span_context.is_valid:
                self._link_count += 1
                yield Link(span_context)
