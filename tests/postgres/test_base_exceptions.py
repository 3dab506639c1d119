"""What is no Exception, and still a record's fault: a panic of a library in Rust, a cancelled task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection

from seekpoint import Batch, Json, Pipeline, Retry
from support.sink_tables import TOPIC, SinkTables, orders


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize("kind", [PanicException, asyncio.CancelledError])
@pytest.mark.parametrize("strategy", ["row", "handler"])
def test_it_ends_no_worker(sink_tables: SinkTables, kind: type[BaseException], strategy: str) -> None:
    def row(record: Any) -> dict[str, Any]:
        if record.value["id"] == 2:
            raise kind("assertion failed")
        return {"id": record.value["id"]}

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        for record in batch:
            row(record)

    if strategy == "row":
        how: dict[str, Any] = {"sinks": [sink_tables.append("id int", columns=["id"], row=row)]}
    else:
        how = {"handle": handle, "retry": Retry(attempts=1)}
    pipeline = Pipeline("g", topics=TOPIC, value=Json(), on_poison="dead_letter", **how)
    done = sink_tables.process(pipeline, *orders(b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'))
    assert [(aside.offset, aside.failure.cause) for aside in done.dead_letters] == [(1, strategy)]
    assert done.records == 2
