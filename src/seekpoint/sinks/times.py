"""Converts times for columns without a zone, a time or a date; refuses a value if a part of it would be dropped."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time, tzinfo
from typing import Any

_DAY = r"\d{4,6}-\d\d-\d\d"
_CLOCK = r"\d\d?:\d\d(:\d\d([.,]\d+)?)?"
_LOCAL_TIMESTAMP = re.compile(rf"\s*({_DAY}([T ]{_CLOCK})?( BC)?|-?infinity)\s*")
_LOCAL_TIME = re.compile(rf"\s*{_CLOCK}\s*([AP]M)?\s*", re.IGNORECASE)
_DATE = re.compile(rf"\s*((\d{{8}}|{_DAY})( BC)?|-?infinity)\s*", re.IGNORECASE)
_OF_NOW = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)

Convert = Callable[[Any], Any]  # a value to one that the driver dumps; raises ValueError or TypeError to refuse it


def timestamp_converts(zone: tzinfo | None) -> dict[type, Convert]:
    """Conversions for ``timestamp``, by type of value: aware times are converted to ``zone``, refused if it is None."""

    def local(value: datetime) -> datetime:
        if value.tzinfo is None:
            return value
        if zone is None:
            raise ValueError(
                f"{value} has a time zone, which the column drops: make the column timestamptz, or give the sink "
                "timezone='UTC'"
            )
        return value.astimezone(zone).replace(tzinfo=None)

    def text(value: str) -> Any:
        if _LOCAL_TIMESTAMP.fullmatch(value):
            return value
        try:
            parsed = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"{value!r} is not an ISO 8601 timestamp") from None
        return local(parsed)

    return {datetime: local, str: text}


def _date_text(value: str) -> str:
    if not _DATE.fullmatch(value):
        raise ValueError(f"{value!r} is not an ISO 8601 date; the column would drop a time of day")
    return value


def is_fixed(text: str) -> bool:
    """Whether the text has no W or Y: words for the time of reading ('now', 'today') have one, ISO 8601 has none."""
    return not any(char in text for char in "wWyY")


def _fixed_text(value: str) -> str:
    if not is_fixed(value) and _OF_NOW.search(value):
        raise ValueError(f"{value!r} would be another time if the record were read again: write the time itself")
    return value


def _local_time(value: time) -> time:
    if value.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, which the column drops: make the column timetz")
    return value


def _time_text(value: str) -> str:
    if not _LOCAL_TIME.fullmatch(value):
        raise ValueError(f"{value!r} is not a time of day alone; the column would drop a zone or a date")
    return value


DATE_CONVERTS: dict[type, Convert] = {str: _date_text}
ZONED_CONVERTS: dict[type, Convert] = {str: _fixed_text}
TIME_CONVERTS: dict[type, Convert] = {time: _local_time, str: _time_text}
