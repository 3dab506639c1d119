"""The demonstration: servers, flights, workers, a reader, and a reload by each strategy; then the report."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from sqlalchemy import Engine

from demo.bar import bar
from demo.faults import is_open, open_transaction
from demo.flights import PARTITIONS, RECORDS, Flight, read_flights
from demo.reload.handling import TOPIC, make_pipeline, name_of, table
from demo.reload.judge import compare
from demo.reload.load import Load
from demo.reload.reader import Reader
from demo.reload.report import Reloaded, Report
from demo.reload.worker_pool import VersionedPool
from demo.servers import DATABASE, servers
from demo.wire import create_topic
from demo.worker_pool import DemoFailed
from seekpoint import Pipeline, schema
from seekpoint.errors import ConfigError
from seekpoint.jobs import CutOver, Driver, Reload, Run, Staged, Stager, Task, stage_range
from seekpoint.testing import Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = 1_000  # records a second while it runs, at most
SECONDS = 50  # in which a small table doubles
PATIENCE = 60.0  # seconds for each wait of a reload

LIMITS = {"batch_records": 2_000, "claim_wait": 1.0, "transaction_age": 30.0}
TIMES = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 400}

#: The strategy by which each new version of the code is published, and the workers of each version.
RELOADS = (("merge", 2), ("swap", 3))
WORKERS = {1: ("A", "B"), 2: ("C", "D"), 3: ("E", "F")}

Tell = Callable[[str], None]


def rate_of(records: int) -> int:
    """Records a second to produce while the demo runs; fewer if the table begins with few records.

    At the full rate a table of 5,000 rows grows to many times its size, and each poll and comparison reads all of it.
    """
    return min(RATE, records // SECONDS)


def perform(records: int = RECORDS, *, spark: str | None = None, console: Console) -> Report:
    """Run the demo on its own servers, and return the results. Progress goes to ``console``.

    ``spark`` is a master, such as ``local[2]``: its tasks stage all reloads but the first. Raises ConfigError for a
    missing data set, a missing Spark or a number of records out of range, ServerFailed if a server cannot be started,
    and DemoFailed if a step fails.
    """
    with ExitStack() as stack:
        pair, engine, folder = stack.enter_context(servers(records, console))
        session = None
        if spark is not None:
            with console.status(f"starting Spark, {spark}"):
                session = stack.enter_context(_spark(spark, pair.postgres.url))
            console.print(f"Spark {session.version}, {spark}", highlight=False)
        stage = Stage(pair, engine, list(read_flights(records)), spark=session, folder=folder, console=console)
        with stage.open():
            stage.play()
        return stage.report()


@contextmanager
def _spark(master: str, database: str) -> Iterator[SparkSession]:
    """A session whose tasks read the database's URL from an environment variable."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("--spark needs pyspark: run the demo with `make demo-reload`, which installs it")
    from seekpoint.testing import start_spark  # noqa: PLC0415 -- an extra

    os.environ[DATABASE] = database
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # pyspark's, of pandas, which nothing here uses
            with start_spark(master) as session:
                yield session
    finally:
        del os.environ[DATABASE]


@dataclass(frozen=True, slots=True)
class InThisProcess:
    """Stages each range in this process."""

    engine: Engine
    kafka: Mapping[str, Any]
    pipeline: Pipeline

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterable[Staged]:
        """Stage each task, in order."""
        for task in tasks:
            yield stage_range(self.engine, "seekpoint", self.kafka, run.id, pipeline=self.pipeline, range_=task.range)


class Timed:
    """Measures how fast a stager stages."""

    def __init__(self, stager: Stager) -> None:
        self._stager, self.rows, self.seconds = stager, 0, 0.0

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterable[Staged]:
        """Stage by the measured stager."""
        began = monotonic()
        for staged in self._stager.stage(run, tasks):
            self.rows += sum(staged.rows)
            self.seconds = monotonic() - began
            yield staged

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0


class Moved:
    """Shows a reload's progress in the bar."""

    update: Callable[[int], None]

    def __call__(self, what: str, done: int, _total: int) -> None:
        if what == "staging":
            self.update(done)


@dataclass(frozen=True, slots=True)
class Killed:
    """The result of killing a worker in the middle of a reload."""

    in_transaction: bool
    pause: float


class Stage:
    """One run of the demo, on running servers: :meth:`play` while it is open, then :meth:`report`."""

    def __init__(
        self,
        pair: Pair,
        engine: Engine,
        year: Sequence[Flight],
        *,
        spark: SparkSession | None,
        folder: Path,
        console: Console,
    ) -> None:
        self.engine, self._pair, self._console, self._spark = engine, pair, console, spark
        self._count, self._rate = len(year), rate_of(len(year))
        self.kafka = {"bootstrap.servers": pair.kafka.bootstrap}
        order = {"database": pair.postgres.url, "kafka": self.kafka | TIMES, "limits": LIMITS}
        self.pool = VersionedPool(order, PARTITIONS, folder)
        self.load = Load(pair.kafka.bootstrap, year)
        self.reader = Reader(engine)
        self.reloads: list[Reloaded] = []
        self._seconds, self._exit_codes = 0.0, [0]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create tables, start the first two workers, apply the flights of the year, and start the reader."""
        schema.upgrade(self.engine)
        table.metadata.create_all(self.engine)
        create_topic(self._pair.kafka.bootstrap, TOPIC, PARTITIONS)
        with self.pool, self.load:
            with bar(self._console, "records committed", self._count) as (update, _):
                self.pool.on_progress = update
                self.pool.start_version(WORKERS[1], 1)
                self._all_at_work()
                self.load.send(self._count)
                self.pool.wait(
                    "the first records to be committed", lambda: self.pool.committed == self._count, PATIENCE
                )
                self.pool.on_progress = lambda _: None
            with self.reader:
                yield

    def play(self, reloads: Sequence[tuple[str, int]] = RELOADS) -> None:
        """Reload, one strategy after the other, while records are produced; raises DemoFailed if one fails."""
        began = monotonic()
        self.load.start(self._rate)
        self.pool.rested("with records coming in")
        for strategy, version in reloads:
            self.reload(strategy, version)
        self.load.stop()
        self.pool.wait("every record to be committed", lambda: self.pool.committed == self.load.sent, PATIENCE)
        self._seconds = monotonic() - began
        self._exit_codes = self.pool.stop()

    def reload(self, strategy: str, version: int) -> None:
        """Reload once, kill a worker in the middle, and compare the table by ``verify`` and in plain Python."""
        began, applied, polls = monotonic(), self.pool.committed, self.reader.count
        timed, moved = Timed(self._stager(strategy, version)), Moved()
        reload = Reload(
            [name_of(version)], self.engine, self.kafka, stager=timed, progress=moved, actor="demo", max_wait=60.0
        )
        driver = reload.open(strategy=strategy, reason=f"version {version} of the demo")
        total = sum(position.end_offset - position.first_offset for position in reload.runs.positions(driver.run.id))
        with bar(self._console, f"{strategy}: records staged", total) as (update, tell):
            moved.update = update
            with ThreadPoolExecutor(1) as pool:
                kill = pool.submit(self._kill, WORKERS[version - 1][0], tell)
                reload.stage(driver)
                tell(f"{strategy}: {timed.rows:,} rows staged in {timed.seconds:.1f} s, and indexed")
                killed = kill.result()
            cut = self._publish(reload, driver, version, tell)
            pause = self.pool.rested(f"with version {version}")
            tell(
                f"{strategy}: {cut.lock_seconds:.3f} s under the lock; partitions paused for {pause:.2f} s at most "
                f"until workers {' and '.join(WORKERS[version])} had taken over"
            )
        applied = self.pool.committed - applied
        differing = self._verify(version)
        comparison = compare(self.engine, lambda ends: self.load.log_to(ends, PATIENCE), version)
        if not self.reader.once_more(PATIENCE):
            raise DemoFailed(f"waited {PATIENCE:.0f} s for the reader, in vain")
        seen = self.reader.count.since(polls)
        self.reloads.append(
            Reloaded(
                strategy=strategy,
                staged_by=self._staged_by(strategy),
                rows=comparison.rows_out,
                torn_reads=seen.torn,
                polls=seen.polls,
                differences_by_verify=differing,
                differences_by_python=comparison.lost + comparison.twice + comparison.strange,
                lock_seconds=cut.lock_seconds,
                tries=cut.tries,
                records_under_lock=cut.records,
                keys_under_lock=cut.keys,
                worker_pause_seconds=pause,
                kill_pause_seconds=killed.pause,
                kills_in_transaction=int(killed.in_transaction),
                staging_rows_per_second=timed.rate,
                applied=applied,
                seconds=monotonic() - began,
            )
        )

    def report(self) -> Report:
        """The demo's results."""
        servers = {"broker": self._pair.kafka.describe(), "postgres": self._pair.postgres.describe()}
        if self._spark is not None:
            servers["spark"] = f"Spark {self._spark.version}, {self._spark.sparkContext.master}"
        return Report(
            reloads=self.reloads,
            records=self.load.sent,
            rate=self._rate,
            seconds=self._seconds,
            exit_codes=self._exit_codes,
            complaints=self.reader.complaints,
            servers=servers,
        )

    # -- the steps of a reload --------------------------------------------------------------------------

    def _staged_by(self, strategy: str) -> str:
        return "this process" if self._spark is None or strategy == "merge" else "Spark"

    def _stager(self, strategy: str, version: int) -> Stager:
        if self._spark is None or self._staged_by(strategy) != "Spark":
            return InThisProcess(self.engine, self.kafka, make_pipeline(version))
        from seekpoint.spark import Env, SparkStager  # noqa: PLC0415 -- an extra

        return SparkStager(self._spark, self.kafka, database=Env(DATABASE), range_records=self._count // PARTITIONS)

    def _publish(self, reload: Reload, driver: Driver, version: int, tell: Tell) -> CutOver:
        """Catch up, compare, and cut over, with the next version's workers on standby."""
        before, after = WORKERS[version - 1], WORKERS[version]
        with reload.passes(driver) as rounds:
            reload.catch_up(driver, rounds)
            if driver.run.strategy == "merge":
                comparison = reload.compare(driver, rounds).tables[0]
                tell(
                    f"merge: {comparison.different:,} rows differ, "
                    f"{comparison.missing + comparison.extra:,} are missing or extra"
                )
            self.pool.start_version(after, version)
            self._stand_by(after)
            self.pool.outdate(before)
            cut = reload.cut_over(driver, rounds)
        self.pool.wait_outdated(before)
        self._all_at_work()
        reload.runs.drop(driver.run.id)
        return cut

    def _stand_by(self, names: Sequence[str]) -> None:
        self.pool.wait(
            f"workers {' and '.join(names)} to be on standby", lambda: all(self.pool[name].on_standby for name in names)
        )

    def _kill(self, name: str, tell: Tell) -> Killed:
        """SIGKILL a worker inside a transaction, at any step of the reload; wait until its partitions continue."""
        pool, worker = self.pool, self.pool[name]
        worker.break_at("Applied")
        pool.wait(f"worker {name} to reach Applied", lambda: worker.at_break == "Applied")
        transaction = open_transaction(self.engine, worker)
        worker.kill()
        tell(f"killed {name} at Applied: {transaction or 'but it had no transaction open'}")
        if transaction is not None:
            pool.wait("Postgres to roll it back", lambda: not is_open(self.engine, transaction))
        pool.start(name)
        self._all_at_work()
        return Killed(transaction is not None, pool.rested(f"after {name} was killed"))

    def _verify(self, version: int) -> int:
        """Let the library rebuild the table once more, and compare; returns how many rows differ."""
        with self._console.status("verify: rebuilding the table once more, to compare"):
            result = Reload([name_of(version)], self.engine, self.kafka, actor="demo").verify(reason="demo")
        return sum(comparison.missing + comparison.extra + comparison.different for comparison in result.tables)

    def _all_at_work(self) -> None:
        self.pool.wait("the workers to share the partitions", lambda: self.pool.settled)
