"""Pipelines of DataFrames as modules that tasks import, and what they make of the group's orders."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from jobs.spark.orders import DATABASE
from seekpoint.jobs.frames.driver import FrameDriver
from seekpoint.spark import FramesDone, run
from support.reload_orders import OrdersGroup, of

#: Two frames over typed records: each order as a row, and the newest of each id, doubled. ``first`` may be replaced.
SALES = """
import msgspec
from pyspark.sql import functions as F
from seekpoint import Append, Json, Upsert
from seekpoint.spark import Frame, SparkPipeline

class Order(msgspec.Struct):
    id: int
    amount: int
    at: int = 0

def first(amount):
    return amount

def entries(orders):
    amount = F.udf(lambda value: first(value), "bigint")("amount").alias("amount")
    return orders.select("partition", "offset", "id", amount, "at", F.col("offset").alias("topic_offset"))

def doubled(orders):
    return orders.select("partition", "offset", "id", (F.col("amount") * 2).alias("amount"), "at")

sales = SparkPipeline({group!r}, topics={topic!r}, value=Json(Order), on_poison="dead_letter", frames={{
    "entries": Frame(entries, Append(({schema!r}, "entries"))),
    "orders": Frame(doubled, Upsert(({schema!r}, "orders"), key=["id"], offset_column="note_offset")),
}})
"""


def apply(orders_group: OrdersGroup, spark: SparkSession, pipeline: Any, **options: Any) -> FramesDone:
    """Apply what is available now."""
    kafka = {"bootstrap.servers": orders_group.brokers}
    arguments: dict[str, Any] = {
        "kafka": kafka,
        "database": DATABASE,
        "schema": orders_group.schema,
        "available_now": True,
    }
    return run(spark, pipeline, **arguments | options)


def driver_of(orders_group: OrdersGroup, spark: SparkSession, pipeline: Any, **options: Any) -> FrameDriver:
    """A driver, to be asked for each of its micro-batches."""
    return FrameDriver(
        spark,
        pipeline,
        {"bootstrap.servers": orders_group.brokers},
        database=DATABASE,
        schema=orders_group.schema,
        **options,
    )


def produced(orders_group: OrdersGroup, count: int = 100, first: int = 0) -> None:
    """So many orders in each of two partitions, whose amounts and times are their numbers."""
    for partition in (0, 1):
        records = [of(n + partition * 1000, n, n) for n in range(first, first + count)]
        orders_group.produce(orders_group.topic, records, partition=partition)


def entries(count: int = 100) -> list[tuple[int, int, int]]:
    """The rows of ``entries`` for so many orders in each partition."""
    return [(n + partition * 1000, n, n) for partition in (0, 1) for n in range(count)]


def doubled(count: int = 100) -> list[tuple[int, int, int]]:
    """The rows of ``orders``."""
    return [(id_, 2 * amount, offset) for id_, amount, offset in entries(count)]
