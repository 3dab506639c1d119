"""Metrics and traces, for programs that are monitored: of workers (``Tally``) and of ledgers (``LedgerGauges``).

The same metrics for Prometheus (``Collector``, ``exposition``, ``serving``; extra ``prometheus``) and for OpenTelemetry
(``instrument``; extra ``otel``). ``Tracing`` creates spans of a worker's transactions (extra ``otel``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seekpoint.metrics.catalogue import CATALOGUE, Kind, Metric
from seekpoint.metrics.ledger import LedgerGauges
from seekpoint.metrics.samples import Buckets, Samples, Source
from seekpoint.metrics.tally import Tally
from seekpoint.worker.tracer import Tracer

if TYPE_CHECKING:
    from seekpoint.metrics.otel import instrument
    from seekpoint.metrics.prometheus import Collector, exposition, serving
    from seekpoint.metrics.tracing import Tracing

__all__ = [
    "CATALOGUE",
    "Buckets",
    "Collector",
    "Kind",
    "LedgerGauges",
    "Metric",
    "Samples",
    "Source",
    "Tally",
    "Tracer",
    "Tracing",
    "exposition",
    "instrument",
    "serving",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs an extra, when it is first used."""
    if name in {"Collector", "exposition", "serving"}:
        from seekpoint.metrics import prometheus  # noqa: PLC0415 -- an extra

        return getattr(prometheus, name)
    if name == "Tracing":
        from seekpoint.metrics.tracing import Tracing  # noqa: PLC0415 -- an extra

        return Tracing
    if name == "instrument":
        from seekpoint.metrics.otel import instrument  # noqa: PLC0415 -- an extra

        return instrument
    raise AttributeError(f"module 'seekpoint.metrics' has no attribute {name!r}")
