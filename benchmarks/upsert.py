"""A worker with ``Upsert``, by how many of the keys are in the table already. Exactly once.

python benchmarks/upsert.py [--conflicts PERCENT]    PERCENT of the records find a row of their key
python benchmarks/upsert.py --large                  BENCH_STORED rows, one record in five is new (payments_spread)

Ready rows by each of the sink's write strategies, without Kafka: ``write_strategies.py``.
"""

from __future__ import annotations

import argparse
from typing import Any

import psycopg

from peers import kinds
from seekpoint import Json, Pipeline, Upsert
from setting import DSN, LIMIT, RECORDS, STORED
from subject import COLUMNS, KIND, fresh_table
from worker_pool import measure


def pipeline(group: str) -> Pipeline:
    """Topic to table, by its key."""
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[Upsert(KIND.name, key=["id"])])


def fill(conflicts: int, *, large: bool, options: str = "") -> None:
    """Fill the table, with these storage ``options``; the stored rows differ from the records."""
    fresh_table(key=not large)
    expected = kinds.expect(KIND, DSN, RECORDS)
    with psycopg.connect(DSN, autocommit=True) as connection:
        if large:
            connection.execute(
                f"INSERT INTO {KIND.name} SELECT n, n % 50000, 1, 'old', '2026-01-01Z', repeat('x', 55)"
                f" FROM generate_series(1, {STORED}) n".encode()
            )
            connection.execute(f"ALTER TABLE {KIND.name} ADD PRIMARY KEY (id)".encode())
        else:
            if options:
                connection.execute(f"ALTER TABLE {KIND.name} SET ({options})".encode())
            connection.execute(
                f"INSERT INTO {KIND.name} (id, {COLUMNS[1]}) SELECT id, 0 FROM {expected}"
                f" WHERE mod(id, 100) < {conflicts}".encode()
            )
        connection.execute(f"VACUUM ANALYZE {KIND.name}".encode())
        connection.execute("CHECKPOINT")


def main() -> None:
    """Fill the table, move the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conflicts", type=int, default=0, metavar="PERCENT")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    fill(options.conflicts, large=options.large)
    details: dict[str, Any] = {"key": True, "conflicts_percent": 80 if options.large else options.conflicts}
    if options.large:
        assert LIMIT == RECORDS, "BENCH_LIMIT cannot be used with --large"
        measure(
            "upsert", "Upsert, 20 % new", pipeline, stored=STORED, added=RECORDS // 5, stored_rows=STORED, **details
        )
    else:
        measure("upsert", f"Upsert, {options.conflicts} % conflicts", pipeline, **details)


if __name__ == "__main__":
    main()
