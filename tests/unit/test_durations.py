"""Lengths of time, as command, console and messages show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from seekpoint.durations import format_ago, format_duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_660, "1 h 1 min"),
        (timedelta(hours=47, minutes=59), "47 h 59 min"),
        (172_800, "2 d"),
        (timedelta(days=3, hours=5, minutes=59), "3 d 5 h"),
    ],
)
def test_a_length_of_time_has_its_two_largest_units(value: float | timedelta, text: str) -> None:
    assert format_duration(value) == text


def test_how_long_ago_a_moment_was() -> None:
    assert format_ago(datetime.now(UTC) - timedelta(days=2, hours=1, minutes=30)) == "2 d 1 h ago"
