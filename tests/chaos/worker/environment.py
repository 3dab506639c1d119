"""A pair of servers that faults may break, the table of results, and one worker pool after the other."""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Self

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine

from chaos.worker.checks import ACCOUNTED, CHANGED, FIRSTS, FOUND, SUMS, TABLE
from chaos.worker.event_log import EventLog
from chaos.worker.schedule import WORKERS, PoolPlan
from chaos.worker.worker_pool import BROKER, Standbys, WorkerPool
from seekpoint import schema
from seekpoint.testing.child_process import NotReached
from seekpoint.testing.servers.pair import start_pair
from seekpoint.testing.servers.process import free_port
from support.kafka_proxy import KafkaProxy

PARTITIONS = 6
# The log writer sleeps as long as it may: a crash without synchronous commit shall lose something.
POSTGRES = {"wal_writer_delay": "10s"}
KAFKA: Mapping[str, Any] = {"reconnect.backoff.max.ms": 300, "topic.metadata.refresh.interval.ms": 1000}
CREATE = f"""
CREATE TABLE {TABLE} (
  seq bigserial, topic text, partition int, "offset" bigint, worker text CHECK (worker <> 'refused'), key text,
  event text);
CREATE TABLE {FOUND} (LIKE {TABLE} INCLUDING ALL);
CREATE INDEX ON {TABLE} (topic, partition, "offset");
CREATE VIEW {ACCOUNTED} AS SELECT seq, topic, partition, "offset", worker FROM {TABLE} UNION ALL
  SELECT NULL, topic, partition, record_offset, CASE state WHEN 'waiting' THEN state ELSE 'dead letter' END
  FROM seekpoint.dead_letter WHERE state IN ('dead_lettered', 'waiting');
CREATE TABLE {SUMS} (topic text, name text, records bigint CHECK (records >= 0), offsets numeric, lowest bigint,
  highest bigint, PRIMARY KEY (topic, name));
CREATE TABLE {CHANGED} (p int, id int, v bigint, o bigint, PRIMARY KEY (p, id));
CREATE TABLE {FIRSTS} (topic text, p int, k bigint, o bigint, PRIMARY KEY (topic, p, k));
"""


class Environment:
    """The servers and all else that lives as long as the run; use it in a ``with`` block.

    ``folder`` has the workers' output on stderr; it is kept if the run fails.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="seekpoint-chaos-"))
        self.log = EventLog()
        self._standbys = Standbys(WORKERS, self.folder)
        port = free_port()
        self.kafka_proxy = KafkaProxy("127.0.0.1", port)
        self.pair = start_pair(own=True, settings=POSTGRES, properties=BROKER, proxied=(port, self.kafka_proxy.port))
        self.dsn = self.pair.postgres.dsn
        self.engine = create_engine(self.pair.postgres.url, pool_pre_ping=True)
        schema.upgrade(self.engine)
        with self.connect() as connection:
            connection.execute(CREATE)
        self.admin = self._admin()
        self.pool: WorkerPool | None = None
        self.topic = ""
        self.found: list[str] = []  # topics with a table that have appeared since the pool began
        self.absent: list[str] = []  # the one that has none
        self.base: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.close()
        self._standbys.close()
        self.engine.dispose()
        self.pair.close()
        self.kafka_proxy.close()

    def _admin(self) -> AdminClient:
        return AdminClient(
            {"bootstrap.servers": self.pair.kafka.bootstrap, "reconnect.backoff.max.ms": 300, "log_level": 0}
        )

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to Postgres that uses no proxy."""
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5)

    # -- pools ----------------------------------------------------------------------------------------

    def lead(self, plan: PoolPlan) -> WorkerPool:
        """The pool for this plan, at full size and ready: the current pool, or a new one on a new topic."""
        if self.pool is not None and self.pool.plan != plan:
            self.pool.disband()
            self.pool = None
        if self.pool is None:
            self.pool = self._recruit(plan)
        self.pool.fill()
        self.pool.ready()
        return self.pool

    def _recruit(self, plan: PoolPlan) -> WorkerPool:
        self.topic = f"chaos-{plan.protocol}-{secrets.token_hex(3)}.results"
        self._create(self.topic, PARTITIONS)
        self.base, self.found, self.absent = dict.fromkeys(range(PARTITIONS), 0), [], []
        self.what: Mapping[str, Any] = {
            "group": self.topic,
            "topic": self.topic,
            "partitions": PARTITIONS,
            "kafka": {"bootstrap.servers": self.kafka_proxy.bootstrap, **KAFKA},
            **asdict(plan),
        }
        return WorkerPool(plan, self.what, self.pair.postgres.url, self._standbys, self.log)

    def _create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=20)[topic].result(30)

    def add_topics(self) -> bool:
        """Create a topic that the pool's pattern gives a table, and once one without; returns whether it did so now."""
        prefix, is_first = self.topic.rpartition(".")[0], not self.absent
        for topics, name in [(self.found, "found"), *([(self.absent, "absent")] if is_first else [])]:
            topics.append(f"{prefix}.{name}{PARTITIONS + len(topics)}")
            self._create(topics[-1], 1)
        return is_first

    # -- the log and the table ------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """The end offsets of the topic's partitions, as the broker has them."""
        return {number: end for (_, number), end in self._ends([(self.topic, n) for n in range(PARTITIONS)]).items()}

    def found_ends(self) -> dict[str, int]:
        """The end offsets of the found topics."""
        return {topic: end for (topic, _), end in self._ends([(topic, 0) for topic in self.found]).items()}

    def _ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(*partition): latest for partition in partitions}
        deadline, pause = monotonic() + 20, threading.Event()
        while True:
            try:
                self.admin.list_topics(timeout=5)  # list_offsets sends the leader epochs that it remembers
                answers = self.admin.list_offsets(asked, request_timeout=5)
                return {(key.topic, key.partition): answer.result(10).offset for key, answer in answers.items()}
            except Exception as error:
                if monotonic() > deadline:
                    raise NotReached(f"the broker does not say where its logs end: {error}") from error
                pause.wait(0.1)

    def settle(self, ends: Mapping[int, int]) -> None:
        """Empty tables and event log after a round; the next one begins at these offsets."""
        with self.connect() as connection:
            connection.execute(f"TRUNCATE {TABLE}, {SUMS}, {CHANGED}, {FIRSTS}; DELETE FROM seekpoint.dead_letter")
        self.base = dict(ends)
        self.log.clear()
