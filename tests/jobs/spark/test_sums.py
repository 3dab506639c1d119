"""Sums by Spark's tasks: each range is aggregated in its task, by a reload and by a batch; each record counts once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from jobs.spark.orders import DATABASE
from seekpoint.jobs.reload import Reload
from seekpoint.spark import SparkStager
from support.batch_process import batch
from support.order_sums import MODULE, assert_sums, totals
from support.reload_orders import OrdersGroup, gone, of

RECORDS = [of(n % 40, n, n + 1) for n in range(200)] + [gone(3)]


@pytest.fixture
def stager(orders_group: OrdersGroup, spark: SparkSession) -> SparkStager:
    kafka = {"bootstrap.servers": orders_group.brokers}
    return SparkStager(spark, kafka, database=DATABASE, schema=orders_group.schema, range_records=1)


@pytest.fixture
def name(orders_group: OrdersGroup, module: Callable[[str], str]) -> str:
    """The pipeline of version 2, whose table is there."""
    totals(orders_group)
    source = MODULE.format(group=orders_group.group, topic=orders_group.topic, schema=orders_group.schema, version=2)
    return f"{module(source)}:orders"


def test_a_reload_and_a_verify_by_tasks(orders_group: OrdersGroup, stager: SparkStager, name: str) -> None:
    orders_group.apply(totals(orders_group), orders_group.put(RECORDS))
    reload = Reload(
        [name], orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema,
        stager=stager, range_records=40, max_wait=60.0, max_deletes=1.0,
    )  # fmt: skip
    reload.run(reload.open())
    assert_sums(orders_group, RECORDS, by=2)
    assert reload.verify().is_empty


def test_batches_by_tasks(orders_group: OrdersGroup, stager: SparkStager, name: str) -> None:
    orders_group.put(RECORDS)
    orders_group.put(RECORDS[:30], partition=1)
    done = batch(orders_group, name, stager=stager, range_records=40).run()
    assert done.records == len(RECORDS) + 30
    assert_sums(orders_group, [*RECORDS, *RECORDS[:30]], by=2)
    orders_group.put(RECORDS[:10])
    batch(orders_group, name, stager=stager).run()
    assert_sums(orders_group, [*RECORDS, *RECORDS[:30], *RECORDS[:10]], by=2)
