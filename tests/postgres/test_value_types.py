"""A value of another type than the statement expects is its record's fault, and not the program's."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, Connection, Engine, Numeric, column, table, text

from seekpoint import Batch, Json, Pipeline
from support.sink_tables import TOPIC, SinkTables, orders

VALUES = (b"true", b'{"a": 1}', b"[1]", b'[{"a": 1}]')


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("value", VALUES)
def test_a_value_of_another_type_is_its_records_fault(
    seekpoint_engine: Engine, seekpoint_schema: str, value: bytes, typed: bool
) -> None:
    sink_tables = SinkTables(seekpoint_engine, seekpoint_schema)
    schema, name = sink_tables.create("id bigint, v numeric")
    there = table(name, column("id", BigInteger), column("v", Numeric), schema=schema)
    plain = text(f'INSERT INTO "{schema}"."{name}" (id, v) VALUES (:id, :v)')

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(there.insert() if typed else plain, [{"id": r.value["id"], "v": r.value["v"]} for r in batch])

    pipeline = Pipeline("g", topics=TOPIC, value=Json(), handle=handle, on_poison="dead_letter")
    done = sink_tables.process(
        pipeline, *orders(b'{"id": 1, "v": 1}', b'{"id": 2, "v": %s}' % value, b'{"id": 3, "v": 3}')
    )
    assert sink_tables.rows("id") == [(1,), (3,)]
    assert [(aside.offset, aside.failure.cause) for aside in done.dead_letters] == [(1, "database")]


def test_a_row_met_twice_by_one_statement_is_divided(seekpoint_engine: Engine, seekpoint_schema: str) -> None:
    sink_tables = SinkTables(seekpoint_engine, seekpoint_schema)
    schema, name = sink_tables.create("id int PRIMARY KEY, v int")
    upsert = text(
        f'INSERT INTO "{schema}"."{name}" SELECT * FROM unnest(CAST(:ids AS int[]), CAST(:vs AS int[])) '
        "ON CONFLICT (id) DO UPDATE SET v = excluded.v"
    )

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        tx.execute(upsert, {"ids": [r.value["id"] for r in batch], "vs": [r.value["v"] for r in batch]})

    sink_tables.process(
        Pipeline("g", topics=TOPIC, value=Json(), handle=handle), *orders(b'{"id": 1, "v": 1}', b'{"id": 1, "v": 2}')
    )
    assert sink_tables.rows("id", "v") == [(1, 2)]
