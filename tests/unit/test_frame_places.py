"""Which record a frame's row is of: rows of no record of the micro-batch are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from seekpoint.errors import FrameFailed
from seekpoint.jobs.frames import rows as frame_rows
from seekpoint.jobs.frames.rows import RowsPlan
from seekpoint.jobs.frames.rows import places as places_of
from seekpoint.sinks.conversions import EXACT

RANGES = [("a", 0, 10, 20), ("a", 2, 0, 5), ("b", 1, 7, 9)]


def places(*rows: tuple[str | None, int | None, int | None], ranges: Any = RANGES) -> list[int]:
    """The places of rows (topic, partition, offset); without a topic where none has one."""
    names = ["topic", "partition", "offset"] if rows[0][0] is not None else ["partition", "offset"]
    columns = {name: [row[-len(names) :][n] for row in rows] for n, name in enumerate(names)}
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    batch = pa.record_batch({name: pa.array(values, types[name]) for name, values in columns.items()})
    topical = len(names) == 3
    plan = RowsPlan("frame", ("s", "t"), [], {}, [], ranges, has_topics=topical, is_placed=True, conversions=EXACT)
    places: list[int] = places_of(plan, ranges, batch).to_pylist()
    return places


def test_each_row_has_the_place_of_its_partition() -> None:
    rows = [("a", 0, 10), ("b", 1, 8), ("a", 2, 4), ("a", 0, 19), ("a", 2, 0)]
    assert places(*rows) == [0, 2, 1, 0, 1]
    assert places((None, 2, 3), (None, 0, 11), ranges=RANGES[:2]) == [1, 0]


@pytest.mark.parametrize(
    "row",
    [
        ("a", 0, 9), ("a", 0, 20), ("a", 1, 0), ("b", 0, 8), ("b", 1, 9), ("c", 0, 10), ("a", 3, 0), ("a", -1, 0),
        ("a", None, 10), ("a", 0, None),
    ],
)  # fmt: skip
def test_a_row_of_no_record_is_refused_and_named(row: tuple[str, int | None, int | None]) -> None:
    with pytest.raises(
        FrameFailed, match=f"a row has topic {row[0]}, partition {row[1]}, offset {row[2]}, and the micro-batch"
    ):
        places(("a", 0, 10), row)


def test_a_null_in_a_column_that_the_sink_needs_is_refused_as_by_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "_exact", lambda _plan, _column, values, _type: values)
    batch = pa.record_batch({"id": pa.array([1, None], pa.int64())})
    table, columns = ("s", "t"), [("id", "key")]
    plan = RowsPlan("frame", table, columns, {}, ["key"], None, has_topics=False, is_placed=True, conversions=EXACT)
    unused: Any = None
    for sums, options in ((None, "key= and order_by="), (["n"], "key=")):
        with pytest.raises(FrameFailed, match=f"'key' is null in a row: the columns of {options} need a value"):
            frame_rows._send(unused, replace(plan, sums=sums), batch, 0, {"key": unused})
