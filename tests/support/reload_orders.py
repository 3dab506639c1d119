"""Support for tests of a reload: orders in a topic, and two versions of a pipeline that writes them to tables.

A record is ``{"id": 7, "amount": 3, "at": 12}``; ``None`` with the key ``{"id": 7}`` deletes. Version 1 stores amounts
unchanged; version 2 doubles them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from seekpoint import Append, Json, Limits, Pipeline, Upsert, schema
from seekpoint.admin import Admin, ReplayableDeadLetters
from seekpoint.jobs.reload import Driver, Reload, Staged, stage_range
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.staging.stage import Task
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import GroupLedger
from seekpoint.testing.servers.postgres import PostgresServer
from support.databases import libpq
from support.events import Run


class Order(msgspec.Struct):
    """A record's value: one order."""

    id: int
    amount: int
    at: int = 0


class OrderKey(msgspec.Struct):
    """A record's key: the order's id."""

    id: int


def of(id: int, amount: int = 1, at: int = 0) -> tuple[str, str | None]:  # noqa: A002
    """The key and value of an order's record."""
    return json.dumps({"id": id}), json.dumps({"id": id, "amount": amount, "at": at})


def gone(id: int) -> tuple[str, str | None]:  # noqa: A002
    """A tombstone's key and value."""
    return json.dumps({"id": id}), None


def pipeline(
    group: str, topic: str, schema: str, *, version: int = 1, kind: str = "upsert", **options: Any
) -> Pipeline:
    """The group's pipeline; version 2 doubles amounts, and fails above 1,000.

    ``kind`` is "upsert", "append" (table ``entries``), or the name of another table to append to.
    """

    def row(record: Any) -> dict[str, Any]:
        order = record.value
        if version > 1 and order.amount > 1_000:
            raise ValueError("too much")
        row = {"id": order.id, "amount": order.amount * version, "at": order.at}
        return row if kind == "upsert" else row | {"topic_offset": record.offset}

    columns = ["id", "amount", "at"]
    sink: Any
    if kind == "upsert":
        sink = Upsert((schema, "orders"), key=["id"], columns=columns, row=row, **options.pop("sink", {}))
    else:
        table = "entries" if kind == "append" else kind
        sink = Append((schema, table), columns=[*columns, "topic_offset"], row=row, **options.pop("sink", {}))
    tombstones = kind == "upsert"
    return Pipeline(
        group,
        topics=topic,
        value=Json(Order, tombstones=tombstones),
        key=Json(OrderKey) if tombstones else options.pop("key", Json(OrderKey)),
        sinks=[sink],
        version=version,
        **options,
    )


# The pipeline in version 2, as a module that other processes import by name. ``first`` is there to be replaced.
PLAIN = """
from seekpoint import Json, Pipeline, Upsert
from support.reload_orders import Order, OrderKey

def first(record):
    pass

def row(record):
    first(record)
    order = record.value
    if order.amount > 1000:
        raise ValueError("too much")
    return {{"id": order.id, "amount": order.amount * 2, "at": order.at}}

sink = Upsert(({schema!r}, "orders"), key=["id"], columns=["id", "amount", "at"], row=row)
orders = Pipeline({group!r}, topics={topic!r}, value=Json(Order, tombstones=True), key=Json(OrderKey), sinks=[sink],
                  version=2)
"""


TABLES = """
CREATE TABLE {schema}.orders (id bigint PRIMARY KEY, amount bigint NOT NULL CHECK (amount < 5000), at bigint NOT NULL,
    note text DEFAULT 'none');
CREATE TABLE {schema}.entries (number bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, amount bigint NOT NULL,
    at bigint NOT NULL, topic_offset bigint PRIMARY KEY);
CREATE INDEX ON {schema}.orders (amount);
"""


@dataclass(frozen=True)
class OrdersGroup:
    """One group with its topic, tables and servers."""

    engine: Engine
    brokers: str
    schema: str
    group: str
    topic: str
    run_worker: Callable[..., Run]
    produce: Callable[..., list[tuple[int, int]]]

    @classmethod
    def on_shared_servers(cls, get: Callable[[str], Any]) -> OrdersGroup:
        """A new group with tables in the ledger's schema and a topic of two partitions; ``get`` returns fixtures."""
        return cls._made(get, get("seekpoint_engine"), get("run_worker"))

    @classmethod
    def _made(cls, get: Callable[[str], Any], engine: Engine, run_worker: Callable[..., Run]) -> OrdersGroup:
        names = (get("seekpoint_broker"), get("seekpoint_schema"), get("group"), get("topic")(2))
        orders_group = cls(engine, *names, run_worker, get("produce"))
        orders_group.make_tables()
        return orders_group

    @property
    def url(self) -> str:
        """The database's URL, with its password."""
        return libpq(self.engine.url)

    @property
    def database_options(self) -> list[str]:
        """The command's options that name the database."""
        return ["--database-url", self.url, "--schema", self.schema]

    @property
    def server_options(self) -> list[str]:
        """The command's options that name both servers."""
        return [*self.database_options, "--kafka", f"bootstrap.servers={self.brokers}"]

    def make_tables(self) -> None:
        with self.engine.begin() as tx:
            tx.execute(text(TABLES.format(schema=self.schema)))

    def pipeline(self, **options: Any) -> Pipeline:
        return pipeline(self.group, self.topic, self.schema, **options)

    def worker(self, limits: Limits | None = None, **options: Any) -> Run:
        return self.run_worker(self.pipeline(**options), limits=limits or Limits())

    def work(self, upto: int, **options: Any) -> None:
        """Have a worker apply partition 0 up to this offset, and stop."""
        self.apply(self.pipeline(**options), upto)

    def put(self, records: Sequence[tuple[str, str | None]], partition: int = 0) -> int:
        """Produce these records; returns the offset after the last one."""
        return self.produce(self.topic, records, partition=partition)[-1][1] + 1

    def apply(self, pipeline: Pipeline, offset: int, **options: Any) -> None:
        """Run a worker until it has applied partition 0 up to this offset."""
        worker = self.run_worker(pipeline, **options)
        worker.reached(self.topic, offset)
        worker.stop()

    def reload(self, pipelines: Sequence[Pipeline | str] = (), **options: Any) -> Reload:
        """A reload with wide limits, unless the test gives narrower ones."""
        version = options.pop("version", 2)
        options = {"max_wait": 60.0, "max_deletes": 1.0} | options
        return Reload(
            pipelines or [self.pipeline(version=version, **options.pop("pipeline", {}))],
            self.engine,
            {"bootstrap.servers": self.brokers},
            schema=self.schema,
            **options,
        )

    def new_replay(self, **options: Any) -> ReplayableDeadLetters:
        return Admin(self.engine, schema=self.schema).dead_letters(self.pipeline(**options))

    def ledger(self) -> GroupLedger:
        return GroupLedger(self.engine, self.group, schema=self.schema)

    def rows(self, table: str = "orders", columns: str = "id, amount, at") -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            rows = connection.execute(text(f"SELECT {columns} FROM {self.schema}.{table} ORDER BY 1, 2, 3"))
            return [tuple(row) for row in rows]

    def execute(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.engine.begin() as tx:
            rows = tx.execute(text(statement.format(schema=self.schema)), values)
            return [tuple(row) for row in rows] if rows.returns_rows else []

    @contextmanager
    def holding(self, *statements: str, isolation: Any = "READ COMMITTED") -> Iterator[Connection]:
        """A transaction that has run these statements, and is rolled back when the block ends."""
        with self.engine.connect().execution_options(isolation_level=isolation) as connection:
            for statement in statements:
                connection.execute(text(statement.format(schema=self.schema)))
            yield connection

    def version(self) -> int:
        """The group's handler version."""
        return int(self.execute("SELECT version FROM {schema}.consumer_group")[0][0])

    def schemas(self) -> list[str]:
        """The existing staging schemas of this ledger's runs."""
        there = "SELECT staging_schema FROM {schema}.reload_run WHERE to_regnamespace(staging_schema) IS NOT NULL"
        return [row[0] for row in self.execute(there)]


def tasks(driver: Driver, width: int = 40) -> tuple[Task, ...]:
    """The ranges of a run in the state ``staging`` that no task has staged."""
    with driver.step("staging") as tx:
        return coverage(tx, width).missing


def stage(reload: Reload, driver: Driver, range_: Range) -> Staged:
    """Stage one range, as a task does."""
    pipeline = reload.sources[0].pipeline
    return stage_range(reload.engine, reload.schema, reload.kafka, driver.run.id, pipeline=pipeline, range_=range_)


def doubled(records: Sequence[tuple[str, str | None]], by: int = 2) -> list[tuple[int, int, int]]:
    """Version 2's rows after these records; ``by`` is its factor."""
    table: dict[int, tuple[int, int, int]] = {}
    for key, value in records:
        id_: int = json.loads(key)["id"]
        if value is None:
            table.pop(id_, None)
        else:
            order: Mapping[str, int] = json.loads(value)
            table[id_] = (id_, order["amount"] * by, order["at"])
    return sorted(table.values())


def orders_group_on(request: pytest.FixtureRequest, postgres: PostgresServer) -> OrdersGroup:
    """A group on a Postgres that the test may break."""
    get = request.getfixturevalue
    engine = create_engine(postgres.url, pool_pre_ping=True)
    schema.upgrade(engine, schema=get("seekpoint_schema"))

    def run_worker(pipeline: Any, **options: Any) -> Any:
        return get("run_worker")(pipeline, engine=engine, **options)

    return OrdersGroup._made(get, engine, run_worker)
