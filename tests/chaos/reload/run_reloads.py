"""Reloads under live load, one after the other, while drivers, workers, tasks and Postgres are killed."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine

from chaos.reload.child import Child, Stuck
from chaos.reload.field import OFFSETS, PARTITIONS, VERSION, Load, Place, Reader
from chaos.reload.process import DATABASE, OUTDATED
from seekpoint import schema as ledger_schema
from seekpoint.jobs.reload import Generations
from seekpoint.testing.servers.postgres import PostgresServer

STRATEGIES = ("merge", "swap", "generation")
STAGERS = ("local", "spark")
WORDS = ("staging", "catching_up", "cutting over")  # where a driver is killed
CREW = 2
TABLE = (
    "CREATE TABLE {s}.orders (id bigint PRIMARY KEY, amount bigint NOT NULL, at bigint NOT NULL, factor int NOT NULL)"
)
COMPUTED = (
    f"SELECT {VERSION}, {OFFSETS}, coalesce(json_agg(json_build_array(id, amount, at, factor)), '[]') FROM {{s}}.orders"
)


@dataclass(frozen=True)
class Plan:
    """One round, as it was drawn."""

    number: int
    strategy: str
    stager: str
    seed: int


def deal(seed: int, rounds: int, stagers: Sequence[str] = STAGERS) -> list[Plan]:
    """The rounds: every strategy about as often as the others, in any order; stagers take turns."""
    chance = Random(seed)
    drawn: list[str] = []
    while len(drawn) < rounds:
        drawn += chance.sample(STRATEGIES, len(STRATEGIES))
    return [Plan(n + 1, drawn[n], stagers[n % len(stagers)], chance.randrange(2**32)) for n in range(rounds)]


@dataclass
class Tally:
    """What truly happened."""

    killed: Counter[str] = field(default_factory=Counter)  # drivers, workers, standing by, tasks, postgres
    reloads: Counter[str] = field(default_factory=Counter)
    lock_seconds: list[float] = field(default_factory=list)
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


class Siege:
    """The servers' guests: one group, its topic and table, its workers, a producer and a reader."""

    def __init__(
        self, postgres: PostgresServer, bootstrap: str, seed: int, show: Callable[[str], None] = print
    ) -> None:
        self._postgres, self._show = postgres, show
        self._up = threading.Lock()  # held while Postgres is down: nothing is started then
        self.tally = Tally()
        name = f"siege-{secrets.token_hex(4)}"
        kafka = {"bootstrap.servers": bootstrap, "session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
        self.place = Place(postgres.dsn, name, name, name, kafka)
        self.engine = create_engine(postgres.url, pool_pre_ping=True)
        ledger_schema.upgrade(self.engine, schema=name)
        with self._connect() as connection:
            connection.execute(self.place.query(TABLE))
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=20)[name].result(30)
        self.load = Load(bootstrap, name, Random(seed))
        self.reader = Reader(self.place, self.load)
        self.folder = Path(tempfile.mkdtemp(prefix="seekpoint-siege-"))
        self.version = 1
        self._crew: list[Child] = []
        self._ended: list[Child] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self.engine.dispose)
        self._stack.callback(self._end_all)
        self._stack.enter_context(self.load)
        self._stack.enter_context(self.reader)
        self._crew = self._hire(self.version, "Activated")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end_all(self) -> None:
        for child in [*self._crew, *self._ended]:
            child.end()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.place.dsn, autocommit=True, connect_timeout=10)

    # -- processes --------------------------------------------------------------------------------------------

    def _child(self, kind: str, version: int, **what: Any) -> Child:
        given = {"schema": self.place.schema, "group": self.place.group, "topic": self.place.topic, "version": version}
        siege = {**given, "marks": what.pop("marks", None)}
        asked = {"url": self._postgres.url, "kafka": self.place.kafka, **given, **what}
        with self._up:
            return Child(kind, asked, {"SIEGE": json.dumps(siege), DATABASE: self._postgres.url})

    def _hire(self, version: int, word: str) -> list[Child]:
        """A crew of this version, each of which has said this word."""
        crew = [self._child("worker", version) for _ in range(CREW)]
        for child in crew:
            if child.wait_for([word, "StandbyEnded", "outdated"]) is None:
                raise Stuck(f"a worker of version {version} ended: {child.code}{child.last()}")
        return crew

    # -- a round ----------------------------------------------------------------------------------------------

    def round(self, plan: Plan) -> None:
        """One reload to the next version, from its opening to the judges."""
        began, chance, to = monotonic(), Random(plan.seed), self.version + 1
        self._prepare(plan.strategy)
        older, driver = self._crew, self._drive(plan, to, None)
        if driver.wait_for(["driving"]) is None:
            raise Stuck(f"round {plan.number}: no run was opened{driver.last()}")
        said = driver.told("driving")
        assert said is not None
        run = said["run"]
        newer = self._hire(to, "OnStandby")
        self._crew = [*older, *newer]
        foes = threading.Thread(target=self._foes, args=(chance, older, newer, to))
        foes.start()
        try:
            drivers = self._bring_through(plan, to, run, driver, Random(chance.random()))
        finally:
            foes.join()
        self._take_over(older, newer)
        self._crew, self.version = newer, to
        self.tally.reloads[f"{plan.strategy}, {plan.stager}"] += 1
        rows = self.judge()
        self._show(
            f"{plan.number:4}  {plan.strategy:10} {plan.stager:5} {monotonic() - began:5.1f} s  {drivers} drivers, "
            f"{rows:,} rows compared; {self.reader.polls:,} reads, {len(self.reader.torn)} torn"
        )

    def _prepare(self, strategy: str) -> None:
        generations = Generations(self.engine, schema=self.place.schema)
        table = (self.place.schema, "orders")
        if strategy == "generation":
            generations.enable(table)
        elif strategy == "swap" and generations.list():
            generations.disable(table)

    def _drive(self, plan: Plan, to: int, run: str | None) -> Child:
        marks = Path(tempfile.mkdtemp(dir=self.folder))
        width = max(500, sum(len(log.records) for log in self.load.logs) // 8)
        driver = self._child(
            "driver", to, run=run, strategy=plan.strategy, stager=plan.stager, width=width, marks=str(marks)
        )
        threading.Thread(target=self._hunt, args=(driver, marks), daemon=True).start()
        return driver

    def _bring_through(self, plan: Plan, to: int, run: str, driver: Child, chance: Random) -> int:
        """The run to its end, by as many drivers as it takes; one or two are killed. Returns how many it took."""
        victims = chance.randint(1, 2)
        for number in range(1, 16):
            if driver.wait_for(["driving"]) is not None:
                driver.go()
                if number <= victims and driver.wait_for([chance.choice(WORDS)]) is not None:
                    threading.Event().wait(chance.uniform(0, 0.3))
                    self.tally.killed["drivers"] += driver.kill()
                driver.wait(600)
            driver.end()
            if (outcome := driver.told("done")) is not None and outcome["lock_seconds"] >= 0:
                self.tally.lock_seconds.append(outcome["lock_seconds"])
            state, error = self._state(run)
            if state == "cut_over":
                return number
            if state in {"failed", "aborted"}:
                raise Stuck(f"round {plan.number}: the run is {state}: {error}{driver.last()}")
            driver = self._drive(plan, to, run)
        raise Stuck(f"round {plan.number}: no driver brought the run to its end{driver.last()}")

    def _state(self, run: str) -> tuple[str, str | None]:
        with self._up, self._connect() as connection:
            query = self.place.query("SELECT state, error FROM {s}.reload_run WHERE id = %s")
            row = connection.execute(query, [run]).fetchone()
            assert row is not None
            return row[0], row[1]

    def _take_over(self, older: Sequence[Child], newer: Sequence[Child]) -> None:
        """The older workers end by themselves, and the newer ones go on."""
        for child in older:
            if child.wait(300) != OUTDATED:  # the killed ones were replaced
                raise Stuck(f"a worker of version {self.version} did not end as outdated: {child.code}{child.last()}")
            child.end()
        for child in newer:
            if child.wait_for(["Activated"]) is None:
                raise Stuck(f"a worker of version {self.version + 1} ended: {child.code}{child.last()}")

    # -- the foes ---------------------------------------------------------------------------------------------

    def _foes(self, chance: Random, older: list[Child], newer: list[Child], to: int) -> None:
        """Kill an older worker, one that stands by, and Postgres, in any order; the killed come again."""
        blows: list[Callable[[], None]] = [
            lambda: self._kill_worker("workers", older, chance.randrange(CREW), to - 1),
            lambda: self._kill_worker("workers standing by", newer, chance.randrange(CREW), to),
            self._kill_postgres,
        ]
        for blow in chance.sample(blows, len(blows)):
            threading.Event().wait(chance.uniform(0.1, 0.8))
            try:
                blow()
            except Exception as error:  # noqa: BLE001 -- told at the end, as what is wrong
                self.tally.findings.append(f"{type(error).__name__}: {error}")

    def _kill_worker(self, what: str, crew: list[Child], at: int, version: int) -> None:
        victim = crew[at]
        if victim.code is not None or (what != "workers" and victim.told("StandbyEnded")):
            what = "workers"  # the run has ended: it is a worker as others are
        if victim.code is None and victim.kill():
            self.tally.killed[what] += 1
            self._ended.append(victim)
            crew[at] = self._child("worker", version)
            crew[at].wait_for(["Started", "OnStandby", "outdated"])

    def _kill_postgres(self) -> None:
        with self._up:
            self._postgres.kill()
            self._postgres.start()
            self.tally.killed["postgres"] += 1

    def _hunt(self, driver: Child, marks: Path) -> None:
        """Kill the first task that a driver sets to work, by its process's id."""
        while driver.code is None:
            for mark in marks.iterdir() if marks.exists() else ():
                try:
                    process = psutil.Process(int(mark.name))
                    if driver.pid not in {parent.pid for parent in process.parents()}:
                        return  # it has ended, and the number is somebody else's
                    process.kill()
                except psutil.NoSuchProcess:
                    return
                self.tally.killed["tasks"] += 1
                return
            threading.Event().wait(0.02)

    # -- the judges -------------------------------------------------------------------------------------------

    def judge(self) -> int:
        """Compare the whole table with what Python makes of the records before the offsets of the same snapshot."""
        with self._connect() as connection:
            row = connection.execute(self.place.query(COMPUTED)).fetchone()
        assert row is not None
        version, ends, rows = row
        differing = self.load.differing([tuple(each) for each in rows], ends, version)
        if version != self.version:
            differing.append(f"the group is at version {version}, {self.version} was cut over to")
        self.tally.compared += len(rows)
        self.tally.differing += differing
        return len(rows)

    def last_account(self) -> None:
        """Let the workers apply all that was produced, and judge once more."""
        self.load.stop()
        ends, deadline, pause = [len(log.records) for log in self.load.logs], monotonic() + 180, threading.Event()
        query = self.place.query("SELECT " + OFFSETS)
        with self._connect() as connection:
            while (row := connection.execute(query).fetchone()) is not None and row[0] != ends:
                if monotonic() > deadline:
                    raise Stuck(f"the ledger stands at {row[0]}, the logs end at {ends}")
                pause.wait(0.05)
        self.judge()
