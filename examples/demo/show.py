"""The demonstration: servers, topic, table, two workers, faults, comparison, report."""

from __future__ import annotations

from time import monotonic

from rich.console import Console

from demo.bar import bar
from demo.faults import FAULTS, Script
from demo.flights import PARTITIONS, RECORDS, TOPIC, Feed, read_flights, table
from demo.report import Report, compare
from demo.servers import servers
from demo.wire import create_topic
from demo.worker_pool import WorkerPool
from seekpoint import schema

# Small batches make many transactions in which to kill; the timeouts make faults short. No other settings are changed.
LIMITS = {"batch_records": 2_000, "claim_wait": 1.0, "transaction_age": 5.0}
TIMES = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 400}


def perform(records: int = RECORDS, *, console: Console) -> Report:
    """Run the demo on its own servers, and return the results. Progress goes to ``console``.

    Raises ConfigError for a missing data set or a number of records out of range, ServerFailed if a server cannot be
    started, and DemoFailed if a step fails.
    """
    with servers(records, console) as (pair, engine, folder):
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
            pool.start_two()
            feed = Feed(pair.kafka.bootstrap, read_flights(records))
            began = monotonic()
            outcome = Script(pool, feed, engine, records // (FAULTS + 1), tell).run()
            feed.send()
            pool.wait("every record to be committed", lambda: pool.committed == feed.sent)
            seconds = monotonic() - began
            exit_codes = tuple(pool.stop())
        with console.status("comparing the table with the file, row by row"):
            comparison = compare(engine, read_flights(records))
        return Report(comparison, outcome, seconds, pair.kafka.describe(), pair.postgres.describe(), exit_codes)
