"""Converts times for columns that lack a zone, a time or a date; refuses a value that would lose a part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from typing import Any

from seekpoint.codecs.cloud_events import FINER
from seekpoint.sinks.column_type import DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ
from seekpoint.sinks.conversions import Conversions

_DAY = r"\d{4,6}-\d\d-\d\d"
_CLOCK = r"\d\d?:\d\d(:\d\d([.,]\d{1,6}0*)?)?"
_LOCAL_TIMESTAMP = re.compile(rf"\s*({_DAY}([T ]{_CLOCK})?( BC)?|-?infinity)\s*")
_LOCAL_TIME = re.compile(rf"\s*{_CLOCK}\s*([AP]M)?\s*", re.IGNORECASE)
_DATE = re.compile(rf"\s*((\d{{8}}|{_DAY})( BC)?|-?infinity)\s*", re.IGNORECASE)
_OF_NOW = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_AS_ZEROS = str.maketrans("123456789", "0" * 9)

# Converts a value to one that the driver dumps; raises ValueError or TypeError to refuse it.
Convert = Callable[[Any], Any]


def time_converts(item: int, allowed: Conversions) -> Mapping[type, Convert]:
    """Conversions for a column of times, by type of value; none for a column of another type."""
    make = _CONVERTS.get(item)
    return {} if make is None else make(allowed)


def timestamp_converts(allowed: Conversions) -> dict[type, Convert]:
    """Conversions for ``timestamp``: aware times are converted to the sink's zone, or refused without one."""

    def local(value: datetime) -> datetime:
        if value.tzinfo is None:
            return value
        if allowed.timezone is None:
            raise ValueError(
                f"{value} has a time zone, which the column drops: make the column timestamptz, or give the sink "
                "timezone='UTC'"
            )
        return value.astimezone(allowed.timezone).replace(tzinfo=None)

    def text(value: str) -> Any:
        if _LOCAL_TIMESTAMP.fullmatch(value) or _LOCAL_TIMESTAMP.fullmatch(value := in_microseconds(value, allowed)):
            return value
        try:
            parsed = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"{value!r} is not an ISO 8601 timestamp") from None
        return local(parsed)

    return {datetime: local, str: text}


def is_usual(texts: str) -> bool:
    """Whether the text, or several joined ones, has no W, no Y and no seven digits in a row.

    Words for the time of reading ('now', 'today') have a W or a Y; a time finer than a microsecond has seven digits.
    """
    return not any(char in texts for char in "wWyY") and "0000000" not in texts.translate(_AS_ZEROS)


def in_microseconds(value: str, allowed: Conversions) -> str:
    """The text with its time cut to microseconds, if the sink allows that. Raises ValueError otherwise."""
    written = FINER.sub(r"\1", value)
    if written != value and not allowed.round:
        raise ValueError(
            f"{value[:80]!r} is finer than a microsecond, and Postgres stores no more digits: give the sink round=True "
            "to cut them"
        )
    return written


def _date_converts(_: Conversions) -> dict[type, Convert]:
    def text(value: str) -> str:
        if not _DATE.fullmatch(value):
            raise ValueError(f"{value!r} is not an ISO 8601 date; the column would drop a time of day")
        return value

    return {str: text}


def _zoned_converts(allowed: Conversions) -> dict[type, Convert]:
    def text(value: str) -> str:
        if is_usual(value):
            return value
        if _OF_NOW.search(value):
            raise ValueError(f"{value!r} would be another time if the record were read again: write the time itself")
        return in_microseconds(value, allowed)

    return {str: text}


def _time_converts(allowed: Conversions) -> dict[type, Convert]:
    def local(value: time) -> time:
        if value.tzinfo is not None:
            raise ValueError(f"{value} has a time zone, which the column drops: make the column timetz")
        return value

    def text(value: str) -> str:
        if _LOCAL_TIME.fullmatch(value) or _LOCAL_TIME.fullmatch(value := in_microseconds(value, allowed)):
            return value
        raise ValueError(f"{value!r} is not a time of day alone; the column would drop a zone or a date")

    return {time: local, str: text}


_CONVERTS: Mapping[int, Callable[[Conversions], dict[type, Convert]]] = {
    DATE: _date_converts,
    TIME: _time_converts,
    TIMETZ: _zoned_converts,
    TIMESTAMP: timestamp_converts,
    TIMESTAMPTZ: _zoned_converts,
}
