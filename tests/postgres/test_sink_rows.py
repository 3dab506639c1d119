"""The rows that ``Committed`` counts are those in the tables, in whatever parts a batch was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from seekpoint import Append, Json, OnPoison, Pipeline, Upsert, events
from seekpoint.events import Event
from seekpoint.records import RawRecord
from seekpoint.sinks.arrow import AppendArrow
from support.sink_tables import TOPIC, SinkTables, orders


def numbers(*values: object) -> list[RawRecord]:
    return orders(*(str(value).encode() for value in values))


def counted(sink_tables: SinkTables, pipeline: Pipeline, records: Sequence[RawRecord]) -> dict[str, int]:
    seen: list[Event] = []
    sink_tables.process(pipeline, *records, observe=(seen.append,))
    (committed,) = [event for event in seen if isinstance(event, events.Committed)]
    return {name.rpartition(".")[2]: count for name, count in committed.rows.items()}


def pipeline(group: str, *sinks: Any, **more: Any) -> Pipeline:
    return Pipeline(group, topics=TOPIC, value=Json(), sinks=sinks, on_poison=OnPoison.DEAD_LETTER, **more)


@pytest.mark.parametrize("count", [3, 500])
@pytest.mark.parametrize("bad", [False, True])
def test_of_one_sink(sink_tables: SinkTables, group: str, count: int, bad: bool) -> None:
    """In one statement, by COPY, and bisected."""
    table = sink_tables.create("v int CHECK (v <> 2)", "plain")
    sink: Append[Any, Any] = Append(table, columns=["v"], rows=lambda r: [(r.value,)] * 2)
    values = [n for n in range(count) if bad or n != 2]
    assert counted(sink_tables, pipeline(group, sink), numbers(*values)) == {
        "plain": len(sink_tables.rows("v", name="plain"))
    }
    assert len(sink_tables.rows("v", name="plain")) == 2 * (count - 1)


def test_of_several_sinks_of_a_table_and_beside_a_handler(sink_tables: SinkTables, group: str) -> None:
    table, other = sink_tables.create("v int", "twice"), sink_tables.create("v int PRIMARY KEY", "once")
    sinks = [Append(table, columns=["v"], row=lambda r: (r.value,)) for _ in range(2)]
    upsert: Upsert[Any, Any] = Upsert(other, key=["v"], columns=["v"], row=lambda r: (r.value,))
    declared = pipeline(group, *sinks, upsert, handle=lambda tx, batch: None)
    assert counted(sink_tables, declared, numbers(1, 2, 3)) == {"twice": 6, "once": 3}


def test_of_whole_tables(sink_tables: SinkTables, group: str) -> None:
    sink: AppendArrow[Any, Any] = AppendArrow(
        sink_tables.create("v int", "arrow"), row=lambda r: pa.table({"v": pa.array([r.value] * r.value, pa.int32())})
    )
    assert counted(sink_tables, pipeline(group, sink), numbers(3, 0, 4)) == {
        "arrow": len(sink_tables.rows("v", name="arrow"))
    }
