"""Times for columns that have no zone, no time or no date: what such a column would drop is refused or converted."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time, tzinfo
from typing import Any

_DAY = r"\d{4,6}-\d\d-\d\d"
_CLOCK = r"\d\d?:\d\d(:\d\d([.,]\d+)?)?"
_LOCAL_TIMESTAMP = re.compile(rf"\s*({_DAY}([T ]{_CLOCK})?( BC)?|-?infinity)\s*")
_LOCAL_TIME = re.compile(rf"\s*{_CLOCK}\s*([AP]M)?\s*", re.IGNORECASE)
_HAS_CLOCK = re.compile(r"\d:\d\d")

Convert = Callable[[Any], Any]


def timestamp_converts(zone: tzinfo | None) -> dict[type, Convert]:
    """For ``timestamp``: by type of value; aware ones are converted to ``zone``, and refused where it is None."""

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
            return local(datetime.fromisoformat(value.strip()))
        except ValueError as error:
            if "time zone" in str(error):
                raise
            raise ValueError(f"{value!r} is no timestamp as ISO 8601 writes it") from None

    return {datetime: local, str: text}


def _date_of_datetime(value: datetime) -> Any:
    raise ValueError(f"{value} has a time of day, which the column drops: give its date()")


def _date_text(value: str) -> str:
    if _HAS_CLOCK.search(value):
        raise ValueError(f"{value!r} has a time of day, which the column drops: give the date alone")
    return value


def _time_of_datetime(value: datetime) -> Any:
    raise ValueError(f"{value} has a date, which the column drops: give its time()")


def _local_time(value: time) -> time:
    if value.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, which the column drops: make the column timetz")
    return value


def _time_text(value: str) -> str:
    if not _LOCAL_TIME.fullmatch(value):
        raise ValueError(f"{value!r} is no time of day without a zone or a date, which the column would drop")
    return value


DATE_CONVERTS: dict[type, Convert] = {datetime: _date_of_datetime, str: _date_text}
TIME_CONVERTS: dict[type, Convert] = {datetime: _time_of_datetime, time: _local_time, str: _time_text}
