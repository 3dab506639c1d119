"""Upsert: rows deduplicated by key and merged, by the write strategy that fits their number."""

from seekpoint.sinks.upsert.upsert import Upsert

__all__ = ["Upsert"]
