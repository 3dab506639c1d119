"""A worker with ``Accumulate`` or ``Upsert``: adds payments to the sums of their keys, or replaces rows. Exactly once.

python benchmarks/accumulate.py [--keys 100000]             a table with a row for each key
python benchmarks/accumulate.py [--keys 100000] --upsert    the same table, whose rows are replaced
python benchmarks/accumulate.py --keys 1                    one key, which all workers write (BENCH_PARALLELISM)
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import psycopg

from peers import kinds
from seekpoint import Accumulate, Json, Pipeline, Upsert
from setting import DSN, LIMIT, RECORDS
from subject import KIND
from worker_pool import measure

TABLE = "bench_sums"
COLUMNS = ["key", "payments", "accounts"]
SPREAD = 7_368_787  # a prime: neighbours in the log have distant keys


def keys() -> int:
    """The number of keys, from the environment that workers inherit."""
    return int(os.environ.get("BENCH_KEYS", "100000"))


def row(record: Any) -> tuple[int, int, int]:
    """A payment's key, and its addends: one payment, and its account's number."""
    return record.value.id * SPREAD % keys(), 1, record.value.account


def accumulating(group: str) -> Pipeline:
    """Topic to sums."""
    sink = Accumulate(TABLE, key=["key"], add=["payments", "accounts"], row=row)
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[sink])


def upserting(group: str) -> Pipeline:
    """Topic to the newest row of each key; offsets of different partitions are not compared."""
    sink = Upsert(TABLE, key=["key"], columns=COLUMNS, row=row)
    return Pipeline(group, topics=KIND.name, value=Json(KIND.record), sinks=[sink])


def fill() -> None:
    """Create the table with a row of zeros for each key."""
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
        connection.execute(f"CREATE TABLE {TABLE} (key bigint, payments bigint, accounts bigint)".encode())
        connection.execute(f"INSERT INTO {TABLE} SELECT n, 0, 0 FROM generate_series(0, {keys() - 1}) n".encode())
        connection.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (key)".encode())
        connection.execute(f"VACUUM ANALYZE {TABLE}".encode())
        connection.execute("CHECKPOINT")


def check(*, is_upsert: bool) -> None:
    """Raise AssertionError unless each key has the sums of its payments, or the row of an upsert."""
    expected = kinds.expect(KIND, DSN, RECORDS)
    sums = (
        f"SELECT id * {SPREAD} % {keys()}, count(*), sum(account) FROM {expected} WHERE id <= {LIMIT} GROUP BY 1"
        if not is_upsert
        else f"SELECT DISTINCT id * {SPREAD} % {keys()}, 1, 1 FROM {expected} WHERE id <= {LIMIT}"
    )
    rows = f"SELECT key, payments, {'1' if is_upsert else 'accounts'} FROM {TABLE} WHERE payments > 0"
    with psycopg.connect(DSN) as connection:
        query = f"SELECT count(*) FROM (({sums}) EXCEPT ({rows}) UNION ALL (({rows}) EXCEPT ({sums}))) d"
        differing = connection.execute(query.encode()).fetchone()
    assert differing == (0,), f"{differing} keys differ"


def main() -> None:
    """Fill the table, move the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--upsert", action="store_true")
    options = parser.parse_args()
    os.environ["BENCH_KEYS"] = str(options.keys)
    fill()
    name, make = ("Upsert", upserting) if options.upsert else ("Accumulate", accumulating)
    subject = name.lower()
    measure(subject, f"{name}, {options.keys:,} keys", make, verify=lambda: check(is_upsert=options.upsert), key=True)


if __name__ == "__main__":
    main()
