"""The protocol of a worker's tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from seekpoint.events import Event
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import RawRecord


class Tracer(Protocol):
    """Creates a span for each transaction, on the worker's thread: :class:`seekpoint.metrics.Tracing`."""

    def transaction(
        self, pipeline: Pipeline[Any, Any], records: Callable[[], Iterable[Iterable[RawRecord]]], attempt: int
    ) -> AbstractContextManager[None]:
        """Trace one attempt to apply and commit a batch, which is the block; must not suppress exceptions.

        ``records`` returns, in chunks, the batch's records read so far: the block may read more.
        """

    def __call__(self, event: Event) -> None:
        """Receive one event. A transaction's events arrive while the block of :meth:`transaction` is open."""
