"""Servers, the records that arrive, and the processes that apply them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import Engine, create_engine, text

from afternoon.declared import GROUPS, TOPIC, tables
from afternoon.facts import PARTITIONS, Facts, encode
from seekpoint import schema
from seekpoint.testing.child_process import ChildProcess, start_python
from seekpoint.testing.servers.pair import start_pair
from support.background import Background
from support.waiting import until

PATIENCE = 1800.0  # seconds: with 1.5 million records, the longest wait is for half of them
COMMAND = ("-m", "seekpoint.cli.main")
DATABASE = "SEEKPOINT_DATABASE_URL"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
_PASSED = text("SELECT coalesce(sum(next_offset), 0) FROM seekpoint.partition_offset WHERE consumer_group = :group")


class Load(Background):
    """Produces the first records at once, and then others, evenly over the seconds that :meth:`spread` names."""

    def __init__(self, facts: Facts, bootstrap: str) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
        self._facts, self._left = facts, iter(facts)
        self.produced = 0
        self._plan = (0, 0, 0.0, 1.0)  # from, to, from when on, seconds

    def produce(self, count: int) -> None:
        """Produce the first ``count`` records, and return when the broker has them."""
        while self.produced < count:
            fact = next(self._left)
            while True:
                try:
                    self._producer.produce(TOPIC, encode(fact), fact.name.encode(), fact.partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.produced += 1
            self._producer.poll(0)
        if self._producer.flush(120):
            raise RuntimeError("the broker did not take all records")

    def spread(self, share: float, seconds: float) -> None:
        """From now on, produce this share of all records, evenly over so many seconds."""
        self._plan = (self.produced, int(self._facts.count * share), monotonic(), max(seconds, 0.001))

    def rest(self) -> None:
        """Produce what is left, and return when the broker has it."""
        self._stop.set()
        self._thread.join()
        self.produce(self._facts.count)

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            first, last, began, seconds = self._plan
            self.produce(first + int((last - first) * min((monotonic() - began) / seconds, 1.0)))


class Setting:
    """The servers of one afternoon, its records and its processes."""

    def __init__(self, facts: Facts, load: Load, engine: Engine, bootstrap: str, folder: Path) -> None:
        self.facts, self.load, self.engine, self.folder = facts, load, engine, folder
        self.kafka: Mapping[str, Any] = {"bootstrap.servers": bootstrap}
        self._stack = ExitStack()

    @property
    def source(self) -> dict[str, str]:
        """The options that read the topic with Spark, without a group."""
        brokers = str(self.kafka["bootstrap.servers"])
        return {"kafka.bootstrap.servers": brokers, "subscribe": TOPIC, "startingOffsets": "earliest"}

    def execute(self, statement: str, **values: Any) -> int:
        """Run a statement; returns how many rows it changed."""
        with self.engine.begin() as tx:
            return tx.execute(text(statement), values).rowcount

    def start(self, *words: str, pipeline: str) -> ChildProcess:
        """Start the command with a pipeline; it is killed at the end."""
        kafka = f"bootstrap.servers={self.kafka['bootstrap.servers']}"
        command = [*COMMAND, *words, f"afternoon.declared:{pipeline}", "--kafka", kafka]
        return self._stack.enter_context(ChildProcess(start_python(*command)))

    def driver(self, pipeline: str, *words: str, master: str = "local[2,4]") -> ChildProcess:
        """Start a driver, by default of a stream."""
        options = ["--master", master, "--spark-conf", "spark.sql.shuffle.partitions=2"]
        return self.start("spark", "run", *(words or ["--trigger", "1s"]), *options, pipeline=pipeline)

    def passed(self, group: str) -> int:
        """How many records the group has passed."""
        with self.engine.connect() as connection:
            return int(connection.execute(_PASSED, {"group": group}).scalar_one())

    def wait(self, group: str, count: int, process: ChildProcess) -> float:
        """Wait until the group has passed so many records; returns the seconds. Raises if its process ends before."""
        began = monotonic()
        until(
            lambda: self.passed(group) >= count or not process.is_alive,
            lambda: f"{count:,} records of {group}; it has {self.passed(group):,}",
            PATIENCE,
        )
        if self.passed(group) < count:
            raise RuntimeError(f"the process of {group} ended before {count:,} records: {process.tail()}")
        return monotonic() - began

    def wait_for_progress(self, group: str, process: ChildProcess) -> None:
        """Wait until the group has passed one more record, if there is one."""
        self.wait(group, min(self.passed(group) + 1, self.load.produced), process)

    def close(self) -> None:
        """Kill the processes that still run."""
        self._stack.close()


@contextmanager
def setting(facts: Facts, folder: Path) -> Iterator[Setting]:
    """Start servers, and make the topic and the tables. What tasks inherit is in this process's environment."""
    with start_pair(own=True) as pair, ExitStack() as stack:
        print(pair.describe(), flush=True)
        engine = create_engine(pair.postgres.url, pool_pre_ping=True)
        stack.callback(engine.dispose)
        schema.upgrade(engine)
        with engine.begin() as tx:
            for group in GROUPS:
                tx.execute(text(tables(group)))
        admin = AdminClient({"bootstrap.servers": pair.kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)], operation_timeout=20)[TOPIC].result(30)
        os.environ[DATABASE] = pair.postgres.dsn
        here = Setting(facts, Load(facts, pair.kafka.bootstrap), engine, pair.kafka.bootstrap, folder)
        stack.callback(here.close)
        yield here
