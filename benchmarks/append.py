"""A worker with ``Append``: it streams into COPY, rows and offsets in one transaction. Exactly once."""

from __future__ import annotations

from seekpoint import Append, Json, Pipeline
from setting import IS_SYNCHRONOUS
from subject import KIND, fresh_table
from worker_pool import measure


def pipeline(group: str) -> Pipeline:
    """Topic to table."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[Append(KIND.name)])


if __name__ == "__main__":
    fresh_table()
    measure("append", "Append", pipeline, synchronous_commit=IS_SYNCHRONOUS)
