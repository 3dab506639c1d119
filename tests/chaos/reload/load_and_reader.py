"""The load and the checks: a producer that remembers its records, and a reader that checks the table all the time.

Each key belongs to one partition, so the table's counts and sums are those of the partitions' logs, added up: the
reader checks each read exactly, at the offsets that it saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

import psycopg
from confluent_kafka import KafkaError, Message, Producer
from psycopg import sql

from chaos.reload.orders import BUCKETS
from support.background import Background

PARTITIONS = 2
KEYS = 1_500  # of each partition
RATE = 10  # records each PAUSE seconds
PAUSE = 0.02


@dataclass
class Log:
    """A partition's records, and the number and sum of its rows after each record."""

    records: list[tuple[int, int | None, int]] = field(default_factory=list)  # id, amount (None: a tombstone), at
    counts: list[int] = field(default_factory=lambda: [0])
    sums: list[int] = field(default_factory=lambda: [0])
    alive: dict[int, int] = field(default_factory=dict)

    def add(self, id_: int, amount: int | None, offset: int) -> None:
        """Add a record."""
        before = self.alive.pop(id_, None)
        if amount is not None:
            self.alive[id_] = amount
        self.records.append((id_, amount, offset))
        self.sums.append(self.sums[-1] + (amount or 0) - (before or 0))
        self.counts.append(len(self.alive))

    def table(self, end: int) -> dict[int, tuple[int, int]]:
        """Version 1's rows of the records before this offset, by id."""
        rows: dict[int, tuple[int, int]] = {}
        for id_, amount, offset in self.records[:end]:
            if amount is None:
                rows.pop(id_, None)
            else:
                rows[id_] = (amount, offset)
        return rows


class Load(Background):
    """Produces on a separate thread; ``logs`` has the records of each partition."""

    def __init__(self, bootstrap: str, topic: str, chance: Random) -> None:
        super().__init__()
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.strange: list[str] = []
        self._topic, self._chance = topic, chance
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})

    def __enter__(self) -> Self:
        self.produce(2_000)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop producing, and wait until the broker has acknowledged all records."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        assert self._producer.flush(30) == 0

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            self.produce(RATE)

    def produce(self, count: int) -> None:
        """Produce ``count`` records, some of them tombstones."""
        for _ in range(count):
            partition = self._chance.randrange(PARTITIONS)
            log = self.logs[partition]
            id_, offset = self._chance.randrange(KEYS) * PARTITIONS + partition, len(log.records)
            amount = None if self._chance.random() < 0.15 else self._chance.randrange(1, 1_000)
            log.add(id_, amount, offset)
            value = None if amount is None else json.dumps({"id": id_, "amount": amount, "at": offset})
            key = json.dumps({"id": id_})
            self._producer.produce(self._topic, value, key, partition, on_delivery=self._delivered(offset))
        self._producer.poll(0)

    def _delivered(self, offset: int) -> Any:
        def check(error: KafkaError | None, message: Message) -> None:
            if error is not None or message.offset() != offset:
                self.strange.append(f"offset {offset} of {message.partition()}: {error or message.offset()}")

        return check

    def differing(self, rows: Sequence[tuple[int, int, int, int]], ends: Sequence[int], version: int) -> list[str]:
        """The differences of the rows from the logs before these offsets."""
        wanted: dict[int, tuple[int, int, int]] = {}
        for log, end in zip(self.logs, ends, strict=True):
            wanted |= {id_: (amount * version, offset, version) for id_, (amount, offset) in log.table(end).items()}
        stored = {id_: (amount, offset, factor) for id_, amount, offset, factor in rows}
        twice = [f"{len(rows) - len(stored)} ids are there twice"] if len(rows) != len(stored) else []
        return twice + [
            f"id {id_}: {stored.get(id_)} is there, {wanted.get(id_)} should be"
            for id_ in sorted(wanted.keys() | stored.keys())
            if wanted.get(id_) != stored.get(id_)
        ]

    def wrong_totals(self, totals: Sequence[tuple[int, int, int]], ends: Sequence[int], version: int) -> list[str]:
        """The differences of the sums from the logs before these offsets."""
        wanted: dict[int, tuple[int, int]] = {}
        for log, end in zip(self.logs, ends, strict=True):
            for id_, amount, _ in log.records[:end]:
                count, total = wanted.get(id_ % BUCKETS, (0, 0))
                wanted[id_ % BUCKETS] = (count - 1, total) if amount is None else (count + 1, total + amount * version)
        stored = {bucket: (count, total) for bucket, count, total in totals}
        return [
            f"sums of bucket {bucket}: {stored.get(bucket)} are there, {wanted.get(bucket)} should be"
            for bucket in sorted(wanted.keys() | stored.keys())
            if wanted.get(bucket) != stored.get(bucket)
        ]


@dataclass(frozen=True)
class Target:
    """Servers, schema, group and topic."""

    dsn: str
    schema: str
    group: str
    topic: str
    kafka: Mapping[str, Any]

    def query(self, text: str) -> sql.Composed:
        """The query with schema and group for ``{s}`` and ``{g}``."""
        names = {"s": sql.Identifier(self.schema), "g": sql.Literal(self.group)}
        return sql.SQL(text).format(**names)


OFFSETS = "(SELECT array_agg(next_offset ORDER BY partition) FROM {s}.partition_offset WHERE consumer_group = {g})"
VERSION = "(SELECT version FROM {s}.consumer_group WHERE name = {g})"
READ = (
    f"SELECT {VERSION}, {OFFSETS}, count(*), coalesce(sum(amount), 0)::bigint, min(factor), max(factor) "
    "FROM {s}.orders"
)


class Reader(Background):
    """Reads table and offsets all the time, in one statement; ``torn`` are reads that do not match the records."""

    def __init__(self, target: Target, load: Load) -> None:
        super().__init__()
        self._target, self._load = target, load
        self.polls = self.interrupted = 0
        self.torn: list[str] = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._target.dsn, autocommit=True, connect_timeout=5) as connection:
                    while not self._stop.wait(0.003):
                        self._look(connection)
            except psycopg.OperationalError:
                self.interrupted += 1
                self._stop.wait(0.05)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(self._target.query(READ)).fetchone()
        assert row is not None
        version, ends, count, total, least, most = row
        if version is None or ends is None:
            return  # no worker has claimed anything yet
        self.polls += 1
        logs = list(zip(self._load.logs, ends, strict=True))
        wanted = (sum(log.counts[end] for log, end in logs), version * sum(log.sums[end] for log, end in logs))
        factors = {least, most} - ({None} if count == 0 else set())
        if (count, total) != wanted or factors - {version}:
            message = f"version {version}, offsets {ends}: {count} rows, sum {total}, factors {least} to {most}"
            self.torn.append(f"{message}; {wanted[0]} rows, sum {wanted[1]} are right")
