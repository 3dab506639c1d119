"""The demonstration: servers, flights, drivers killed in every way, comparison, report."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from time import monotonic
from typing import Any

from rich.console import Console
from sqlalchemy import Engine, Row, TextClause, insert, text

from demo.bar import bar
from demo.flights import PARTITIONS, RECORDS, TOPIC, Feed, data_file, read_flights, table
from demo.report import compare
from demo.servers import servers
from demo.spark.driver_process import FENCED
from demo.spark.drivers import LONGEST, DriverProcess, Drivers
from demo.spark.handling import airlines, sums
from demo.spark.report import Outcome, Report
from demo.spark.sums import differing
from demo.wire import create_topic
from demo.worker_pool import DemoFailed
from seekpoint import schema
from seekpoint.errors import ConfigError
from seekpoint.testing import Pair

MICRO_BATCHES = 12  # about; each share of the records has a quarter of them, and the faults need two
SHARES = 4
TASK_KILLS = 2  # micro-batches whose tasks' processes are killed

# The backend that waits for our lock, and has written flights. pg_stat_activity does not change within a transaction,
# so each query is a new one.
_BLOCKED = text(
    "SELECT pid, backend_xid::text AS xid FROM pg_stat_activity"
    " WHERE :holder = ANY (pg_blocking_pids(pid)) AND backend_xid IS NOT NULL"
    " AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_stat_activity.pid AND l.granted"
    " AND l.mode = 'RowExclusiveLock' AND l.relation = 'flights'::regclass)"
)
_OPEN = text("SELECT pid FROM pg_stat_activity WHERE pid = :pid AND backend_xid::text = :xid")

Tell = Callable[[str], None]


def perform(records: int = RECORDS, *, console: Console) -> Report:
    """Run the demo on its own servers, and return the results. Progress goes to ``console``.

    Raises ConfigError for a missing data set, a missing Spark or a number of records out of range, ServerFailed if a
    server cannot be started, and DemoFailed if a step fails.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("the demo needs pyspark: run it with `make demo-spark`, which installs it")
    names = read_airlines()
    with servers(records, console) as (pair, engine, folder):
        schema.upgrade(engine)
        table.metadata.create_all(engine)
        with engine.begin() as tx:
            tx.execute(insert(airlines), [{"carrier": carrier, "name": name} for carrier, name in names.items()])
        create_topic(pair.kafka.bootstrap, TOPIC, PARTITIONS)
        order = {"kafka": {"bootstrap.servers": pair.kafka.bootstrap}, "max_records": max(records // MICRO_BATCHES, 1)}
        with (
            Drivers(engine, folder, pair.postgres.url, order) as drivers,
            bar(console, "records applied", records) as (update, tell),
        ):
            drivers.on_progress = update
            feed = Feed(pair.kafka.bootstrap, read_flights(records))
            script = Script(drivers, feed, engine, records // SHARES, tell)
            began = monotonic()
            exit_code = script.run()
            seconds = monotonic() - began
        with console.status("comparing the tables with the file, row by row"):
            comparison = compare(engine, read_flights(records))
            rows = differing(engine, read_flights(records), names)
        return Report(
            comparison=comparison,
            sums=rows,
            outcome=script.outcome,
            seconds=seconds,
            exit_code=exit_code,
            servers=_described(pair),
        )


def read_airlines() -> dict[str, str]:
    """The names of the airlines, by their codes. Raises ConfigError if the data set is missing."""
    with data_file("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {line["carrier"]: line["name"] for line in csv.DictReader(lines)}


def _described(pair: Pair) -> dict[str, str]:
    return {
        "broker": pair.kafka.describe(),
        "postgres": pair.postgres.describe(),
        "spark": f"Spark {version('pyspark')}, local[2,4]",
    }


class Script:
    """Injects the faults in order, each with a share of the records. Each step waits for the state that it needs."""

    def __init__(self, drivers: Drivers, feed: Feed, engine: Engine, share: int, tell: Tell) -> None:
        self._drivers, self._feed, self._engine, self._share, self._tell = drivers, feed, engine, share, tell
        self.outcome = Outcome()

    def run(self) -> int:
        """Kill and fence; returns the last driver's exit code, after SIGTERM. Raises DemoFailed."""
        first = self._start("A")
        self._feed.send(self._share)
        self._kill_while_staging(first)
        second = self._start("B")
        self._feed.send(self._share)
        self._kill_in_transaction(second)
        third = self._start("C")
        self._feed.send(self._share)
        for _ in range(TASK_KILLS):
            self._kill_tasks(third)
        last = self._fence(third)
        self._feed.send()
        self._drivers.wait(last, "every record to be applied", lambda: self._drivers.applied == self._feed.sent)
        last.terminate()
        return last.ended(LONGEST)

    def _start(self, name: str) -> DriverProcess:
        self.outcome.drivers += 1
        return self._drivers.start(name)

    def _progress(self, driver: DriverProcess) -> int:
        """Wait until one more micro-batch is applied; returns the number of applied records."""
        before = self._drivers.applied
        self._drivers.wait(driver, "a micro-batch to be applied", lambda: self._drivers.applied > before)
        return self._drivers.applied

    def _kill(self, driver: DriverProcess, state: str) -> None:
        driver.close()
        self.outcome.kills += 1
        self.outcome.files_left += driver.folder.exists()
        self._tell(f"killed driver {driver.name} at {self._drivers.applied:,} records, {state}; deleted its folder")

    def _kill_while_staging(self, driver: DriverProcess) -> None:
        self._progress(driver)
        self._drivers.wait(driver, "tasks to stage", lambda: self._drivers.is_staging)
        self._kill(driver, "while its tasks staged the next micro-batch")
        self.outcome.kills_while_staging += self._drivers.is_staging  # the run that it has left open

    def _kill_in_transaction(self, driver: DriverProcess) -> None:
        """Kill the driver while a lock on the sums' table blocks its transaction, which has written its flights."""
        applied = self._progress(driver)
        self._tell(f"  driver {driver.name} continues from the ledger alone: {applied:,} records")
        with self._engine.connect() as holding:
            holder = holding.execute(text("SELECT pg_backend_pid()")).scalar_one()
            holding.execute(text(f"LOCK TABLE {sums.name} IN SHARE MODE"))
            held = self._drivers.wait(driver, "its transaction", lambda: self._one(_BLOCKED, holder=holder))
            self._kill(driver, f"inside transaction {held.xid} (backend {held.pid}): rows written, not committed")
            self.outcome.kills_in_transaction += self._one(_OPEN, pid=held.pid, xid=held.xid) is not None

    def _one(self, query: TextClause, **values: Any) -> Row[Any] | None:
        with self._engine.connect() as connection:
            return connection.execute(query, values).one_or_none()

    def _kill_tasks(self, driver: DriverProcess) -> None:
        applied = self._progress(driver)
        hit = self._drivers.wait(driver, "tasks", lambda: self._drivers.is_staging and driver.kill_tasks())
        self.outcome.task_processes_killed += hit
        self._tell(f"killed {hit} Python processes of driver {driver.name}'s tasks after {applied:,} records")

    def _fence(self, older: DriverProcess) -> DriverProcess:
        """Start a second driver while one runs: the newer one claims the partitions."""
        newer = self._start("D")
        self._drivers.wait(newer, f"driver {older.name} to be fenced", lambda: not older.is_alive)
        if older.ended() != FENCED:
            raise DemoFailed(f"driver {older.name} should have been fenced: {older.tail()}")
        self.outcome.fenced += 1
        self._tell(f"started driver D while {older.name} ran: {older.name} ended, exit code {FENCED} (fenced)")
        return newer
