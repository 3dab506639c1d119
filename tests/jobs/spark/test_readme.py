"""The README's pipeline on Spark, as it is written there, with names of the test's own."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from jobs.spark.frames import apply
from support.docs_pages import blocks, named
from support.reload_orders import OrdersGroup

IMPORTS = """
from pyspark.sql import functions as F
from seekpoint import Accumulate
from seekpoint.spark import Frame, SparkPipeline
"""


def test_its_sums_are_in_the_table(
    orders_group: OrdersGroup, spark: SparkSession, module: Callable[[str], str]
) -> None:
    (workers,) = blocks(named("README.md"), "python")
    (frames,) = blocks(named("README.md"), "py")
    names = {
        'topics="orders"': f"topics={orders_group.topic!r}",
        '"shop-orders"': repr(f"{orders_group.group}-orders"),
        '"shop-sales"': repr(orders_group.group),
        'Accumulate("totals"': f'Accumulate(({orders_group.schema!r}, "totals")',
    }
    text = workers.text + IMPORTS + frames.text
    for name, own in names.items():
        assert name in text
        text = text.replace(name, own)
    orders_group.execute("CREATE TABLE {schema}.totals (customer text PRIMARY KEY, cents bigint NOT NULL)")
    for customer, cents in (("ada", 5), ("bea", 7), ("ada", 10)):
        record = f'{{"order_id": 1, "customer": "{customer}", "amount_cents": {cents}}}'
        orders_group.produce(orders_group.topic, [("key", record)], partition=0)
    apply(orders_group, spark, f"{module(text)}:sales")
    assert orders_group.execute("SELECT customer, cents FROM {schema}.totals ORDER BY 1") == [("ada", 15), ("bea", 7)]
