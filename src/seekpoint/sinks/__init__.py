"""Sinks: tables that records are written to, inside the transaction that advances the position."""

from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.append import Append
from seekpoint.sinks.upsert.upsert import Upsert

__all__ = ["Accumulate", "Append", "Upsert"]
