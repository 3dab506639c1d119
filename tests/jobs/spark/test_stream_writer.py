"""``writeStream.format("seekpoint")``: rows of a stream and the group's offsets in one transaction."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from jobs.spark.frames import entries, produced
from jobs.spark.orders import DATABASE
from jobs.spark.test_frames_faults import open_runs
from support.batch_process import offsets
from support.reload_orders import OrdersGroup

pytestmark = pytest.mark.usefixtures("frames_group")


#: The other columns of ``entries``.
ORDER = [
    f"from_json(CAST(value AS string), 'id bigint, amount bigint, at bigint').{name} AS {name}"
    for name in ("id", "amount", "at")
]
ORDER.append("offset AS topic_offset")


class Sink:
    """Streams of the group's topic, and queries that write them to its tables."""

    def __init__(self, orders_group: OrdersGroup, spark: SparkSession, checkpoint: Path) -> None:
        self.orders_group, self.spark, self.checkpoint = orders_group, spark, checkpoint

    def stream(self, **options: Any) -> DataFrame:
        merged = {"kafka.bootstrap.servers": self.orders_group.brokers, "startingOffsets": "earliest"} | options
        if "assign" not in merged:
            merged.setdefault("subscribe", self.orders_group.topic)
        return self.spark.readStream.format("seekpoint").options(**merged).load()

    def orders(self, **options: Any) -> DataFrame:
        """Each order as a row, with the record that it is of."""
        return self.stream(**options).selectExpr("topic", "partition", "offset", *ORDER)

    def start(self, rows: DataFrame, **options: Any) -> StreamingQuery:
        """Write what is there now, on Spark's threads."""
        defaults = {
            "group": self.orders_group.group,
            "table": f"{self.orders_group.schema}.entries",
            "database": DATABASE.name,
            "ledgerSchema": self.orders_group.schema,
            "checkpointLocation": str(self.checkpoint),
        }
        writer = rows.writeStream.format("seekpoint").options(**defaults | options)
        return writer.trigger(availableNow=True).start()

    def run(self, rows: DataFrame, **options: Any) -> None:
        """Write what is there now."""
        self.start(rows, **options).awaitTermination()


@pytest.fixture
def sink(orders_group: OrdersGroup, spark: SparkSession, tmp_path: Path) -> Iterator[Sink]:
    yield Sink(orders_group, spark, tmp_path / "checkpoint")
    for running in spark.streams.active:
        running.stop()


def test_each_row_is_written_once_though_the_checkpoint_is_deleted_or_old(
    sink: Sink, orders_group: OrdersGroup, tmp_path: Path
) -> None:
    """I1, I3: the ledger has the rest of a range applied, and no more."""
    produced(orders_group, 10)
    sink.run(sink.orders(maxOffsetsPerTrigger=8))
    assert orders_group.rows("entries") == entries(10)
    assert offsets(orders_group) == {f"{orders_group.topic}/{partition}": 10 for partition in (0, 1)}
    yesterday = tmp_path / "yesterday"
    shutil.copytree(sink.checkpoint, yesterday)

    produced(orders_group, 5, first=10)
    shutil.rmtree(sink.checkpoint)
    sink.run(sink.orders())
    assert orders_group.rows("entries") == entries(15), "its checkpoint was deleted"

    produced(orders_group, 5, first=15)
    sink.run(sink.orders(), checkpointLocation=str(yesterday))
    assert orders_group.rows("entries") == entries(20), "its checkpoint was yesterday's"
    assert sorted(offsets(orders_group).values()) == [20, 20]
    assert [row.owner for row in orders_group.ledger().read()] == [None, None], "its partitions are given back"
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


@pytest.mark.long("two more queries of the sink")
def test_a_planned_range_without_a_row_moves_the_position(sink: Sink, orders_group: OrdersGroup) -> None:
    """And with a key the newest row of each is kept."""
    produced(orders_group, 10)
    of_few = sink.orders(maxOffsetsPerTrigger=8).where("id % 1000 >= 9").drop("topic_offset")
    sink.run(of_few.withColumn("id", F.col("id") % 2), table=f"{orders_group.schema}.orders", key="id")
    assert orders_group.rows("orders") == [(1, 9, 9)]
    assert sorted(offsets(orders_group).values()) == [10, 10]
