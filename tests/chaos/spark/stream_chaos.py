"""Kills drivers, executors and tasks of a stream of DataFrames, round by round, while records arrive.

After each round, positions and rows of one snapshot are compared: the tables must have exactly the rows that a plain
loop computes from the records before these positions.
"""

from __future__ import annotations

import json
import os
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
from typing import Any, Self

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine

from seekpoint import schema as ledger_schema
from seekpoint.errors import Fenced
from seekpoint.testing.child_process import ChildProcess, start_python
from seekpoint.testing.servers.postgres import PostgresServer
from support.cli_jobs import COMMAND
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup
from support.waiting import until

#: Each with what is in the command line of the processes that it kills, apart from the driver.
FAULTS = {
    "driver": "",
    "step": "",
    "two drivers": "",
    "tasks": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
}
STEPS = ("opened", "staging", "turn staged", "staged", "turn cut_over", "applied")
PARTITIONS = 2
ROUND = 200  # records of each partition
PATIENCE = 900.0  # seconds that a round waits for an offset: a session of Spark takes a minute on a busy machine

TABLES = """
CREATE TABLE {schema}.entries (id bigint NOT NULL, amount bigint NOT NULL, at bigint NOT NULL);
CREATE TABLE {schema}.customers (customer bigint PRIMARY KEY, region text NOT NULL);
INSERT INTO {schema}.customers SELECT n, 'r' || n % 3 FROM generate_series(0, 99) AS n;
CREATE TABLE {schema}.sales (region text PRIMARY KEY, cents bigint NOT NULL, orders bigint NOT NULL, first_at bigint,
    last_at bigint)
"""
PIPELINE = """
import time
import msgspec
from pyspark.sql import functions as F
from seekpoint import Accumulate, Append, Json
from seekpoint.spark import Frame, SparkPipeline

class Order(msgspec.Struct):
    id: int
    amount: int
    at: int = 0

def entries(orders):
    slowly = F.udf(lambda value: time.sleep(0.002) or value, "bigint")("amount").alias("amount")  # to be hit
    return orders.select("partition", "offset", "id", slowly, "at")

def by_region(orders, customers):
    rows = orders.withColumn("customer", F.col("id") % 100).join(customers, "customer")
    return rows.groupBy("region").agg(F.sum("amount").alias("cents"), F.count("*").alias("orders"),
        F.min("at").alias("first_at"), F.max("at").alias("last_at"))

sales = Accumulate(({schema!r}, "sales"), key=["region"], add=["cents", "orders"], least=["first_at"], most=["last_at"])
stream = SparkPipeline({group!r}, topics={topic!r}, value=Json(Order),
    inputs={{"customers": ({schema!r}, "customers")}}, frames={{
        "entries": Frame(entries, Append(({schema!r}, "entries"))), "sales": Frame(by_region, sales)}})
"""
SNAPSHOT = """
SELECT (SELECT json_object_agg(partition, next_offset) FROM {schema}.partition_offset),
    (SELECT json_agg(json_build_array(id, amount, at)) FROM {schema}.entries),
    (SELECT json_agg(json_build_array(region, cents, orders, first_at, last_at)) FROM {schema}.sales)
"""
PASSED = "SELECT coalesce(sum(next_offset), 0) FROM {schema}.partition_offset"


@dataclass(frozen=True)
class Plan:
    """One round: the fault comes ``delay`` seconds after ``share`` of the round's records are applied."""

    number: int
    fault: str
    step: str
    share: float
    delay: float


def draw_schedule(seed: int, rounds: int) -> list[Plan]:
    """Draw the rounds: faults equally often (or one off), in any order."""
    chance, faults = Random(seed), list[str]()
    while len(faults) < rounds:
        faults += chance.sample([*FAULTS], len(FAULTS))
    return [
        Plan(n + 1, faults[n], chance.choice(STEPS), chance.uniform(0.1, 0.9), chance.uniform(0, 2))
        for n in range(rounds)
    ]


@dataclass
class StreamChaos:
    """The servers, the records that were produced, and the drivers that run."""

    postgres: PostgresServer
    bootstrap: str
    seed: int
    show: Callable[[str], None] = print
    killed: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    records: list[list[tuple[int, int, int]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def __enter__(self) -> Self:
        self._chance, self._stack = Random(self.seed), ExitStack()
        name = f"chaos_{secrets.token_hex(4)}"
        engine = create_engine(self.postgres.url, pool_pre_ping=True)
        self._stack.callback(engine.dispose)
        ledger_schema.upgrade(engine, schema=name)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=20)[name].result(30)
        self._producer = Producer({"bootstrap.servers": self.bootstrap})
        unused: Any = None
        self._orders_group = OrdersGroup(engine, self.bootstrap, name, name, name, unused, unused)
        self._orders_group.execute(TABLES)
        self._modules = Path(tempfile.mkdtemp(prefix="seekpoint-stream-chaos-"))
        self._stack.callback(shutil.rmtree, self._modules, ignore_errors=True)
        source = PIPELINE.format(schema=name, group=name, topic=name)
        (self._modules / "streams.py").write_text(source, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- a round --------------------------------------------------------------------------------------------------

    def round(self, plan: Plan) -> None:
        """Produce, wait until a share is applied, inject the fault, and compare."""
        before, killed = self.produced, self.killed[plan.fault]
        self._produce()
        if plan.fault == "step":
            self._halted(plan.step).kill_where_it_waits()
            self.killed["step"] += 1
        else:
            driver = self._driver("local-cluster[2,1,1024]" if plan.fault == "executor" else "local[2,4]")
            try:
                self._await(driver, before + int((self.produced - before) * plan.share))
                threading.Event().wait(plan.delay)  # else each fault came shortly after a COMMIT
                self._inject(plan.fault, driver)
            finally:
                driver.close()
        passed, kills = self._compare(f"round {plan.number} ({plan.fault})"), self.killed[plan.fault] - killed
        what = f"{plan.fault} {plan.step}" if plan.fault == "step" else f"{plan.fault} ({kills} killed)"
        self.show(f"round {plan.number}: {what}, {passed:,} of {self.produced:,} applied")

    def _inject(self, fault: str, driver: ChildProcess) -> None:
        if fault == "driver":
            self.killed[fault] += driver.exit_code is None and driver.kill() == -signal.SIGKILL
        elif fault == "two drivers":
            newer = self._driver()
            try:
                until(lambda: driver.exit_code is not None, "the older driver is fenced, and ends", PATIENCE)
            finally:
                newer.close()
            self.killed[fault] += driver.exit_code == 1 and Fenced.code in driver.errors
        else:
            self.killed[fault] += kill_children(driver, FAULTS[fault], self._chance)
            self._await(driver, self.produced)

    def finish(self) -> None:
        """Let one more driver apply the rest, and compare."""
        driver = self._driver(streams=False)
        try:
            until(lambda: driver.exit_code is not None, "the last driver ends", PATIENCE)
        finally:
            driver.close()
        if (passed := self._compare("at the end")) != self.produced:
            self._found(f"at the end: {passed} of {self.produced} are applied: {driver.errors[-2000:]}")

    # -- what is asked --------------------------------------------------------------------------------------------

    @property
    def produced(self) -> int:
        """How many records were produced."""
        return sum(map(len, self.records))

    def _passed(self) -> int:
        return int(self._orders_group.execute(PASSED)[0][0])

    def _found(self, finding: str) -> None:
        """Record a failure, and show it."""
        self.findings.append(finding)
        self.show(f"FAILED: {finding}")

    def _await(self, driver: ChildProcess, count: int) -> None:
        """Wait until ``count`` records are passed; record a failure if the driver ends before."""
        until(
            lambda: self._passed() >= count or driver.exit_code is not None,
            f"{count} records are passed, seed {self.seed}",
            PATIENCE,
        )
        if self._passed() < count:
            self._found(f"a driver ended before {count} records were passed: {driver.errors[-2000:]}")

    def _compare(self, when: str) -> int:
        """Compare the tables with the records before the positions, in one snapshot; returns their number."""
        ((offsets, entries, sales),) = self._orders_group.execute(SNAPSHOT)
        ends = {int(partition): offset for partition, offset in (offsets or {}).items()}
        passed = [record for partition, log in enumerate(self.records) for record in log[: ends.get(partition, 0)]]
        wanted, rows = Counter(passed), Counter(map(tuple, entries or []))
        if wanted != rows:
            lost, twice = wanted - rows, rows - wanted
            self._found(f"{when}, entries: {lost.total()} lost, {twice.total()} twice or strange")
        if (sums := sorted(map(tuple, sales or []))) != (expected := expected_sales(passed)):
            self._found(f"{when}, sales: {sums} instead of {expected}")
        return len(passed)

    def _halted(self, step: str) -> FramesProcess:
        """A driver that halts at a step."""
        what = {"streams": True, "max_records": 70, "step": step}
        return FramesProcess(self._orders_group, "streams:stream", self._modules, **what)

    def _driver(self, master: str = "local[2,4]", *, streams: bool = True) -> ChildProcess:
        """The command ``seekpoint spark run``, as a stream or over the available records."""
        until_when = ["--trigger", "1s"] if streams else ["--available-now"]
        words = ["spark", "run", "streams:stream", "--master", master, "--max-records", "70", *until_when]
        words += ["--spark-conf", "spark.sql.shuffle.partitions=2"]
        path = os.pathsep.join([str(self._modules), os.environ.get("PYTHONPATH", "")])
        command = [*COMMAND[1:], *words, *self._orders_group.server_options]
        return ChildProcess(start_python(*command, env={"PYTHONPATH": path}))

    def _produce(self) -> None:
        for partition, log in enumerate(self.records):
            for _ in range(ROUND):
                record = (self._chance.randrange(10_000), self._chance.randrange(-500, 1_000), len(log))
                log.append(record)
                value = json.dumps(dict(zip(("id", "amount", "at"), record, strict=True)))
                self._producer.produce(self._orders_group.topic, value=value, partition=partition)
        if self._producer.flush(60):
            raise RuntimeError("the brokers did not take all records")


def kill_children(driver: ChildProcess, pattern: str, chance: Random) -> int:
    """SIGKILL some of the driver's processes with this text in their command lines; returns how many."""
    processes, killed = list[psutil.Process](), 0
    for process in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.Error):
            if any(pattern in word for word in process.cmdline()):
                processes.append(process)
    for process in chance.sample(processes, chance.randint(min(1, len(processes)), len(processes))):
        with suppress(psutil.NoSuchProcess):
            process.kill()
            killed += 1
    return killed


def expected_sales(records: Sequence[tuple[int, int, int]]) -> list[tuple[str, int, int, int, int]]:
    """The rows of ``sales``, computed by a plain loop."""
    table: dict[str, list[int]] = {}
    for id_, amount, offset in records:
        row = table.setdefault(f"r{id_ % 100 % 3}", [0, 0, offset, offset])
        row[:] = [row[0] + amount, row[1] + 1, min(row[2], offset), max(row[3], offset)]
    return sorted((region, cents, orders, first, last) for region, (cents, orders, first, last) in table.items())


def run(postgres: PostgresServer, bootstrap: str, *, rounds: int, seed: int, show: Callable[[str], None]) -> list[str]:
    """Run ``rounds`` rounds, and return the failures."""
    with StreamChaos(postgres, bootstrap, seed, show) as chaos:
        for plan in draw_schedule(seed, rounds):
            chaos.round(plan)
        chaos.finish()
        show(f"{chaos.produced:,} records, {len(chaos.findings)} failures, killed: {dict(chaos.killed)}; seed {seed}")
        missing = [fault for fault in FAULTS if rounds >= len(FAULTS) and not chaos.killed[fault]]
        return [*chaos.findings, *(f"no kill of {fault!r}: this proves nothing about it" for fault in missing)]
