"""Kills drivers and tasks of a stream of DataFrames, round by round, while records arrive.

After each round the tables' counts are compared with the positions in one snapshot; at the end all rows with those
that a plain loop computes.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from seekpoint.testing.child_process import ChildProcess
from seekpoint.testing.servers.postgres import PostgresServer
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup
from support.waiting import until

FAULTS = ("driver", "step", "two drivers", "tasks")
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
AT_ONCE = """
SELECT (SELECT coalesce(sum(next_offset), 0) FROM {schema}.partition_offset), (SELECT count(*) FROM {schema}.entries),
    (SELECT coalesce(sum(orders), 0) FROM {schema}.sales)
"""


@dataclass(frozen=True)
class Plan:
    """One round of the schedule: the fault comes when ``share`` of the round's records are applied."""

    number: int
    fault: str
    step: str
    share: float


def draw_schedule(seed: int, rounds: int) -> list[Plan]:
    """Draw the rounds: faults equally often (or one off), in any order."""
    chance, faults = Random(seed), list[str]()
    while len(faults) < rounds:
        faults += chance.sample(FAULTS, len(FAULTS))
    return [Plan(n + 1, faults[n], chance.choice(STEPS), chance.uniform(0.1, 0.9)) for n in range(rounds)]


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
        name = f"chaos-{secrets.token_hex(4)}"
        engine = create_engine(self.postgres.url, pool_pre_ping=True)
        self._stack.callback(engine.dispose)
        ledger_schema.upgrade(engine, schema=name)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=20)[name].result(30)
        self._producer = Producer({"bootstrap.servers": self.bootstrap})
        unused: Any = None
        self._orders_group = OrdersGroup(engine, self.bootstrap, f'"{name}"', name, name, unused, unused)
        self._orders_group.execute(TABLES)
        self._modules = Path(tempfile.mkdtemp(prefix="seekpoint-stream-chaos-"))
        self._stack.callback(shutil.rmtree, self._modules, ignore_errors=True)
        source = PIPELINE.format(schema=name, group=name, topic=name)
        (self._modules / "streams.py").write_text(source, encoding="utf-8")
        self._name = name
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- a round --------------------------------------------------------------------------------------------------

    def round(self, plan: Plan) -> None:
        """Produce, wait until a share is applied, inject the fault, and compare."""
        before = self.produced
        self._produce()
        target = before + int((self.produced - before) * plan.share)
        step = plan.step if plan.fault == "step" else ""
        driver = self._driver(step=step)
        try:
            if plan.fault == "step":
                driver.kill_where_it_waits()
            else:
                self._await(driver, target)
                self._do(plan.fault, driver)
        finally:
            driver.close()
        self.killed[plan.fault] += 1
        self._compare_at_once(plan)
        self.show(f"round {plan.number}: {plan.fault} {step}, {self._at_once()[0]:,} of {self.produced:,} applied")

    def _do(self, fault: str, driver: ChildProcess) -> None:
        if fault == "tasks":
            self._kill_tasks(driver)
        elif fault == "two drivers":
            newer = self._driver()
            try:
                until(lambda: driver.exit_code is not None, "the older driver is fenced, and ends", PATIENCE)
            finally:
                newer.close()

    def _kill_tasks(self, driver: ChildProcess) -> None:
        """SIGKILL Python processes that run the driver's tasks, and wait until the stream has applied all records."""
        hit = 0
        for process in psutil.Process(driver.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "pyspark.daemon" in process.cmdline() and self._chance.random() < 0.8:
                    process.send_signal(signal.SIGKILL)
                    hit += 1
        if not hit:
            self._found("no task's process was found")
        self._await(driver, self.produced)

    def finish(self) -> None:
        """Let one more driver apply the rest, and compare all rows with a plain loop's."""
        driver = self._driver(streams=False)
        try:
            until(lambda: driver.exit_code is not None, "the last driver ends", PATIENCE)
        finally:
            driver.close()
        if (entries := self._rows("SELECT id, amount, at FROM {schema}.entries")) != sorted(self._all()):
            lost, twice = Counter(self._all()) - Counter(entries), Counter(entries) - Counter(self._all())
            self._found(f"entries: {lost.total()} lost, {twice.total()} twice or strange")
        query = "SELECT region, cents, orders, first_at, last_at FROM {schema}.sales"
        if (stored := self._rows(query)) != (wanted := expected_sales([*self._all()])):
            self._found(f"sales: {stored} instead of {wanted}")

    # -- what is asked --------------------------------------------------------------------------------------------

    @property
    def produced(self) -> int:
        """How many records were produced."""
        return sum(map(len, self.records))

    def _all(self) -> Iterator[tuple[int, int, int]]:
        return (record for log in self.records for record in log)

    def _at_once(self) -> tuple[int, int, int]:
        (row,) = self._orders_group.execute(AT_ONCE)
        return int(row[0]), int(row[1]), int(row[2])

    def _found(self, finding: str) -> None:
        """Record a failure, and show it."""
        self.findings.append(finding)
        self.show(f"FAILED: {finding}")

    def _await(self, driver: ChildProcess, count: int) -> None:
        """Wait until ``count`` records are passed; record a failure if the driver ends before."""
        until(
            lambda: self._at_once()[0] >= count or driver.exit_code is not None,
            f"{count} records are passed, seed {self.seed}",
            PATIENCE,
        )
        if self._at_once()[0] < count:
            self._found(f"a driver ended before {count} records were passed: {driver.errors[-2000:]}")

    def _compare_at_once(self, plan: Plan) -> None:
        position, entries, orders = self._at_once()
        if not position == entries == orders:
            self._found(f"round {plan.number} ({plan.fault}): {position} passed, {entries} rows, {orders} in sums")

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return sorted(self._orders_group.execute(query))

    def _driver(self, *, streams: bool = True, step: str = "") -> FramesProcess:
        order: Any = _Servers(self._orders_group, self._name)
        return FramesProcess(order, "streams:stream", self._modules, streams=streams, max_records=70, step=step)

    def _produce(self) -> None:
        for partition, log in enumerate(self.records):
            for _ in range(ROUND):
                record = (self._chance.randrange(10_000), self._chance.randrange(-500, 1_000), len(log))
                log.append(record)
                value = json.dumps(dict(zip(("id", "amount", "at"), record, strict=True)))
                self._producer.produce(self._name, value=value, partition=partition)
        if self._producer.flush(60):
            raise RuntimeError("the brokers did not take all records")


class _Servers:
    """The group's servers, with the schema's name without quotes, as a process takes them."""

    def __init__(self, orders_group: OrdersGroup, name: str) -> None:
        self.engine, self.brokers, self.schema, self.group = orders_group.engine, orders_group.brokers, name, name


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
        show(f"{chaos.produced:,} records, killed: {dict(chaos.killed)}; seed {seed}")
        missing = [fault for fault in FAULTS if rounds >= len(FAULTS) and not chaos.killed[fault]]
        return [*chaos.findings, *(f"no round of {fault!r}: this proves nothing about it" for fault in missing)]
