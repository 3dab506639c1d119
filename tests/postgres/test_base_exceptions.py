"""What is no Exception, and still a record's fault: a panic of a library in Rust, a cancelled task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection

from seekpoint import Batch, Json, Pipeline
from support.sink_tables import TOPIC, Ground, orders


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize("kind", [PanicException, asyncio.CancelledError])
@pytest.mark.parametrize("road", ["row", "handler"])
def test_it_ends_no_worker(ground: Ground, kind: type[BaseException], road: str) -> None:
    def row(record: Any) -> dict[str, Any]:
        if record.value["id"] == 2:
            raise kind("assertion failed")
        return {"id": record.value["id"]}

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        for record in batch:
            row(record)

    if road == "row":
        how: dict[str, Any] = {"sinks": [ground.append("id int", columns=["id"], row=row)]}
    else:
        how = {"handle": handle}
    pipeline = Pipeline("g", topics=TOPIC, value=Json(), on_poison="dead_letter", **how)
    done = ground.process(pipeline, *orders(b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'))
    assert [(aside.offset, aside.failure.cause) for aside in done.dead_letters] == [(1, road)]
    assert done.records == 2
