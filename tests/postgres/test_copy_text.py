"""Many rows at once are sent as the driver sends each of them, whatever values they have."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.copy import Writer
from sqlalchemy import Engine

from seekpoint.pipeline.sink import Row
from seekpoint.sinks import copy as ours

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=5),  # NUL and lone surrogates among them
    st.text("\b\t\n\v\f\r\\N", max_size=5),
    st.binary(max_size=3),
    st.decimals(),
    st.datetimes(timezones=st.none() | st.just(dt.UTC)),
    st.dates(),
    st.uuids(),
    st.lists(st.integers(0, 2**70), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
    st.builds(object),  # nothing writes that
)


class Sent(Writer):
    """What would go to the server."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += bytes(data)


@pytest.fixture
def driver(seekpoint_engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    with seekpoint_engine.connect() as connection:
        yield ours.driver_of(connection)


def outcome(driver: psycopg.Connection[Any], rows: list[Row], write: Callable[[Any, list[Row]], object]) -> object:
    sent = Sent()
    copy = psycopg.Copy(ours.writing_cursor(driver), writer=sent)
    try:
        write(copy, rows)
        copy.finish(None)
    except Exception as error:  # noqa: BLE001 -- dumpers raise what they like
        return type(error), str(error).split(" at 0x")[0]
    return sent.data


@given(st.lists(st.tuples(VALUES, VALUES), max_size=3))
def test_the_same_bytes_or_the_same_error(driver: psycopg.Connection[Any], rows: list[Row]) -> None:
    expected = outcome(driver, rows, lambda copy, rows: [copy.write_row(row) for row in rows])
    assert outcome(driver, rows, lambda copy, rows: ours.write_rows(copy, iter(rows))) == expected
    with patch.object(ours, "_format", None):
        assert outcome(driver, rows, lambda copy, rows: ours.write_rows(copy, iter(rows))) == expected


def test_the_driver_still_has_what_makes_it_fast() -> None:
    assert ours._format is not None
