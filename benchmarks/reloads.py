"""Seconds under the lock, by strategy and by how much has changed, and of the steps before the lock.

python benchmarks/reloads.py [--quick]

The live table is what older code made: 0 to 100 percent of the rows have another amount. No worker runs, so the lock is
held only for the cut-over itself; ``make demo-reload`` has workers, and records under the lock. After each cut-over the
table must equal the topic, in every column.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine

import rebuild
from demo.reload.show import Timed
from peers import kinds
from rebuild import KAFKA
from seekpoint.jobs.reload import LocalStager, Reload
from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from setting import DSN, RECORDS
from stage import arguments, say
from subject import KIND

CHANGED = (0, 1, 10, 100)  # percent


def fill(percent: int) -> None:
    """Create the table as older code left it."""
    source = kinds.expect(KIND, DSN, RECORDS)
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {KIND.name} (id bigint PRIMARY KEY, amount bigint)".encode())
        connection.execute(
            f"INSERT INTO {KIND.name} SELECT id, amount + (mod(id, 100) < {percent})::int FROM {source} "
            f"ORDER BY id".encode()
        )
        connection.execute(f"VACUUM ANALYZE {KIND.name}".encode())
        connection.execute("CHECKPOINT")


def drop() -> None:
    """Drop the table if it exists."""
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {KIND.name}".encode())


class Steps:
    """How long each step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time one step."""
        began = time.monotonic()
        yield
        self.seconds[f"{name}_seconds"] = round(time.monotonic() - began, 3)


def reload(engine: Engine, strategy: str, percent: int) -> dict[str, Any]:
    """Reload a new table once; returns how long its steps took."""
    drop()
    fill(percent)
    rebuild.apply_all(engine, KIND)
    sources = Reload([rebuild.pipeline()], engine, KAFKA).sources
    timed = Timed(LocalStager(engine, DEFAULT_SCHEMA, KAFKA, sources))
    job = Reload([rebuild.pipeline()], engine, KAFKA, stager=timed, max_wait=600.0)
    driver, step = job.open(strategy=strategy, reason="benchmark"), Steps()
    with step("staged_and_indexed"):
        job.stage(driver)
    with CatchUp(driver, job.sources, KAFKA) as rounds:
        with step("followed"):
            job.catch_up(driver, rounds)
        if strategy == "merge":
            with step("compared"):
                comparison = job.compare(driver, rounds).tables[0]
            assert comparison.different == sum(n % 100 < percent for n in range(1, RECORDS + 1))
        cut = job.cut_over(driver, rounds)
    job.runs.drop(driver.run.id)
    kinds.verify(KIND, DSN, RECORDS)
    return {
        "lock_seconds": round(cut.lock_seconds, 4),
        "keys_under_lock": cut.keys,
        "staging_rows_per_second": round(timed.rows / timed.seconds),
        **step.seconds,
    }


def verify(engine: Engine) -> dict[str, Any]:
    """Time a verification, which publishes nothing: how long an operator waits for its result."""
    drop()
    fill(0)
    rebuild.apply_all(engine, KIND)
    step = Steps()
    with step("verify"):
        result = Reload([rebuild.pipeline()], engine, KAFKA).verify()
    assert result.is_empty
    return dict(step.seconds)


def main() -> None:
    """Measure every case."""
    arguments(__doc__).parse_args()
    cases: list[tuple[str, str, int]] = [
        *(("merge", "any keys", percent) for percent in CHANGED),
        ("swap", "", 100),
    ]
    with rebuild.ledger() as engine:
        for strategy, keys, percent in cases:
            mode = ", ".join(filter(None, [f"{RECORDS:,} rows", strategy, f"{percent} % changed", keys]))
            say("reload", mode, records=RECORDS, **reload(engine, strategy, percent))
        say("reload", f"{RECORDS:,} rows, verify", records=RECORDS, **verify(engine))
        drop()


if __name__ == "__main__":
    main()
