"""Metrics of workers and of ledgers: one catalogue, for Prometheus (``.prometheus``) and OpenTelemetry (``.otel``)."""

from seekpoint.metrics.catalogue import CATALOGUE, Kind, Metric
from seekpoint.metrics.ledger import LedgerGauges
from seekpoint.metrics.samples import Buckets, Samples, Source
from seekpoint.metrics.tally import Tally

__all__ = ["CATALOGUE", "Buckets", "Kind", "LedgerGauges", "Metric", "Samples", "Source", "Tally"]
