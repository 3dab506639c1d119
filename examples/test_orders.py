"""How to test a pipeline: with records made by hand, on a real Postgres, without a broker.

In your project the declaration is in one of your modules, and ``pytest_plugins`` in your ``conftest.py``.
The plugin lends a real Postgres (yours, Docker's or an embedded one) with the ledger's tables in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import msgspec
import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Numeric, Table, create_engine, insert, select

from seekpoint import Append, Batch, Json, Partition, Pipeline, Poison, RawRecord
from seekpoint.errors import PoisonStop
from seekpoint.testing import batch, check_exactly_once, process, raw, record

pytest_plugins = ["seekpoint.testing.pytest_plugin"]


# -- the pipeline: a pure declaration -----------------------------------------------------------------------

metadata = MetaData()
orders_table = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("amount", Numeric))
entries_table = Table("entries", metadata, Column("order_id", Integer), Column("amount", Numeric))


class Order(msgspec.Struct):
    id: int
    amount: Decimal


def entries_of(orders: Batch[Order, bytes | None]) -> list[dict[str, object]]:
    """A pure function, which tests can call without a server."""
    entries: list[dict[str, object]] = []
    for order in orders:
        if order.value.amount < 0:
            raise Poison("negative amount", order)  # names its record: its partition stops before it
        entries.append({"order_id": order.value.id, "amount": order.value.amount})
    return entries


def post(tx: Connection, orders: Batch[Order, bytes | None]) -> None:
    """Runs in the transaction that advances the offsets."""
    tx.execute(insert(entries_table), entries_of(orders))


billing = Pipeline(
    "billing", topics="orders", value=Json(Order), sinks=[Append("orders")], handle=post, writes=["entries"]
)


# -- tests of the transform: no server ----------------------------------------------------------------------


def test_an_order_becomes_an_entry() -> None:
    assert entries_of(batch(record(Order(1, Decimal("9.50"))))) == [{"order_id": 1, "amount": Decimal("9.50")}]


def test_a_negative_amount_is_poison() -> None:
    bad = record(Order(2, Decimal(-1)), offset=1)
    with pytest.raises(Poison, match="negative amount") as caught:
        entries_of(batch(record(Order(1, Decimal(1))), bad))
    assert caught.value.records == (bad,)


# -- tests of the whole: the real unit of work --------------------------------------------------------------


@pytest.fixture
def database(seekpoint_url: str) -> Iterator[Engine]:
    """Your tables and the ledger's, in a schema that only this test uses."""
    engine = create_engine(seekpoint_url)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def order(offset: int, number: int, amount: str, partition: int = 0) -> RawRecord:
    """A record as Kafka holds it."""
    return raw(f'{{"id": {number}, "amount": "{amount}"}}'.encode(), topic="orders", partition=partition, offset=offset)


def rows(database: Engine, table: Table) -> list[tuple[int, Decimal]]:
    with database.connect() as tx:
        return [(number, amount) for number, amount in tx.execute(select(table).order_by(table.c[0]))]


def test_each_order_is_written_and_posted_once(database: Engine, seekpoint_schema: str) -> None:
    records = [order(0, 1, "9.50"), order(1, 2, "3")]
    assert process(billing, database, records, schema=seekpoint_schema).records == 2
    assert process(billing, database, records, schema=seekpoint_schema).records == 0  # as after a restart
    assert rows(database, orders_table) == rows(database, entries_table) == [(1, Decimal("9.50")), (2, Decimal(3))]


def test_a_negative_order_stops_its_partition_and_no_other(database: Engine, seekpoint_schema: str) -> None:
    records = [order(0, 1, "1"), order(1, 2, "-2"), order(2, 3, "3"), order(0, 4, "4", partition=1)]
    with pytest.raises(PoisonStop, match="negative amount") as stopped:
        process(billing, database, records, schema=seekpoint_schema)
    assert (stopped.value.partition, stopped.value.offset) == (Partition("orders", 0), 1)
    assert rows(database, orders_table) == rows(database, entries_table) == [(1, Decimal(1)), (4, Decimal(4))]


def test_an_order_that_is_no_order_stops_its_partition_too(database: Engine, seekpoint_schema: str) -> None:
    with pytest.raises(PoisonStop, match=r"Expected `int`, got `str` - at `\$\.id`"):
        process(billing, database, [raw(b'{"id": "x"}', topic="orders")], schema=seekpoint_schema)
    assert rows(database, entries_table) == []


@pytest.mark.usefixtures("database")
def test_each_order_is_posted_once_under_crashes_and_rebalances(seekpoint_url: str) -> None:
    log = [order(number // 2, number, "1.50", partition=number % 2) for number in range(20)]
    survived = check_exactly_once(billing, seekpoint_url, log, runs=2)
    assert survived.faults["crash before COMMIT"] > 0, survived
