"""The pipeline of the reload chaos, imported by name: version N multiplies each amount by N, and stores N as factor.

A second table has sums: each record counts 1, a tombstone -1. ``RELOAD_CHAOS`` in the environment has the version and
the group; in a driver also the folder for its tasks' process ids, by which they are killed. Tasks are slow with their
first records, so that a kill hits them.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from seekpoint import Accumulate, Json, Pipeline, Upsert
from seekpoint.records import Record
from support.reload_orders import Order, OrderKey

NAME = f"{__name__}:orders"
BUCKETS = 10  # of ids, with a row of sums for each
SLOW, OF = 0.02, 5  # seconds, each so many records
SLOW_RECORDS = 200  # of a task's process

_seen = 0


def orders() -> Pipeline:
    """The pipeline that the environment describes."""
    what = json.loads(os.environ["RELOAD_CHAOS"])
    version, marks, driver = what["version"], what.get("marks"), os.environ.get("RELOAD_CHAOS_DRIVER")
    is_task = marks is not None and str(os.getpid()) != driver

    def row(record: Record[Any, Any]) -> dict[str, Any]:
        if is_task:
            _take_time(Path(marks))
        order = record.value
        return {"id": order.id, "amount": order.amount * version, "at": order.at, "factor": version}

    sink = Upsert((what["schema"], "orders"), key=["id"], columns=["id", "amount", "at", "factor"], row=row)

    def added(record: Record[Any, Any]) -> dict[str, Any]:
        order = record.value
        return {"bucket": order.id % BUCKETS, "records": 1, "amount": order.amount * version}

    def taken(record: Record[Any, Any]) -> dict[str, Any]:
        return {"bucket": record.key.id % BUCKETS, "records": 1, "amount": None}

    path, add = (what["schema"], "totals"), ["records", "amount"]
    totals = Accumulate(path, key=["bucket"], add=add, row=added, subtract=taken)
    return Pipeline(
        what["group"],
        topics=what["topic"],
        value=Json(Order, tombstones=True),
        key=Json(OrderKey),
        sinks=[sink, totals],
        version=version,
    )


def _take_time(marks: Path) -> None:
    global _seen  # noqa: PLW0603 -- of this process
    _seen += 1
    if _seen == 1:
        (marks / str(os.getpid())).touch()
    if _seen <= SLOW_RECORDS and _seen % OF == 0:
        threading.Event().wait(SLOW)
