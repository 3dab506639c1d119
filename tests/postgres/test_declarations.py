"""A declaration holds what the user wrote: what a worker learns of its table is that worker's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, create_engine, text

from seekpoint import Append, Json, Pipeline, Upsert, schema
from seekpoint.pipeline.sink import Sink
from seekpoint.sinks.arrow import AppendArrow
from support.batch_committer import BatchCommitter
from support.databases import new_database

# What column v is in each of the two databases, and what becomes of the same values there.
TYPES: dict[str, list[Any]] = {"text": ["1.5", "2"], "numeric(10, 2)": [Decimal("1.50"), Decimal("2.00")]}
SIZES = [1, 2, 150, 3]  # few rows in one statement, many by COPY


@pytest.fixture
def engines(seekpoint_dsn: str) -> Iterator[list[Engine]]:
    """Two databases, each with a ledger and the table ``t``."""
    with ExitStack() as stack:
        engines = []
        for kind in TYPES:
            engine = create_engine(stack.enter_context(new_database(seekpoint_dsn)))
            stack.callback(engine.dispose)
            schema.upgrade(engine)
            with engine.begin() as tx:
                tx.execute(text(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})"))
            engines.append(engine)
        yield engines


def state_of(sink: Any) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(sink).items()}


@pytest.mark.parametrize(
    "declare",
    [Append, AppendArrow, lambda table, **options: Upsert(table, key=["id"], **options)],
    ids=["Append", "AppendArrow", "Upsert"],
)
def test_two_workers_of_one_pipeline_write_two_databases_by_their_own_types(
    engines: list[Engine], group: str, declare: Callable[..., Sink]
) -> None:
    """One process, one pipeline object, a table with other types in each database: both workers' rows are right."""
    sink = declare("t", columns=["id", "v"])
    pipeline = Pipeline(group, topics="orders", value=Json(), sinks=[sink])
    before = state_of(sink), set(vars(pipeline))
    workers = [BatchCommitter(engine, "seekpoint", pipeline) for engine in engines]
    number = 0
    for size in SIZES:
        rows = [{"id": n, "v": ("1.5", "2")[n % 2]} for n in range(number, number + size)]
        for worker in workers:
            worker.apply(*rows)
        number += size
    for engine, values in zip(engines, TYPES.values(), strict=True):
        with engine.connect() as tx:
            stored = [tuple(row) for row in tx.execute(text("SELECT id, v FROM t ORDER BY id"))]
        assert stored == [(n, values[n % 2]) for n in range(number)]
    assert (state_of(sink), set(vars(pipeline))) == before
    for worker in workers:
        worker.committer.close()


class Order(msgspec.Struct):
    id: int
    v: str


class Note(msgspec.Struct):
    v: str
    id: int


def test_each_writer_learns_the_columns_of_its_own_first_row() -> None:
    sink: Append[Any, Any] = Append("t")
    first, other = sink.writer(), sink.writer()
    assert first.chunk_rows([Order(1, "a")], None, []) == [(1, "a")]
    assert other.chunk_rows([Note("b", 2)], None, []) == [("b", 2)]
    assert first.chunk_rows([Note("c", 3)], None, []) == [(3, "c")], "in the order of its first row"
    assert sink.written is None
