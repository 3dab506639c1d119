"""Formats durations for people, in the same way everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def format_duration(value: float | timedelta) -> str:
    """A duration in seconds as text, in its two largest units: ``3 min 12 s``; 0 s if negative."""
    rounded = max(0, round(value.total_seconds() if isinstance(value, timedelta) else value))
    if rounded < 60:
        return f"{rounded} s"
    minutes, seconds = divmod(rounded, 60)
    if minutes < 60:
        return _joined(minutes, "min", seconds, "s")
    hours, minutes = divmod(minutes, 60)
    return _joined(hours, "h", minutes, "min") if hours < 48 else _joined(hours // 24, "d", hours % 24, "h")


def format_ago(moment: datetime) -> str:
    """How long ago a moment was: ``3 min 12 s ago``."""
    return f"{format_duration(datetime.now(UTC) - moment)} ago"


def _joined(number: int, unit: str, rest: int, rest_unit: str) -> str:
    return f"{number} {unit} {rest} {rest_unit}" if rest else f"{number} {unit}"
