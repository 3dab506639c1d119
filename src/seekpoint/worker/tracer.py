"""What a worker asks of a tracer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from seekpoint.events import Event
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.open_batch import OpenBatch


class Tracer(Protocol):
    """Makes a span of each transaction, on the worker's thread: :class:`seekpoint.tracing.Tracing`."""

    def transaction(self, pipeline: Pipeline[Any, Any], batch: OpenBatch, attempt: int) -> AbstractContextManager[None]:
        """The block in which one attempt applies and commits the batch; it passes on what is raised there."""

    def __call__(self, event: Event) -> None:
        """Take one event into account: those of the transaction come within its block."""
