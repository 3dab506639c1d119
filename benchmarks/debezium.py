"""A worker that applies Debezium's events in JSON, with ``Upsert(changes=True)``. Exactly once.

BENCH_TABLE=payments_changes python benchmarks/debezium.py             each event has its schema, about 2.4 KB
BENCH_TABLE=payments_changes_plain python benchmarks/debezium.py       without schemas, 0.5 KB; the types are declared

The events insert and update the payments that ``upsert.py`` writes from plain JSON. ``peers/connect.py`` applies the
same topics by Debezium's JDBC sink; ``run.py --only changes`` compares both.
"""

from __future__ import annotations

from peers.kinds import ROW
from seekpoint import Pipeline, Upsert
from seekpoint.codecs import Debezium
from subject import COLUMNS, KIND, fresh_table
from worker_pool import measure

IS_FRAMED = KIND.name == "payments_changes"


def pipeline(group: str) -> Pipeline:
    """Topic to table, by its key."""
    codec = Debezium() if IS_FRAMED else Debezium(types={field["field"]: field for field in ROW})
    sink = Upsert(KIND.name, key=["id"], columns=[*COLUMNS], changes=True)
    return Pipeline(group, topics=KIND.name, value=codec, key=codec, sinks=[sink])


if __name__ == "__main__":
    fresh_table(key=True)
    measure("debezium", f"Debezium's events {'with' if IS_FRAMED else 'without'} schemas", pipeline, key=True)
