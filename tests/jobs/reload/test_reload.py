"""A reload from end to end, on a real broker and a real Postgres."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint import Append, Json, Pipeline, Upsert
from seekpoint.pipeline.writers import PipelineWriters
from support.before_cutover import applied_by, reloaded, resume, staged, working
from support.reload_orders import Order, Shop, doubled, gone, of


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_a_fixed_transform_takes_over_at_the_stored_offsets(shop: Shop, strategy: str) -> None:
    first = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]
    old = working(shop, first)
    assert shop.rows() == doubled(first, by=1)

    reload, driver = staged(shop.reload(range_records=50), strategy=strategy)
    later = [of(n % 50, n, n) for n in range(200, 260)] + [gone(11)]
    applied_by(old, shop, later)
    old.stop()
    outcome = reload.run(driver)

    assert shop.rows() == doubled(first + later)
    assert outcome.tries == 1
    assert reload.runs.get(driver.run.id).state == "cut_over"
    assert shop.schemas() == [], "nothing is left behind"


def test_one_group_that_writes_two_tables_is_one_cut_over(shop: Shop) -> None:
    """Both at the same offsets, and one with a key of its own in another place."""

    def both(version: int) -> Pipeline:
        def entry(record: Any) -> tuple[int, int, int, int]:
            return record.value.id, record.value.amount * version, record.value.at, record.offset

        first: Any = shop.pipeline(version=version, sink={"tombstone": None}).sinks[0]
        second = Append((shop.schema, "entries"), columns=["id", "amount", "at", "topic_offset"], row=entry)
        return Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[first, second], version=version)

    records = [of(n % 20, n, n) for n in range(60)]
    shop.produce(shop.topic, records, partition=0)
    old = shop.run_worker(both(1))
    old.reached(shop.topic, 60)
    reload, driver = staged(shop.reload([both(2)], range_records=25))
    more = [of(n % 20, n, n) for n in range(60, 70)]
    applied_by(old, shop, more)
    old.stop()
    reload.run(driver)
    assert shop.rows() == doubled(records + more)
    assert shop.rows("entries", "topic_offset, id, amount") == [(n, n % 20, 2 * n) for n in range(70)]


def test_rows_that_refer_to_one_another_are_merged_in_their_order(shop: Shop) -> None:
    """The new version has other ids: old orders are deleted after their entries, new ones added before theirs."""
    shop.execute("ALTER TABLE {schema}.entries ADD FOREIGN KEY (id) REFERENCES {schema}.orders")

    def both(version: int) -> Pipeline:
        def order(record: Any) -> tuple[int, int, int]:
            return record.value.id + 100 * version, 1, 1

        columns = ["id", "amount", "at"]
        orders = Upsert((shop.schema, "orders"), key=["id"], columns=columns, row=order)
        entries = Append(
            (shop.schema, "entries"), columns=[*columns, "topic_offset"], row=lambda r: (*order(r), r.offset)
        )
        return Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[orders, entries], version=version)

    shop.produce(shop.topic, [of(n % 7, n) for n in range(60)], partition=0)
    shop.apply(both(1), 60)
    reloaded(shop.reload([both(2)]))
    orders, entries = ({row[0] for row in shop.rows(table, "id, amount, at")} for table in ("orders", "entries"))
    assert orders == entries == {200 + n for n in range(7)}


def test_a_driver_that_takes_over_knows_columns_that_a_sink_learned_from_its_rows(shop: Shop) -> None:
    """The columns of Structs are unknown before the first row; a driver that takes over sees no row staged before."""

    def learning(version: int) -> Pipeline:
        def row(record: Any) -> Order:
            order: Order = record.value
            return Order(order.id, order.amount * version, order.at)

        sink = Upsert((shop.schema, "orders"), key=["id"], row=row)
        return Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[sink], version=version)

    records = [of(n % 20, n, n) for n in range(60)]
    shop.produce(shop.topic, records, partition=0)
    shop.apply(learning(1), 60)
    _, driver = staged(shop.reload([learning(2)]))
    resume(shop.reload([learning(2)]), driver.run.id)
    assert shop.rows() == doubled(records)
    assert shop.execute("SELECT DISTINCT note FROM {schema}.orders") == [("none",)]


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_rows_that_are_made_of_values_alone_keep_their_order(shop: Shop, strategy: str) -> None:
    """Such records are not handled one by one; their rows go to the staged tables, with their offsets."""

    def plain(version: int) -> Pipeline:
        sink = Upsert((shop.schema, "orders"), key=["id"], tombstone=None)
        made = Pipeline(shop.group, topics=shop.topic, value=Json(Order), sinks=[sink], version=version)
        assert PipelineWriters(made).by_value is not None
        return made

    records = [of(n % 20, n, n) for n in range(60)]
    shop.produce(shop.topic, records, partition=0)
    shop.apply(plain(1), 60)
    shop.execute("UPDATE {schema}.orders SET amount = 0 WHERE id < 5")
    reloaded(shop.reload([plain(2)], range_records=25), strategy=strategy)
    assert shop.rows() == doubled(records, by=1)
