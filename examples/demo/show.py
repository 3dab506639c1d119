"""The whole performance: servers, topic, table, two workers, faults, comparison, report."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic

from rich.console import Console
from sqlalchemy import create_engine

from demo.bar import bar
from demo.faults import FAULTS, Script
from demo.flights import PARTITIONS, RECORDS, TOPIC, Feed, read_flights, table
from demo.report import Report, compare
from demo.wire import create_topic
from demo.worker_pool import WorkerPool
from seekpoint import schema
from seekpoint.errors import ConfigError
from seekpoint.testing.servers.pair import Pair, start_pair
from seekpoint.testing.servers.process import Folder

SMALLEST = 5_000  # records: fewer would leave a fault without any in flight

# Small batches make many transactions to be killed in; the times make faults short, and are the only ones changed.
LIMITS = {"batch_records": 2_000, "claim_wait": 1.0, "transaction_age": 5.0}
TIMES = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 400}


def perform(records: int = RECORDS, *, console: Console) -> Report:
    """Run the demo on servers of its own, and return what it has found. Progress goes to ``console``.

    Raises ConfigError for a missing data set or a number of records that is too small, ServerFailed where a
    server cannot be started, and DemoFailed where a step cannot be brought about.
    """
    if not SMALLEST <= records <= RECORDS:
        raise ConfigError(f"the demo takes {SMALLEST:,} to {RECORDS:,} records, not {records:,}")
    next(read_flights(1))  # a missing data set is said before servers are started
    with console.status("starting Postgres and Kafka"):
        pair = start_pair(own=True, progress=console.print)
    with pair, closing(Folder("demo")) as folder:
        console.print(pair.describe(), highlight=False)
        return _perform(pair, records, folder.path, console)


def _perform(pair: Pair, records: int, folder: Path, console: Console) -> Report:
    engine = create_engine(pair.postgres.url)
    try:
        schema.upgrade(engine)
        table.metadata.create_all(engine)
        create_topic(pair.kafka.bootstrap, TOPIC, PARTITIONS)
        kafka = {"bootstrap.servers": pair.kafka.bootstrap, **TIMES}
        order = {"database": pair.postgres.url, "kafka": kafka, "limits": LIMITS}
        with (
            WorkerPool(order, PARTITIONS, folder) as pool,
            bar(console, "records committed", records) as (update, tell),
        ):
            pool.on_progress = update
            pool.start("A")
            pool.start("B")
            pool.wait("both workers to share the partitions", lambda: pool.settled)
            feed = Feed(pair.kafka.bootstrap, read_flights(records))
            began = monotonic()
            outcome = Script(pool, feed, engine, records // (FAULTS + 1), tell).run()
            feed.send()
            pool.wait("every record to be committed", lambda: pool.committed == feed.sent)
            seconds = monotonic() - began
            exit_codes = tuple(pool.stop())
        with console.status("comparing the table with the file, row by row"):
            comparison = compare(engine, read_flights(records))
    finally:
        engine.dispose()
    return Report(comparison, outcome, seconds, pair.kafka.describe(), pair.postgres.describe(), exit_codes)
