"""The records and rows that tests of workers compare at the end.

``RecordTable`` is a table without a unique key: a record that is applied twice has two rows, and ``n`` keeps the order
of writing. ``Stream`` produces steadily on a separate thread and remembers the records that the broker acknowledged;
``Transactions`` does so in transactions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self
from uuid import uuid4

import msgspec
from confluent_kafka import KafkaError, Message, Producer
from sqlalchemy import BigInteger, Column, Connection, Engine, Identity, Integer, MetaData, Table, Text, insert, select
from sqlalchemy.schema import CreateTable

from seekpoint import Append, Batch, Pipeline, Poison, codecs
from support.background import Background

Stored = Iterable[tuple[int, int]]
"""Partition and offset of each record, as ``produce`` and ``Stream`` answer them."""


class Entry(msgspec.Struct):
    """A row of the table as a record's value; the producer knows its offset."""

    topic: str
    partition: int
    offset: int
    value: str


class RecordTable:
    """The table of one test, pipelines that write it, and a check of its rows."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine, self.schema = engine, schema
        self.table = Table(
            "book",
            MetaData(schema=schema),
            Column("n", BigInteger, Identity(always=True)),
            Column("topic", Text),
            Column("partition", Integer),
            Column("offset", BigInteger),
            Column("value", Text),
        )

    def create(self) -> Self:
        """Create the table."""
        with self.engine.begin() as tx:
            tx.execute(CreateTable(self.table))
        return self

    @property
    def sink(self) -> Append:
        """A sink that writes the table."""
        return Append(
            (self.schema, "book"),
            columns=["topic", "partition", "offset", "value"],
            row=lambda r: (r.topic, r.partition, r.offset, r.value),
        )

    def enter(self, tx: Connection, batch: Batch[str, Any]) -> None:
        """Write the records by a handler, with the transaction's connection."""
        rows = [{"topic": r.topic, "partition": r.partition, "offset": r.offset, "value": r.value} for r in batch]
        if rows:
            tx.execute(insert(self.table), rows)

    def refusing(self, is_bad: Callable[[Any], bool]) -> Callable[[Connection, Batch[str, Any]], None]:
        """A handler that raises Poison for bad records, and otherwise writes the table."""

        def handle(tx: Connection, batch: Batch[str, Any]) -> None:
            if bad := [record for record in batch if is_bad(record)]:
                raise Poison("broken", *bad)
            self.enter(tx, batch)

        return handle

    def pipeline(self, group: str, topics: str | Iterable[str], *, entries: bool = False, **options: Any) -> Pipeline:
        """A pipeline that writes this table by a sink, unless ``handle`` is given; ``entries``: values are its rows."""
        if entries:
            sink: Append[Entry, Any] = Append((self.schema, "book"))
            return Pipeline(group, topics=topics, value=codecs.Json(Entry), sinks=[sink], **options)
        if "handle" not in options:
            options["sinks"] = [self.sink]
        return Pipeline(group, topics=topics, value=codecs.Text(), **options)

    def written(self, topic: str) -> list[tuple[int, int]]:
        """Partition and offset of each row, in the order of writing."""
        c = self.table.c
        with self.engine.connect() as connection:
            rows = connection.execute(select(c.partition, c.offset).where(c.topic == topic).order_by(c.n))
            return [(partition, offset) for partition, offset in rows]

    def assert_holds(self, topic: str, stored: Stored, *, in_order: bool = True) -> None:
        """Assert that these records are there, each exactly once, in order within each partition."""
        expected, counted = Counter(stored), Counter(written := self.written(topic))
        assert not (expected - counted), f"lost: {sorted((expected - counted).elements())[:10]}"
        assert not (counted - expected), f"twice, or from nowhere: {sorted((counted - expected).elements())[:10]}"
        for partition in {p for p, _ in written} if in_order else ():
            offsets = [offset for p, offset in written if p == partition]
            assert offsets == sorted(offsets), f"partition {partition} was written out of order"


class Stream(Background):
    """Produces ``rate`` records a second, to one partition after the other, during a ``with`` block."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float = 500) -> None:
        super().__init__()
        # Without idempotence a record whose answer was lost would be in the log twice, and rightly in the table too.
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0, "enable.idempotence": True}
        self._producer = Producer({**settings, "reconnect.backoff.max.ms": 250, "retry.backoff.max.ms": 250})
        self._topic, self._partitions, self._pause = topic, partitions, 10 / rate
        self._refused: list[KafkaError] = []
        self.stored: list[tuple[int, int]] = []
        self._unplaced = 0  # acknowledged as duplicates of a batch sent before; their offsets are unknown

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        left = self._producer.flush(30)
        assert not self._refused, f"the broker refused {len(self._refused)} records: {self._refused[0]}"
        assert left == 0, f"{left} records were not delivered within 30 s"
        for partition, end in ends(self.stored).items() if self._unplaced else ():
            known = {offset for p, offset in self.stored if p == partition}
            self.stored += [(partition, offset) for offset in range(min(known), end) if offset not in known]

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            for _ in range(10):
                self._producer.produce(
                    self._topic, f"{number}", partition=number % self._partitions, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition(), message.offset()
            if partition is not None and offset is not None and offset >= 0:
                self.stored.append((partition, offset))
            else:
                self._unplaced += 1
        else:
            self._refused.append(error)


class Transactions(Background):
    """Produces ``rate`` records a second in transactions of ten, during a ``with`` block; aborts every fifth.

    ``stored`` gets the records of a transaction before its COMMIT, so before a consumer can read them, and no records
    of aborted transactions.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float = 500) -> None:
        super().__init__()
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0}
        self._producer = Producer({**settings, "transactional.id": f"{topic}-{uuid4()}"})
        self._producer.init_transactions(30)
        self._topic, self._partitions, self._pause = topic, partitions, 10 / rate
        self.stored: list[tuple[int, int]] = []

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            sent: list[tuple[int, int]] = []

            def delivered(error: KafkaError | None, message: Message, sent: list[tuple[int, int]] = sent) -> None:
                assert error is None, error
                sent.append((message.partition() or 0, message.offset() or 0))

            self._producer.begin_transaction()
            for number_ in range(number, number + 10):
                self._producer.produce(
                    self._topic, f"{number_}", partition=number_ % self._partitions, on_delivery=delivered
                )
            assert self._producer.flush(30) == 0
            number += 10
            if number % 50 == 0:
                self._producer.abort_transaction(30)
            else:
                self.stored += sent
                self._producer.commit_transaction(30)


def ends(stored: Stored) -> dict[int, int]:
    """The offset after the last record of each partition."""
    positions: dict[int, int] = {}
    for partition, offset in stored:
        positions[partition] = max(positions.get(partition, 0), offset + 1)
    return positions
