"""The two kinds of records, their topics and tables; and whether a table holds what it should.

``flights``: the topic and table of the other benchmarks, 20 columns, about 330 bytes of JSON. ``payments``: four
columns, about 85 bytes. Both have six partitions. What a table should hold is written by COPY into the schema
``expected``, once, and compared by count and by one checksum over all columns.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not re-exported by its stubs
from psycopg import sql
from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, Numeric, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from seekpoint.dev.demo.flights import PARTITIONS
from seekpoint.dev.demo.flights import table as flights_table
from setting import BROKERS, RECORDS, flights

EXPECTED = "expected"
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A small record; amount and time are text in JSON, and numbers and times in the table."""

    id: int
    account: int
    amount: str
    at: str


def payments(records: int) -> Iterator[Payment]:
    """The same records on every call."""
    draw = random.Random(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(1, records + 1):
        at = (start + timedelta(milliseconds=37 * number)).isoformat(timespec="milliseconds")
        amount = f"{draw.randrange(1, 100_000) / 100:.2f}"
        yield Payment(number, draw.randrange(50_000), amount, at.replace("+00:00", "Z"))


@dataclass(frozen=True)
class Kind:
    """One kind of record; ``name`` is its topic and its table."""

    name: str
    table: Table
    key: str
    times: str  # how Python's strptime would read its times
    make: Callable[[int], Iterator[Any]]

    @property
    def columns(self) -> dict[str, str]:
        """Name and type, in lower case: ``{"id": "bigint", ..}``."""
        return {c.name: c.type.compile(dialect=_DIALECT).lower() for c in self.table.columns}

    def create(self, name: str, schema: str | None = None) -> bytes:
        """The statement that creates its table, by this name."""
        table = self.table.to_metadata(MetaData(schema=schema), name=name)
        return str(CreateTable(table).compile(dialect=_DIALECT)).encode()


_payments = Table(
    "payments",
    MetaData(),
    Column("id", BigInteger),
    Column("account", Integer),
    Column("amount", Numeric),
    Column("at", DateTime(timezone=True)),
)
KINDS = {
    "flights": Kind("flights", flights_table, "carrier", "%Y-%m-%dT%H:%M:%SZ", flights),
    "payments": Kind("payments", _payments, "account", "%Y-%m-%dT%H:%M:%S.%fZ", payments),
}


def fill(kind: Kind, brokers: str, records: int) -> None:
    """Create the topic and produce its records; nothing where it has them already."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    if kind.name in admin.list_topics(timeout=30).topics:
        found = sum(ends(kind, brokers).values())
        assert found == records, (
            f"the topic {kind.name} has {found} records, not {records}: BENCH_RECORDS says how many"
        )
        return
    admin.create_topics([NewTopic(kind.name, PARTITIONS, 1)])[kind.name].result(30)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "log_level": 0})
    encode = msgspec.json.Encoder().encode
    for record in kind.make(records):
        while True:
            try:
                producer.produce(kind.name, encode(record), str(getattr(record, kind.key)))
            except BufferError:  # the client's queue is full: let some of it go first
                producer.poll(0.1)
            else:
                producer.poll(0)
                break
    assert producer.flush(60) == 0, "the broker did not take every record within 60 s"
    assert sum(ends(kind, brokers).values()) == records


def ends(kind: Kind, brokers: str) -> dict[int, int]:
    """Where each partition of the topic ends."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "ends", "log_level": 0})
    try:
        found = {}
        for partition in range(PARTITIONS):
            _, found[partition] = consumer.get_watermark_offsets(TopicPartition(kind.name, partition), timeout=30)
        return found
    finally:
        consumer.close()


def expect(kind: Kind, dsn: str, records: int) -> str:
    """The table that has what the topic has, made when it is not there; its qualified name."""
    name = f"{EXPECTED}.{kind.name}_{records}"
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
        if found is None or found[0] is None:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {EXPECTED}")
            connection.execute(kind.create(f"{kind.name}_{records}", EXPECTED))
            columns = tuple(kind.columns)
            with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN".encode()) as copy:
                for record in kind.make(records):
                    copy.write_row([getattr(record, column) for column in columns])
            connection.execute(f"ANALYZE {name}".encode())
    return name


def fresh(kind: Kind, dsn: str, *, key: bool = False, warm: bool = False, alter: tuple[str, ...] = ()) -> None:
    """An empty table and a quiet server; with ``key`` a primary key, with ``warm`` a second one, ``NAME_warm``.

    ``alter`` are changes for a peer that cannot write into the table as it is.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {kind.name}, {kind.name}_warm".encode())
        connection.execute(kind.create(kind.name))
        primary = ("ADD PRIMARY KEY (id)",) if key else ()
        for change in ("SET (autovacuum_enabled = false)", *primary, *alter):
            connection.execute(f"ALTER TABLE {kind.name} {change}".encode())
        if warm:
            connection.execute(f"CREATE TABLE {kind.name}_warm (LIKE {kind.name} INCLUDING ALL)".encode())
        connection.execute("CHECKPOINT")


def verify(kind: Kind, dsn: str, records: int, renamed: Mapping[str, str] | None = None) -> None:
    """AssertionError unless the table holds each record once, in every column.

    ``renamed`` are columns that a peer had to call otherwise.
    """
    with psycopg.connect(dsn) as connection:
        wanted = _digest(connection, kind, expect(kind, dsn, records), {})
        found = _digest(connection, kind, kind.name, renamed or {})
    assert found == wanted, f"{kind.name} has (rows, ids, checksum) {found}, not {wanted}"


def _digest(
    connection: psycopg.Connection[Any], kind: Kind, name: str, renamed: Mapping[str, str]
) -> tuple[int, int, str]:
    def canonical(column: str, type_: str) -> sql.Composable:
        value = sql.SQL("{}::{}").format(sql.Identifier(renamed.get(column, column)), sql.SQL(type_))
        return sql.SQL("trim_scale({})").format(value) if type_ == "numeric" else value

    query = sql.SQL(
        "SELECT count(*), count(DISTINCT {id}), sum(hashtextextended(ROW({values})::text, 0))::text FROM {t}"
    )
    values = sql.SQL(", ").join(canonical(column, type_) for column, type_ in kind.columns.items())
    rows = connection.execute(
        query.format(id=sql.Identifier(renamed.get("id", "id")), values=values, t=sql.Identifier(*name.split(".")))
    ).fetchone()
    assert rows is not None
    return rows[0], rows[1], rows[2]


if __name__ == "__main__":  # for the benchmarks that find their topic filled
    fill(KINDS[os.environ["BENCH_TABLE"]], BROKERS, RECORDS)
