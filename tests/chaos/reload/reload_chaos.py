"""Reloads under live load, one after the other, while drivers, workers, tasks and Postgres are killed."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Self

import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine

from chaos.reload.load_and_reader import OFFSETS, PARTITIONS, VERSION, Load, Reader, Target
from chaos.reload.reload_process import DATABASE, OUTDATED, start
from seekpoint import schema as ledger_schema
from seekpoint.testing.child_process import ChildProcess, NotReached
from seekpoint.testing.servers.postgres import PostgresServer
from support.quick_java import QUICK_JAVA

STRATEGIES = ("merge", "swap")
STAGERS = ("local", "spark")
WORDS = ("staging", "catching_up", "cutting over")  # where a driver is killed
WORKERS = 2
TABLE = (
    "CREATE TABLE {s}.orders (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint NOT NULL, factor int NOT NULL);"
    "CREATE TABLE {s}.totals (bucket int PRIMARY KEY, records bigint NOT NULL, amount bigint NOT NULL)"
)
COMPUTED = (
    f"SELECT {VERSION}, {OFFSETS}, coalesce(json_agg(json_build_array(id, amount, at, factor)), '[]'), "
    "(SELECT coalesce(json_agg(json_build_array(bucket, records, amount)), '[]') FROM {s}.totals) FROM {s}.orders"
)


@dataclass(frozen=True)
class Plan:
    """One round of the schedule."""

    number: int
    strategy: str
    stager: str
    seed: int


def draw_schedule(seed: int, rounds: int, stagers: Sequence[str] = STAGERS) -> list[Plan]:
    """Draw the rounds: strategies equally often (or one off), in any order; stagers alternate."""
    chance = Random(seed)
    drawn: list[str] = []
    while len(drawn) < rounds:
        drawn += chance.sample(STRATEGIES, len(STRATEGIES))
    return [Plan(n + 1, drawn[n], stagers[n % len(stagers)], chance.randrange(2**32)) for n in range(rounds)]


@dataclass
class Counts:
    """Counts of faults and checks."""

    killed: Counter[str] = field(default_factory=Counter)  # drivers, workers, on standby, tasks, postgres
    reloads: Counter[str] = field(default_factory=Counter)
    lock_seconds: list[float] = field(default_factory=list)
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


class ReloadChaos:
    """Reloads one group's tables under load, reads and faults."""

    def __init__(
        self, postgres: PostgresServer, bootstrap: str, seed: int, show: Callable[[str], None] = print
    ) -> None:
        self._postgres, self._show = postgres, show
        self._up = threading.Lock()  # held while Postgres is down: nothing is started then
        self.counts = Counts()
        name = f"chaos-{secrets.token_hex(4)}"
        kafka = {"bootstrap.servers": bootstrap, "session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
        self.target = Target(postgres.dsn, name, name, name, kafka)
        self.engine = create_engine(postgres.url, pool_pre_ping=True)
        ledger_schema.upgrade(self.engine, schema=name)
        with self._connect() as connection:
            connection.execute(self.target.query(TABLE))
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=20)[name].result(30)
        self.load = Load(bootstrap, name, Random(seed))
        self.reader = Reader(self.target, self.load)
        self.folder = Path(tempfile.mkdtemp(prefix="seekpoint-reload-chaos-"))
        self.version = 1
        self._pool: list[ChildProcess] = []
        self._ended: list[ChildProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self.engine.dispose)
        self._stack.callback(self._end_all)
        self._stack.enter_context(self.load)
        self._stack.enter_context(self.reader)
        self._pool = self._start_workers(self.version, "Activated")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for process in [*self._pool, *self._ended]:
            process.close()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.target.dsn, autocommit=True, connect_timeout=10)

    # -- processes --------------------------------------------------------------------------------------------

    def _start(self, kind: str, version: int, **what: Any) -> ChildProcess:
        setting = {
            "schema": self.target.schema,
            "group": self.target.group,
            "topic": self.target.topic,
            "version": version,
        }
        variables = {**setting, "marks": what.pop("marks", None)}
        order = {"kind": kind, "url": self._postgres.url, "kafka": self.target.kafka, **setting, **what}
        with self._up:
            return start(order, {**QUICK_JAVA, "RELOAD_CHAOS": json.dumps(variables), DATABASE: self._postgres.url})

    def _start_workers(self, version: int, word: str) -> list[ChildProcess]:
        """Start workers, and wait until each has reported ``word``, or that its standby ended."""
        pool = [self._start("worker", version) for _ in range(WORKERS)]
        for process in pool:
            if not process.reaches(word, "StandbyEnded", "outdated"):
                raise NotReached(f"a worker of version {version} ended: {process.tail()}")
        return pool

    # -- a round ----------------------------------------------------------------------------------------------

    def round(self, plan: Plan) -> None:
        """Reload to the next version, from opening the run to the checks."""
        began, chance, to = monotonic(), Random(plan.seed), self.version + 1
        older, driver = self._pool, self._drive(plan, to, None)
        run = driver.wait_for("driving", timeout=300)["run"]
        newer = self._start_workers(to, "OnStandby")
        self._pool = [*older, *newer]
        faults = threading.Thread(target=self._inject_faults, args=(chance, older, newer, to))
        faults.start()
        try:
            drivers = self._bring_through(plan, to, run, driver, Random(chance.random()))
        finally:
            faults.join()
        self._take_over(older, newer)
        self._pool, self.version = newer, to
        self.counts.reloads[f"{plan.strategy}, {plan.stager}"] += 1
        rows = self.compare()
        self._show(
            f"{plan.number:4}  {plan.strategy:10} {plan.stager:5} {monotonic() - began:5.1f} s  {drivers} drivers, "
            f"{rows:,} rows compared; {self.reader.polls:,} reads, {len(self.reader.torn)} torn"
        )

    def _drive(self, plan: Plan, to: int, run: str | None) -> ChildProcess:
        marks = Path(tempfile.mkdtemp(dir=self.folder))
        width = max(500, sum(len(log.records) for log in self.load.logs) // 8)
        driver = self._start(
            "driver", to, run=run, strategy=plan.strategy, stager=plan.stager, width=width, marks=str(marks)
        )
        threading.Thread(target=self._kill_first_task, args=(driver, marks), daemon=True).start()
        return driver

    def _bring_through(self, plan: Plan, to: int, run: str, driver: ChildProcess, chance: Random) -> int:
        """Drive the run to its end; kill one or two of its drivers. Returns how many drivers it took."""
        victims = chance.randint(1, 2)
        for number in range(1, 16):
            if driver.reaches("driving"):
                with suppress(NotReached):  # it has ended: its exit code says how
                    driver.go()
                if number <= victims and driver.reaches(chance.choice(WORDS)):
                    threading.Event().wait(chance.uniform(0, 0.3))
                    self.counts.killed["drivers"] += driver.kill() == -signal.SIGKILL
                driver.ended(600)
            driver.close()
            self.counts.lock_seconds += [
                done["lock_seconds"] for done in driver.all("done") if done["lock_seconds"] >= 0
            ]
            state, error = self._state(run)
            if state == "cut_over":
                return number
            if state in {"failed", "aborted"}:
                raise NotReached(f"round {plan.number}: the run is {state}: {error}{driver.tail()}")
            driver = self._drive(plan, to, run)
        raise NotReached(f"round {plan.number}: no driver brought the run to its end{driver.tail()}")

    def _state(self, run: str) -> tuple[str, str | None]:
        with self._up, self._connect() as connection:
            query = self.target.query("SELECT state, error FROM {s}.reload_run WHERE id = %s")
            row = connection.execute(query, [run]).fetchone()
            assert row is not None
            return row[0], row[1]

    def _take_over(self, older: Sequence[ChildProcess], newer: Sequence[ChildProcess]) -> None:
        """Wait until the older workers are outdated, and the newer ones active."""
        for process in older:
            if process.ended(300) != OUTDATED:  # the killed ones were replaced
                raise NotReached(f"a worker of version {self.version} did not end as outdated: {process.tail()}")
        for process in newer:
            if not process.reaches("Activated"):
                raise NotReached(f"a worker of version {self.version + 1} ended: {process.tail()}")

    # -- the faults ---------------------------------------------------------------------------------------------

    def _inject_faults(self, chance: Random, older: list[ChildProcess], newer: list[ChildProcess], to: int) -> None:
        """Kill an older worker, a worker on standby, and Postgres, in any order; killed workers are replaced."""
        kills: list[Callable[[], None]] = [
            lambda: self._kill_worker("workers", older, chance.randrange(WORKERS), to - 1),
            lambda: self._kill_worker("workers on standby", newer, chance.randrange(WORKERS), to),
            self._kill_postgres,
        ]
        for kill in chance.sample(kills, len(kills)):
            threading.Event().wait(chance.uniform(0.1, 0.8))
            try:
                kill()
            except Exception as error:  # noqa: BLE001 -- reported at the end, as a finding
                self.counts.findings.append(f"{type(error).__name__}: {error}")

    def _kill_worker(self, what: str, pool: list[ChildProcess], partition: int, version: int) -> None:
        victim = pool[partition]
        if not victim.is_alive or (what != "workers" and victim.all("StandbyEnded")):
            what = "workers"  # the run has ended: it is a worker as others are
        if victim.is_alive and victim.kill() == -signal.SIGKILL:
            self.counts.killed[what] += 1
            self._ended.append(victim)
            pool[partition] = self._start("worker", version)
            pool[partition].reaches("Started", "OnStandby", "outdated")

    def _kill_postgres(self) -> None:
        with self._up:
            self._postgres.kill()
            self._postgres.start()
            self.counts.killed["postgres"] += 1

    def _kill_first_task(self, driver: ChildProcess, marks: Path) -> None:
        """Kill the first task of a driver that has left its process id in ``marks``."""
        while driver.is_alive:
            for mark in marks.iterdir() if marks.exists() else ():
                try:
                    process = psutil.Process(int(mark.name))
                    if driver.pid not in {parent.pid for parent in process.parents()}:
                        return  # it has ended, and the number is another process's
                    process.kill()
                except psutil.NoSuchProcess:
                    return
                self.counts.killed["tasks"] += 1
                return
            threading.Event().wait(0.02)

    # -- the checks -------------------------------------------------------------------------------------------

    def compare(self) -> int:
        """Compare the tables with rows computed from the records, in one snapshot; returns the number of rows."""
        with self._connect() as connection:
            row = connection.execute(self.target.query(COMPUTED)).fetchone()
        assert row is not None
        version, ends, rows, totals = row
        differing = self.load.differing([tuple(row) for row in rows], ends, version)
        differing += self.load.wrong_totals([tuple(total) for total in totals], ends, version)
        if version != self.version:
            differing.append(f"the group is at version {version}, {self.version} was cut over to")
        self.counts.compared += len(rows)
        self.counts.differing += differing
        return len(rows)

    def compare_at_end(self) -> None:
        """Let the workers apply all records, and compare once more."""
        self.load.stop()
        ends, deadline, pause = [len(log.records) for log in self.load.logs], monotonic() + 180, threading.Event()
        query = self.target.query("SELECT " + OFFSETS)
        with self._connect() as connection:
            while (row := connection.execute(query).fetchone()) is not None and row[0] != ends:
                if monotonic() > deadline:
                    raise NotReached(f"the ledger stands at {row[0]}, the logs end at {ends}")
                pause.wait(0.05)
        self.compare()
