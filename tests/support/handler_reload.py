"""Support for tests of handlers in a reload: a ledger of accounts that a handler keeps, and that code, fixed.

A record is the shop's: ``id`` is the account, ``amount`` what is booked. The handler writes ``bookings``, a row per
record, and ``totals``, a sum per account; version 2 doubles what version 1 booked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Table, Text, create_engine, text
from sqlalchemy.dialects.postgresql import insert

from seekpoint import Batch, Json, Pipeline
from seekpoint.errors import Poison
from seekpoint.jobs.reload import Reload
from support.reload_orders import Order, Shop

TABLES = """
CREATE TABLE {schema}.rates (name text PRIMARY KEY, factor bigint NOT NULL);
INSERT INTO {schema}.rates VALUES ('one', 1);
CREATE TABLE {schema}.bookings (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, source_offset bigint NOT NULL,
    account bigint NOT NULL, amount bigint NOT NULL CHECK (amount < 5000),
    CONSTRAINT once_each UNIQUE (source_offset));
CREATE TABLE {schema}.totals (account bigint PRIMARY KEY, total bigint NOT NULL, records bigint NOT NULL);
"""

Handle = Callable[[Connection, Batch[Any, Any]], None]
WRITES = ("bookings", "totals")


def tables(schema: str | None) -> tuple[Table, Table]:
    """As SQLAlchemy knows them."""
    metadata = MetaData(schema=schema)
    whole = BigInteger
    return (
        Table("bookings", metadata, Column("source_offset", whole), Column("account", whole), Column("amount", whole)),
        Table("totals", metadata, Column("account", whole), Column("total", whole), Column("records", whole)),
    )


def rates(schema: str | None) -> Table:
    """The table that the handler reads and never writes."""
    return Table("rates", MetaData(schema=schema), Column("name", Text), Column("factor", BigInteger))


def by_core(schema: str | None, version: int) -> Handle:
    """SQLAlchemy's Core, tables with a schema or without."""
    bookings, totals = tables(schema)
    rate = rates(schema)

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        factor = tx.execute(rate.select()).one().factor
        for record in batch:
            order = record.value
            if version > 1 and order.amount > 1_000:
                raise Poison("too much", record)
            amount = order.amount * version * factor
            tx.execute(insert(bookings).values(source_offset=record.offset, account=order.id, amount=amount))
            booked = insert(totals).values(account=order.id, total=amount, records=1)
            tx.execute(
                booked.on_conflict_do_update(
                    index_elements=["account"],
                    set_={"total": totals.c.total + booked.excluded.total, "records": totals.c.records + 1},
                )
            )

    return handle


def by_hand(schema: str, version: int) -> Handle:
    """psycopg's own cursor; ``schema`` is put before every name: ``""``, or ``live.``."""

    def handle(tx: Connection, batch: Batch[Any, Any]) -> None:
        driver: Any = tx.connection.driver_connection
        with driver.cursor() as cursor:
            with cursor.copy(f"COPY {schema}bookings (source_offset, account, amount) FROM STDIN") as copy:
                for record in batch:
                    copy.write_row((record.offset, record.value.id, record.value.amount * version))
            cursor.executemany(
                f"INSERT INTO {schema}totals AS t VALUES (%s, %s, 1) ON CONFLICT ON CONSTRAINT totals_pkey "
                "DO UPDATE SET total = t.total + excluded.total, records = t.records + 1",
                [(record.value.id, record.value.amount * version) for record in batch],
            )

    return handle


def booked(records: Sequence[tuple[str, str | None]], by: int = 1) -> tuple[list[Any], list[Any]]:
    """Both tables, as they are after these records of one partition: without numbers, and the sums."""
    rows: list[Any] = []
    sums: dict[int, tuple[int, int]] = {}
    for offset, (_, value) in enumerate(records):
        order = json.loads(value or "")
        rows.append((offset, order["id"], order["amount"] * by))
        total, count = sums.get(order["id"], (0, 0))
        sums[order["id"]] = (total + order["amount"] * by, count + 1)
    return rows, sorted((account, *sum_) for account, sum_ in sums.items())


@dataclass(frozen=True)
class Books:
    """The shop, with a handler instead of sinks. ``engine`` has the tables' schema on its path."""

    shop: Shop
    engine: Engine

    @classmethod
    def of(cls, shop: Shop) -> Books:
        with shop.engine.begin() as tx:
            tx.execute(text(TABLES.format(schema=shop.schema)))
        path = f"-csearch_path={shop.schema},public"
        return cls(shop, create_engine(shop.engine.url, connect_args={"options": path}))

    def pipeline(self, handle: Handle, version: int = 2, **options: Any) -> Pipeline:
        options.setdefault("writes", [f"{self.shop.schema}.{name}" for name in WRITES])
        return Pipeline(
            self.shop.group, topics=self.shop.topic, value=Json(Order), handle=handle, version=version, **options
        )

    def worker(self, handle: Handle, version: int = 1, **options: Any) -> Any:
        return self.shop.run_worker(self.pipeline(handle, version, **options), engine=self.engine)

    def applied(self, records: Sequence[tuple[str, str | None]], make: Callable[[int], Handle], **options: Any) -> None:
        """By version 1, which has ended then; all in one partition."""
        before = self.shop.ledger().read()
        start = next((at.next_offset for at in before if at.partition.number == 0), 0)
        self.shop.produce(self.shop.topic, records, partition=0)
        worker = self.worker(make(1), **options)
        worker.finish(self.shop.topic, start + len(records))

    def reload(self, handle: Handle, version: int = 2, **options: Any) -> Reload:
        given = options.pop("pipeline", {})
        return Reload(
            [self.pipeline(handle, version, **given)],
            self.engine,
            {"bootstrap.servers": self.shop.brokers},
            schema=self.shop.schema,
            **{"max_wait": 60.0, "max_deletes": 1.0} | options,
        )

    def rows(self) -> tuple[list[Any], list[Any]]:
        return (
            self.shop.rows("bookings", "source_offset, account, amount"),
            self.shop.rows("totals", "account, total, records"),
        )
