"""Encoders of whole columns, without a server."""

from __future__ import annotations

import psycopg
import pytest

from seekpoint.sinks.column_type import TIMESTAMPTZ, ColumnType
from seekpoint.sinks.conversions import EXACT
from seekpoint.sinks.encoders import ColumnEncoder, Unwritable
from seekpoint.sinks.event_values import of_event

ISO = ["2026-01-02T10:00:00Z", "2026-01-02 10:00:00.5+02:00", None]


@pytest.fixture(params=[None, of_event], ids=["rows", "events"])
def zoned(request: pytest.FixtureRequest) -> ColumnEncoder:
    column = ColumnType("timestamp with time zone", TIMESTAMPTZ, -1, 0, TIMESTAMPTZ, "D", "b")
    return ColumnEncoder("placed", column, EXACT, psycopg.adapters, "utf-8", event_rules=request.param)


def test_iso_texts_are_left_as_they_are(zoned: ColumnEncoder) -> None:
    assert zoned.values(ISO) == ISO
    texts = ISO[:-1]
    assert zoned.values(texts) is texts


def test_texts_with_a_y_are_left_as_they_are(zoned: ColumnEncoder) -> None:
    assert zoned.values([*ISO, "infinity", "2 May 2026 10:00+02"]) == [*ISO, "infinity", "2 May 2026 10:00+02"]


def test_one_text_that_depends_on_when_it_is_read_is_refused_among_others(zoned: ColumnEncoder) -> None:
    for word in ("now", "Today 10:00", "TOMORROW", "yesterday"):
        with pytest.raises(Unwritable, match=f"'placed' .*'{word}' would be another time"):
            zoned.values([*ISO, word, *ISO])
