"""The kinds of records, their topics and tables, and the check of a table's rows.

``payments``: six columns, 159 bytes of JSON, the shape on which the goals are measured; ``payments_100b`` and
``payments_1kb`` are the same with notes of other lengths, ``payments_spread`` has ids for an upsert into a table of
STORED rows. ``payments_changes`` are payments as Debezium reports them, every other one as an update, with JSON
schemas; ``payments_changes_plain`` are those without. ``totals``: two numbers, for tables of many rows. ``flights``: 20
columns, about 330 bytes. All have six partitions. The expected rows are written once by COPY into the schema
``expected``, and compared by count and one checksum over all columns.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not re-exported by its stubs
from psycopg import sql
from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, Numeric, Table, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from demo.flights import PARTITIONS, Flight
from demo.flights import table as flights_table
from setting import BROKERS, RECORDS, STORED, flights

EXPECTED = "expected"
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


class Payment(msgspec.Struct, frozen=True, gc=False):
    """A small record; amount and time are text in JSON, a number and a time in the table."""

    id: int
    account: int
    amount: str
    kind: str
    at: str
    note: str


class Total(msgspec.Struct, frozen=True, gc=False):
    """The smallest record that can be changed."""

    id: int
    amount: int


def totals(records: int) -> Iterator[Total]:
    """Make this many totals, equal on every call."""
    for number in range(1, records + 1):
        yield Total(number, number * 7919 % 1_000_003)


WORDS = (
    "alpha",
    "bravo",
    "carbon",
    "delta",
    "ember",
    "fjord",
    "grain",
    "harbor",
    "island",
    "jasper",
    "kettle",
    "lumen",
)
SORTS = ("credit", "debit", "refund", "fee")
NOTE = 55  # bytes, which make 159 in all


def payments(records: int, *, note: int = NOTE, id_of: Callable[[int], int] = int) -> Iterator[Payment]:
    """Make this many payments, equal on every call; ``id_of`` makes the id of the n-th, from 1."""
    draw = random.Random(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    text = " ".join(draw.choices(WORDS, k=5000))
    for number in range(1, records + 1):
        time = (start + timedelta(milliseconds=37 * number)).isoformat(timespec="milliseconds")
        amount = f"{draw.randrange(1, 100_000) / 100:.2f}"
        begin = draw.randrange(len(text) - note)
        yield Payment(
            id_of(number),
            draw.randrange(50_000),
            amount,
            SORTS[number & 3],
            time.replace("+00:00", "Z"),
            text[begin : begin + note],
        )


def spread_id(number: int) -> int:
    """The n-th id: one in five is new to a table of STORED rows; up to STORED no id comes twice."""
    return STORED + number if number % 5 == 0 else number * 7_368_787 % _PRIME or _PRIME


def _greatest_prime(most: int) -> int:
    return next(n for n in range(most, 1, -1) if all(n % d for d in range(2, int(n**0.5) + 1)))


_PRIME = _greatest_prime(STORED)


@dataclass(frozen=True)
class Kind:
    """One kind of record; ``name`` is its topic and its table."""

    name: str
    record: type[msgspec.Struct]
    table: Table
    key: str
    times: str  # the format of its times for strptime
    make: Callable[[int], Iterator[Any]]
    encode: Callable[[Any], Mapping[str, Any]] | None = None  # a record's key and value; None: JSON, keyed by ``key``

    @property
    def columns(self) -> dict[str, str]:
        """Name and type, in lower case: ``{"id": "bigint", ..}``."""
        return {c.name: c.type.compile(dialect=_DIALECT).lower() for c in self.table.columns}

    def create(self, name: str, schema: str | None = None) -> bytes:
        """The statement that creates its table, by this name."""
        table = self.table.to_metadata(MetaData(schema=schema), name=name)
        return str(CreateTable(table).compile(dialect=_DIALECT)).encode()


def _payments(
    name: str,
    make: Callable[[int], Iterator[Payment]],
    encode: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Kind:
    table = Table(
        name,
        MetaData(),
        Column("id", BigInteger),
        Column("account", Integer),
        Column("amount", Numeric),
        Column("kind", Text),
        Column("at", DateTime(timezone=True)),
        Column("note", Text),
    )
    return Kind(name, Payment, table, "account", "%Y-%m-%dT%H:%M:%S.%fZ", make, encode)


def _field(name: str, kind: str, named: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": name != "id", "field": name, **({"name": named} if named else {}), **more}


DECIMAL = {"version": 1, "parameters": {"scale": "2", "connect.decimal.precision": "10"}}
ROW = [
    _field("id", "int64"),
    _field("account", "int32"),
    _field("amount", "bytes", "org.apache.kafka.connect.data.Decimal", **DECIMAL),
    _field("kind", "string"),
    _field("at", "string", "io.debezium.time.ZonedTimestamp", version=1),
    _field("note", "string"),
]
SOURCE = {
    "version": "3.5.0.Final",
    "connector": "postgresql",
    "name": "dbz",
    "ts_ms": 1767225600000,
    "snapshot": "false",
    "db": "shop",
    "sequence": '[null,"24023128"]',
    "schema": "public",
    "table": "payments",
    "txId": 739,
    "lsn": 24023128,
    "xmin": None,
}


def _schemas() -> tuple[bytes, bytes]:
    """The schemas of key and value, as Kafka's JsonConverter writes them for Debezium's connector for Postgres."""
    rows = [
        {"type": "struct", "fields": ROW, "optional": True, "name": "dbz.public.payments.Value", "field": part}
        for part in ("before", "after")
    ]
    kinds = {int: "int64", str: "string", type(None): "int64"}
    origin = [_field(name, kinds[type(value)]) for name, value in SOURCE.items()]
    source = _field("source", "struct", "io.debezium.connector.postgresql.Source", fields=origin)
    fields = [*rows, source, _field("transaction", "string"), _field("op", "string"), _field("ts_ms", "int64")]
    value = {"type": "struct", "fields": fields, "optional": False, "name": "dbz.public.payments.Envelope"}
    key = {"type": "struct", "fields": ROW[:1], "optional": False, "name": "dbz.public.payments.Key"}
    return msgspec.json.encode(key), msgspec.json.encode(value)


KEY_SCHEMA, VALUE_SCHEMA = _schemas()


def _change(payment: Payment, *, framed: bool) -> dict[str, Any]:
    """This payment's insert or update, as Debezium's connector for Postgres writes it in JSON."""
    cents = int(payment.amount.replace(".", ""))
    after = msgspec.structs.asdict(payment) | {"amount": cents.to_bytes(cents.bit_length() // 8 + 1, "big")}
    envelope = {
        "before": None,
        "after": after,
        "source": SOURCE,
        "transaction": None,
        "op": "u" if payment.id % 2 else "c",  # by default, Postgres does not log the row before an update
        "ts_ms": 1767225600123,
    }
    key, value = msgspec.json.encode({"id": payment.id}), msgspec.json.encode(envelope)
    if framed:
        key, value = (b'{"schema":%b,"payload":%b}' % pair for pair in ((KEY_SCHEMA, key), (VALUE_SCHEMA, value)))
    return {"key": key, "value": value}


_ALL = (
    _payments("payments", payments),
    _payments("payments_staged", payments),  # in another topic, with more records
    _payments("payments_100b", partial(payments, note=0)),
    _payments("payments_1kb", partial(payments, note=920)),
    _payments("payments_spread", partial(payments, id_of=spread_id)),
    _payments("payments_changes", payments, partial(_change, framed=True)),
    _payments("payments_changes_plain", payments, partial(_change, framed=False)),
    Kind(
        "totals",
        Total,
        Table("totals", MetaData(), Column("id", BigInteger), Column("amount", BigInteger)),
        "id",
        "",
        totals,
    ),
    Kind("flights", Flight, flights_table, "carrier", "%Y-%m-%dT%H:%M:%SZ", flights),
)
KINDS = {kind.name: kind for kind in _ALL}


def fill(kind: Kind, brokers: str, records: int) -> None:
    """Create the topic and produce its records, unless it has them already."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    if kind.name in admin.list_topics(timeout=30).topics:
        count = sum(ends(kind, brokers).values())
        assert count == records, (
            f"the topic {kind.name} has {count} records, not {records}: set BENCH_RECORDS to {count}"
        )
        return
    in_json = msgspec.json.Encoder().encode
    encode = kind.encode or (lambda record: {"value": in_json(record), "key": str(getattr(record, kind.key))})
    send(brokers, kind.name, map(encode, kind.make(records)))
    assert sum(ends(kind, brokers).values()) == records


def send(brokers: str, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Create the topic and produce these records to it."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "log_level": 0})
    for record in records:
        while True:
            try:
                producer.produce(topic, **record)
            except BufferError:  # the client's queue is full: wait until it has sent some
                producer.poll(0.1)
            else:
                producer.poll(0)
                break
    assert producer.flush(60) == 0, "the broker did not take every record within 60 s"


def ends(kind: Kind, brokers: str) -> dict[int, int]:
    """The end offset of each partition."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "ends", "log_level": 0})
    try:
        offsets = {}
        for partition in range(PARTITIONS):
            _, offsets[partition] = consumer.get_watermark_offsets(TopicPartition(kind.name, partition), timeout=30)
        return offsets
    finally:
        consumer.close()


def expect(kind: Kind, dsn: str, records: int) -> str:
    """The qualified name of the table with the expected rows, made if it is missing."""
    name = f"{EXPECTED}.{kind.name}_{records}"
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
        if row is None or row[0] is None:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {EXPECTED}")
            connection.execute(kind.create(f"{kind.name}_{records}", EXPECTED))
            columns = tuple(kind.columns)
            with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN".encode()) as copy:
                for record in kind.make(records):
                    copy.write_row([getattr(record, column) for column in columns])
            connection.execute(f"ANALYZE {name}".encode())
    return name


def fresh(kind: Kind, dsn: str, *, key: bool = False, warm: bool = False, alter: tuple[str, ...] = ()) -> None:
    """Create an empty table on a quiet server; ``key``: with a primary key; ``warm``: and a table ``NAME_warm``.

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


def verify(kind: Kind, dsn: str, records: int, renamed: Mapping[str, str] | None = None, *, part: bool = False) -> None:
    """Raise AssertionError unless the table holds each record once, in every column.

    ``renamed`` are columns that a peer had to rename. With ``part`` the table may lack records and have other rows:
    only rows with the id of a record must be equal to it.
    """
    with psycopg.connect(dsn) as connection:
        name = expect(kind, dsn, records)
        if part:
            expected = _digest(connection, kind, name, {}, among=kind.name)
            actual = _digest(connection, kind, kind.name, {}, among=name)
        else:
            expected = _remembered(connection, kind, name)
            actual = _digest(connection, kind, kind.name, renamed or {})
    assert actual == expected, f"{kind.name} has (rows, ids, checksum) {actual}, not {expected}"


Digest = tuple[int, int, str]


def _remembered(connection: psycopg.Connection[Any], kind: Kind, name: str) -> Digest:
    """The digest of the expected table, which never changes."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {EXPECTED}.digest (name text, rows bigint, ids bigint, sum text)")
    digest = connection.execute(f"SELECT rows, ids, sum FROM {EXPECTED}.digest WHERE name = %s", [name]).fetchone()
    if digest is None:
        digest = _digest(connection, kind, name, {})
        connection.execute(f"INSERT INTO {EXPECTED}.digest VALUES (%s, %s, %s, %s)", [name, *digest])
    return digest[0], digest[1], digest[2]


def _digest(
    connection: psycopg.Connection[Any], kind: Kind, name: str, renamed: Mapping[str, str], among: str | None = None
) -> Digest:
    def canonical(column: str, type_: str) -> sql.Composable:
        value = sql.SQL("{}::{}").format(sql.Identifier(renamed.get(column, column)), sql.SQL(type_))
        return sql.SQL("trim_scale({})").format(value) if type_ == "numeric" else value

    query = sql.SQL(
        "SELECT count(*), count(DISTINCT {id}), sum(hashtextextended(ROW({values})::text, 0))::text FROM {t}{where}"
    )
    where: sql.Composable = sql.SQL("")
    if among is not None:
        where = sql.SQL(" WHERE id IN (SELECT id FROM {})").format(sql.Identifier(*among.split(".")))
    values = sql.SQL(", ").join(canonical(column, type_) for column, type_ in kind.columns.items())
    rows = connection.execute(
        query.format(
            id=sql.Identifier(renamed.get("id", "id")),
            values=values,
            t=sql.Identifier(*name.split(".")),
            where=where,
        )
    ).fetchone()
    assert rows is not None
    return rows[0], rows[1], rows[2]


if __name__ == "__main__":  # for the benchmarks that need a filled topic
    fill(KINDS[os.environ["BENCH_TABLE"]], BROKERS, RECORDS)
