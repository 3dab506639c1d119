"""The settings from the environment: servers, and the records to move. ``run.py`` sets them for every question."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from itertools import count, islice

import msgspec
from sqlalchemy import create_engine

from demo.flights import Flight, read_flights
from seekpoint import schema

BROKERS = os.environ.get("BENCH_BROKERS", "127.0.0.1:9092")
DSN = os.environ.get("BENCH_DSN", "host=127.0.0.1 port=5432 user=postgres dbname=postgres")
URL = os.environ.get("BENCH_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
TABLE = os.environ.get("BENCH_TABLE", "payments")  # one of the kinds of peers/kinds.py
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))  # in the topic
LIMIT = int(os.environ.get("BENCH_LIMIT", "0")) or RECORDS  # how many of them are written, for small batches
BATCH = int(os.environ.get("BENCH_BATCH", "10000"))  # records of a transaction
KEYED = os.environ.get("BENCH_KEY", "0") == "1"  # the table has a primary key
PARALLELISM = int(os.environ.get("BENCH_PARALLELISM", "1"))  # workers, slots, tasks or threads
IS_SYNCHRONOUS = os.environ.get("BENCH_SYNCHRONOUS", "1") == "1"  # synchronous_commit
IS_SERVICE = os.environ.get("BENCH_SERVICE", "0") == "1"  # Python's garbage collector keeps its default thresholds
STORED = int(os.environ.get("BENCH_STORED", "10000000"))  # rows of the table for payments_spread


def flights(records: int = RECORDS) -> Iterator[Flight]:
    """The flights, over and over, each time with new ids."""
    year = list(read_flights())
    again = (msgspec.structs.replace(f, id=f.id + lap * len(year)) if lap else f for lap in count() for f in year)
    return islice(again, records)


def upgrade(url: str = URL) -> None:
    """Create the ledger's tables."""
    engine = create_engine(url)
    schema.upgrade(engine)
    engine.dispose()


def cpu() -> float:
    """Seconds of processor time this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
