"""What the subjects share: where the servers are, the table, the records, the clock and the one JSON row."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from itertools import count, islice
from time import monotonic
from typing import Any

import msgspec
import psycopg
from sqlalchemy import create_engine

from seekpoint.dev.demo.flights import Flight, read_flights, table

BROKERS = os.environ.get("BENCH_BROKERS", "127.0.0.1:9092")
DSN = os.environ.get("BENCH_DSN", "host=127.0.0.1 port=5432 user=postgres dbname=postgres")
URL = os.environ.get("BENCH_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
COLUMNS = Flight.__struct_fields__


def flights(records: int = RECORDS) -> Iterator[Flight]:
    """The flights, over and over, each time with new ids."""
    year = list(read_flights())
    again = (msgspec.structs.replace(f, id=f.id + lap * len(year)) if lap else f for lap in count() for f in year)
    return islice(again, records)


def fresh_table() -> None:
    """An empty table and a quiet server."""
    engine = create_engine(URL, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        table.drop(connection, checkfirst=True)
        table.create(connection)
        connection.exec_driver_sql("ALTER TABLE flights SET (autovacuum_enabled = false)")
        connection.exec_driver_sql("CHECKPOINT")
    engine.dispose()


def rows() -> tuple[int, int]:
    """How many rows the table has, and how many different ids."""
    with psycopg.connect(DSN) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT id) FROM flights").fetchone()
    assert found is not None
    return found[0], found[1]


def cpu() -> float:
    """Seconds of processor time this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Clock:
    """Starts with the first record in hand."""

    def __init__(self) -> None:
        self.began: float | None = None
        self._cpu = 0.0

    def start(self) -> None:
        """The first call counts."""
        if self.began is None:
            self.began, self._cpu = monotonic(), cpu()

    def report(self, subject: str, mode: str, records: int, **more: Any) -> None:
        """Print the row; fails if the table does not hold each record once."""
        assert self.began is not None
        seconds, used = monotonic() - self.began, cpu() - self._cpu
        found = rows()
        assert found == (records, records), (
            f"{subject}: the table has {found[0]} rows, {found[1]} different, of {records}"
        )
        row = {
            "subject": subject,
            "mode": mode,
            "records": records,
            "seconds": round(seconds, 3),
            "records_per_second": round(records / seconds),
            "cpu_seconds": round(used, 2),
            **more,
        }
        print(json.dumps(row), flush=True)
