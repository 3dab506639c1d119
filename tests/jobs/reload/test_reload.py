"""A reload from end to end, on a real broker and a real Postgres."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.pipeline.writers import PipelineWriters
from support.before_cutover import applied_by, reloaded, resume, staged, working
from support.reload_orders import Order, OrderKey, OrdersGroup, doubled, gone, of


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_fixed_transform_takes_over_at_the_stored_offsets(orders_group: OrdersGroup, strategy: str) -> None:
    first = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]
    old = working(orders_group, first)
    assert orders_group.rows() == doubled(first, by=1)

    reload, driver = staged(orders_group.reload(range_records=50), strategy=strategy)
    later = [of(n % 50, n, n) for n in range(200, 260)] + [gone(11)]
    applied_by(old, orders_group, later)
    old.stop()
    outcome = reload.run(driver)

    assert orders_group.rows() == doubled(first + later)
    assert outcome.tries == 1
    assert reload.runs.get(driver.run.id).state == "cut_over"
    assert orders_group.schemas() == [], "nothing is left behind"


def test_one_group_that_writes_two_tables_is_one_cut_over(orders_group: OrdersGroup) -> None:
    """Both at the same offsets, and one with a key of its own in another place."""

    def both(version: int) -> Pipeline:
        def entry(record: Any) -> tuple[int, int, int, int]:
            return record.value.id, record.value.amount * version, record.value.at, record.offset

        first: Any = orders_group.pipeline(version=version, sink={"tombstone": None}).sinks[0]
        second = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=entry)
        return Pipeline(
            orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[first, second], version=version
        )

    records = [of(n % 20, n, n) for n in range(60)]
    orders_group.produce(orders_group.topic, records, partition=0)
    old = orders_group.run_worker(both(1))
    old.reached(orders_group.topic, 60)
    reload, driver = staged(orders_group.reload([both(2)], range_records=25))
    more = [of(n % 20, n, n) for n in range(60, 70)]
    applied_by(old, orders_group, more)
    old.stop()
    reload.run(driver)
    assert orders_group.rows() == doubled(records + more)
    assert orders_group.rows("entries", "topic_offset, id, amount") == [(n, n % 20, 2 * n) for n in range(70)]


def test_rows_that_refer_to_one_another_are_merged_in_their_order(orders_group: OrdersGroup) -> None:
    """The new version has other ids: old orders are deleted after their entries, new ones added before theirs."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD FOREIGN KEY (id) REFERENCES {schema}.orders")

    def both(version: int) -> Pipeline:
        def order(record: Any) -> tuple[int, int, int]:
            return record.value.id + 100 * version, 1, 1

        columns = ["id", "amount", "at"]
        orders = Upsert((orders_group.schema, "orders"), key=["id"], columns=columns, row=order)
        entries = Append(
            (orders_group.schema, "entries"), columns=[*columns, "topic_offset"], row=lambda r: (*order(r), r.offset)
        )
        return Pipeline(
            orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[orders, entries], version=version
        )

    orders_group.produce(orders_group.topic, [of(n % 7, n) for n in range(60)], partition=0)
    orders_group.apply(both(1), 60)
    reloaded(orders_group.reload([both(2)]))
    orders, entries = (
        {row[0] for row in orders_group.rows(table, "id, amount, at")} for table in ("orders", "entries")
    )
    assert orders == entries == {200 + n for n in range(7)}


def test_a_driver_that_takes_over_knows_columns_that_a_sink_learned_from_its_rows(orders_group: OrdersGroup) -> None:
    """The columns of Structs are unknown before the first row; a driver that takes over sees no row staged before."""

    def learning(version: int) -> Pipeline:
        def row(record: Any) -> Order:
            order: Order = record.value
            return Order(order.id, order.amount * version, order.at)

        sink = Upsert((orders_group.schema, "orders"), key=["id"], row=row)
        return Pipeline(orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[sink], version=version)

    records = [of(n % 20, n, n) for n in range(60)]
    orders_group.produce(orders_group.topic, records, partition=0)
    orders_group.apply(learning(1), 60)
    _, driver = staged(orders_group.reload([learning(2)]))
    resume(orders_group.reload([learning(2)]), driver.run.id)
    assert orders_group.rows() == doubled(records)
    assert orders_group.execute("SELECT DISTINCT note FROM {schema}.orders") == [("none",)]


def test_columns_are_those_of_the_sink_that_has_written(orders_group: OrdersGroup, topic: Callable[..., str]) -> None:
    """The first row of all comes in a catch-up pass, by the table's second sink; what it does not write stays."""
    topics = orders_group.topic, topic(1)

    def learning(version: int) -> Pipeline:
        sinks = [Upsert((orders_group.schema, "orders"), key=["id"], topics=name) for name in topics]
        return Pipeline(
            orders_group.group, topics=topics, value=Json(Order, tombstones=True), key=Json(OrderKey), sinks=sinks,
            version=version,
        )  # fmt: skip

    for name in topics:
        orders_group.produce(name, [gone(1)], partition=0)
    worker = orders_group.run_worker(learning(1))
    for name in topics:
        worker.reached(name, 1)
    reload, driver = staged(orders_group.reload([learning(2)]))
    orders_group.produce(topics[1], [of(1)], partition=0)
    worker.reached(topics[1], 2)
    worker.stop()
    orders_group.execute("UPDATE {schema}.orders SET note = 'by hand'")
    reload.run(driver)
    assert orders_group.rows("orders", "id, amount, note") == [(1, 1, "by hand")]


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_rows_that_are_made_of_values_alone_keep_their_order(orders_group: OrdersGroup, strategy: str) -> None:
    """Such records are not handled one by one; their rows go to the staged tables, with their offsets."""

    def plain(version: int) -> Pipeline:
        sink = Upsert((orders_group.schema, "orders"), key=["id"], tombstone=None)
        pipeline = Pipeline(
            orders_group.group, topics=orders_group.topic, value=Json(Order), sinks=[sink], version=version
        )
        assert PipelineWriters(pipeline).chunk_writer is not None
        return pipeline

    records = [of(n % 20, n, n) for n in range(60)]
    orders_group.produce(orders_group.topic, records, partition=0)
    orders_group.apply(plain(1), 60)
    orders_group.execute("UPDATE {schema}.orders SET amount = 0 WHERE id < 5")
    reloaded(orders_group.reload([plain(2)], range_records=25), strategy=strategy)
    assert orders_group.rows() == doubled(records, by=1)
