"""The protocol of a worker's tracer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from seekpoint.events import Event
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.open_batch import OpenBatch


class Tracer(Protocol):
    """Creates a span for each transaction, on the worker's thread: :class:`seekpoint.tracing.Tracing`."""

    def transaction(self, pipeline: Pipeline[Any, Any], batch: OpenBatch, attempt: int) -> AbstractContextManager[None]:
        """Trace the block in which one attempt applies and commits the batch; must not suppress exceptions."""

    def __call__(self, event: Event) -> None:
        """Receive one event. A transaction's events arrive while the block of :meth:`transaction` is open."""
