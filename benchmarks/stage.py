"""Shared by the operational questions: servers, topic and table, worker and feeder processes, the JSON row.

A script that measures members of a group starts them as separate processes (``worker_process.py``), which report their
events with times of the machine's monotonic clock, so that these can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import psycopg

from demo.wire import create_topic
from seekpoint.testing.child_process import ChildProcess, Report, start_python
from seekpoint.testing.servers.pair import start_pair
from seekpoint.testing.servers.postgres import start_postgres, url_of
from setting import upgrade

POSTGRES = {"shared_buffers": "1GB", "max_wal_size": "8GB"}  # which are usually raised for many writes
TABLE = "orders"
COLUMNS = "id bigint, made bigint, account integer, amount numeric, kind text, at timestamptz"


@dataclass(frozen=True)
class Stage:
    """The servers of one run. ``name`` is random, for topics and groups, so that runs can share servers."""

    brokers: str
    url: str
    name: str

    @property
    def dsn(self) -> str:
        return url_of(self.url).set(drivername="postgresql").render_as_string(hide_password=False)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def topic(self, name: str, partitions: int) -> str:
        """Create a topic, and return its name."""
        full = f"{name}-{self.name}"
        create_topic(self.brokers, full, partitions)
        return full

    def fresh_table(self, *, key: str = "", more: str = "") -> None:
        """Create an empty table and the ledger's schema, and a checkpoint, so that the server is quiet."""
        primary = f", PRIMARY KEY ({key})" if key else ""
        with self.connect() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
            connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS}{more}{primary})".encode())
            connection.execute("CHECKPOINT")
        upgrade(self.url)

    def rows(self) -> tuple[int, int]:
        """How many rows the table has, and how many different ids."""
        with self.connect() as connection:
            counts = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {TABLE}".encode()).fetchone()
        assert counts is not None
        return counts[0], counts[1]

    def wait_for_rows(self, records: int, timeout: float = 600) -> None:
        """Wait until the table has this many rows."""
        deadline, pause = monotonic() + timeout, threading.Event()
        while (count := self.rows()[0]) < records:
            assert monotonic() < deadline, f"{count} of {records} rows after {timeout} s"
            pause.wait(0.2)

    def parked(self, group: str) -> int:
        """How many dead letters the group has."""
        with self.connect() as connection:
            asked = "SELECT count(*) FROM seekpoint.dead_letter WHERE consumer_group = %s"
            row = connection.execute(asked, [group]).fetchone()
        assert row is not None
        return int(row[0])

    def start(self, **order: Any) -> BenchProcess:
        """Start another process; ``worker_process.py`` describes its order."""
        return BenchProcess({"brokers": self.brokers, "database": self.url, **order})

    def fill(self, topic: str, partitions: int, records: int) -> float:
        """Produce ``records`` records by two processes; returns the average bytes of a value."""
        feed = {"topic": topic, "partitions": partitions, "rate": 0, "producer": {"linger.ms": 20}}
        feeders = [
            self.start(feed=(records + 1 - first) // 2, first=first, step=2, **feed) for first in range(min(2, records))
        ]
        for feeder in feeders:
            feeder.finish()
        reports = [feeder.all("Fed")[0] for feeder in feeders]
        assert sum(t["records"] for t in reports) == records
        return float(sum(t["bytes"] for t in reports) / records)


# Kafka's default: a broker that waits a second for a processor is not fenced.
PATIENT = {"broker.session.timeout.ms": "9000"}


@contextmanager
def servers(*, kafka: bool = True, properties: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """New servers, or those that BENCH_BROKERS and BENCH_URL name."""
    brokers, url = os.environ.get("BENCH_BROKERS", ""), os.environ.get("BENCH_URL", "")
    with ExitStack() as started:
        if kafka and not (brokers and url):
            kafka_properties = {**PATIENT, **(properties or {})}
            pair = started.enter_context(start_pair(own=True, settings=POSTGRES, properties=kafka_properties))
            brokers, url = pair.kafka.bootstrap, str(pair.postgres.url)
        elif not url:
            url = str(started.enter_context(start_postgres(POSTGRES, own=True)).url)
        yield Stage(brokers, url, secrets.token_hex(4))


def arguments(about: str | None) -> argparse.ArgumentParser:
    """The options that all scripts share; a script adds its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: to check that it works, roughly")
    return parser


def say(subject: str, mode: str, **figures: Any) -> None:
    """Print one row, with the machine's load, which explains some figures."""
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"subject": subject, "mode": mode, **figures, "load_of_machine": load}), flush=True)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def ms(name: str, seconds: Sequence[float], *shares: float) -> dict[str, float]:
    """``{name}_p50_ms`` and so on, and ``{name}_max_ms``; empty without values."""
    if not seconds:
        return {}
    figures = {f"{name}_p{share * 100:g}_ms": round(percentile(seconds, share) * 1000, 3) for share in shares or (0.5,)}
    return {**figures, f"{name}_max_ms": round(max(seconds) * 1000, 3)}


def median_ms(seconds: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return round(statistics.median(seconds) * 1000, 3)


class BenchProcess(ChildProcess):
    """A process that gets an order, reports its events, and ends with SIGTERM."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.passed = 0  # offsets that it committed
        program = Path(__file__).with_name("worker_process.py")
        super().__init__(start_python(str(program)), order)

    def reported(self, report: Report) -> None:
        """Count the committed offsets."""
        super().reported(report)
        self.passed += sum(end - start for _, start, end in report.get("spans", ()))

    def wait_until_passed(self, records: int, timeout: float = 3600) -> None:
        """Wait until it has committed this many offsets."""
        self.wait_until(lambda: self.passed >= records, f"{records:,} records", timeout)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.pid)

    def kill_now(self) -> float:
        """Send SIGKILL; returns when, in seconds."""
        time = monotonic()
        self.kill()
        return time

    def stop(self) -> float:
        """Send SIGTERM and wait for exit code 0; returns when it was sent, in seconds."""
        time = monotonic()
        self.terminate()
        self.finish()
        return time

    def finish(self, timeout: float = 1200) -> None:
        """Wait for exit code 0."""
        assert self.ended(timeout) == 0, self.tail()
