"""Accumulate: rows aggregated by key, and added to the sums that the table has."""

from seekpoint.sinks.accumulate.accumulate import Accumulate

__all__ = ["Accumulate"]
