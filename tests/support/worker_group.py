"""Support for tests of a worker: Kafka, Postgres, a group, a table, and workers.

Use it through the fixture ``worker_group`` (the shared servers), or ``worker_group_on(postgres=…, kafka=…)`` for
servers that the test may break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from sqlalchemy import Engine, Row

from seekpoint import Partition, Pipeline
from seekpoint.ledger import GroupLedger
from support.events import Run
from support.recorded_rows import RecordTable, Stored, Stream, ends
from support.topics import add_partitions
from support.waiting import SECONDS, until
from support.worker_process import WorkerProcess

SESSION_MS = 3000
QUICK: Mapping[str, Any] = {
    "topic.metadata.refresh.interval.ms": 500,
    "reconnect.backoff.max.ms": 250,
    "fetch.wait.max.ms": 50,
}
_CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 10_000}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "eager": {**QUICK, **_CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative": {**QUICK, **_CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "848": {**QUICK, "max.poll.interval.ms": 10_000, "group.protocol": "consumer"},
}

WorkerOptions = Callable[[str, int], dict[str, Any]]
"""``worker_options(topic, partitions)``: a worker's options, in a group or with a fixed list."""


class WorkerGroup:
    """A consumer group of one test: its servers, its workers, and the table that they write."""

    def __init__(
        self,
        *,
        engine: Engine,
        schema: str,
        broker: str,
        group: str,
        make_topic: Callable[..., str],
        produce: Callable[..., list[tuple[int, int]]],
        run_worker: Callable[..., Run],
        new_worker_process: Callable[..., WorkerProcess],
        admin: AdminClient,
        shared: bool,
    ) -> None:
        self.engine, self.schema, self.broker, self.group = engine, schema, broker, group
        self._make_topic, self._produce = make_topic, produce
        self._run_worker, self._new_worker_process = run_worker, new_worker_process
        self._bootstrap = None if shared else broker  # topics on the shared broker are deleted after the test
        self.record_table = RecordTable(engine, schema).create()
        self.ledger = GroupLedger(engine, group, schema=schema)
        self.admin = admin

    @property
    def dsn(self) -> str:
        """The database's URL, with its password."""
        return self.engine.url.render_as_string(hide_password=False)

    @property
    def database_options(self) -> list[str]:
        """The command's options that name the database."""
        return ["--database-url", self.dsn, "--schema", self.schema]

    @property
    def server_options(self) -> list[str]:
        """The command's options that name both servers."""
        return [*self.database_options, "--kafka", f"bootstrap.servers={self.broker}"]

    def expire_sessions_after(self, milliseconds: int = SESSION_MS) -> None:
        """Set the group's session timeout, which the broker sets under group.protocol=consumer."""
        wanted = {"consumer.session.timeout.ms": str(milliseconds), "consumer.heartbeat.interval.ms": "300"}
        entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in wanted.items()]
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(20)

    def topic(self, partitions: int = 1, **options: Any) -> str:
        """Create a topic."""
        return self._make_topic(partitions, bootstrap=self._bootstrap, **options)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions until the topic has this number."""
        add_partitions(self.admin, topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic, and wait until the brokers do not list it any more."""
        self.admin.delete_topics([topic])[topic].result(20)
        self.wait(lambda: topic not in self.admin.list_topics(timeout=10).topics)

    def produce(
        self, topic: str, values: int | Iterable[Any], *, partition: int = 0, **more: Any
    ) -> list[tuple[int, int]]:
        """Produce these values, or this number of records, and wait until all are stored."""
        many = map(str, range(values)) if isinstance(values, int) else values
        return self._produce(topic, many, partition=partition, bootstrap=self.broker, **more)

    def log(self, values: int | Sequence[Any], partitions: int = 1) -> tuple[str, list[tuple[int, int]]]:
        """Create a topic with these values, or this number of records, in each partition."""
        name = self.topic(partitions)
        return name, [place for n in range(partitions) for place in self.produce(name, values, partition=n)]

    def stream(self, topic: str, partitions: int, rate: float = 500) -> Stream:
        """Produce steadily during a ``with`` block."""
        return Stream(self.broker, topic, partitions, rate)

    def pipeline(self, topic: str, **options: Any) -> Pipeline:
        """A pipeline of this group that writes the table."""
        return self.record_table.pipeline(self.group, topic, **options)

    def worker(self, of: str | Pipeline, *, kafka: Mapping[str, Any] = QUICK, **options: Any) -> Run:
        """Run a worker on a separate thread until the test ends."""
        pipeline = self.pipeline(of) if isinstance(of, str) else of
        arguments = {"engine": self.engine, "schema": self.schema, **options}
        return self._run_worker(pipeline, kafka={"bootstrap.servers": self.broker, **kafka}, **arguments)

    def worker_process(self, topic: str, *, kafka: Mapping[str, Any] = QUICK, **what: Any) -> WorkerProcess:
        """Run a worker in a separate process until the test ends."""
        servers = {"bootstrap.servers": self.broker, **kafka}
        order = {"dsn": self.dsn, "schema": self.schema, "group": self.group, "topic": topic}
        return self._new_worker_process(**{**order, "kafka": servers, **what})

    def sql(self, *statements: str) -> Sequence[Row[Any]]:
        """Run statements in one transaction, with the schema's name for ``{schema}``; returns the last one's rows."""
        with self.engine.begin() as tx:
            done = [tx.exec_driver_sql(statement.replace("{schema}", f'"{self.schema}"')) for statement in statements]
            return done[-1].all() if done[-1].returns_rows else []

    def dead_letters(self, *columns: str) -> list[tuple[Any, ...]]:
        """Partition, offset and these columns of each dead letter."""
        names = ", ".join(("partition", "record_offset", *columns))
        return [tuple(row) for row in self.sql(f"SELECT {names} FROM {{schema}}.dead_letter ORDER BY 1, 2")]

    def killed_process(self, topic: str, **what: Any) -> WorkerProcess:
        """Run a worker in a separate process, and kill it at ``stop_at``."""
        process = self.worker_process(topic, **what)
        process.wait_until_stopped()
        process.kill()
        return process

    def positions(self) -> dict[Partition, int]:
        """The ledger's positions."""
        return {row.partition: row.next_offset for row in self.ledger.read()}

    def wait_for_position(self, topic: str, offset: int, partition: int = 0, timeout: float = SECONDS) -> None:
        """Wait until the ledger has this position."""
        self.wait(lambda: self.positions().get(Partition(topic, partition)) == offset, timeout)

    def wait_until_caught_up(self, topic: str, stored: Stored, timeout: float = SECONDS) -> None:
        """Wait until each position is after the last of these records."""
        wanted = {Partition(topic, number): end for number, end in ends(stored).items()}
        self.wait(lambda: wanted.items() <= self.positions().items(), timeout)

    def finish(self, run: Run, topic: str, stored: Stored, timeout: float = SECONDS) -> None:
        """Wait until each position is after the last of these records, and drain this worker."""
        self.wait_until_caught_up(topic, stored, timeout)
        run.stop()

    def topic_id(self, topic: str) -> UUID:
        """The topic's id at the brokers now."""
        topic_id = self.admin.describe_topics(TopicCollection([topic]))[topic].result(20).topic_id
        high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
        return UUID(int=(high % 2**64 << 64) | low % 2**64)

    def wait(self, there: Callable[[], bool], timeout: float = SECONDS) -> None:
        """Wait until ``there()`` is true; the message has the ledger's positions."""
        until(there, lambda: f"the ledger's positions are {self.positions()}", timeout)
