"""A query's ``foreachBatch`` with a SparkPipeline: the ledger decides what is new, whatever the checkpoint says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.spark.frames import doubled, entries, produced
from jobs.spark.orders import DATABASE
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.foreach_batch import ForeachBatch
from seekpoint.spark import bounds, foreach_batch
from support.batch_process import offsets
from support.reload_orders import OrdersGroup
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")


class Query:
    """Streams of the group's topic, and queries that apply a pipeline to them."""

    def __init__(self, orders_group: OrdersGroup, spark: SparkSession, checkpoint: Path) -> None:
        self.orders_group, self.spark, self.checkpoint = orders_group, spark, checkpoint
        self.ranges: list[dict[str, str]] = []  # of the micro-batches

    def stream(self, **options: Any) -> DataFrame:
        read_options = {"kafka.bootstrap.servers": self.orders_group.brokers, "startingOffsets": "earliest"} | options
        if "assign" not in read_options:
            read_options.setdefault("subscribe", self.orders_group.topic)
        return self.spark.readStream.format("seekpoint").options(**read_options).load()

    def start(
        self, pipeline: str, stream: DataFrame | None = None, *, now: bool = True, checkpoint: Path | None = None,
        **options: Any,
    ) -> StreamingQuery:  # fmt: skip
        apply = foreach_batch(pipeline, spark=self.spark, database=DATABASE, schema=self.orders_group.schema, **options)

        def function(frame: DataFrame, number: int) -> None:
            self.ranges.append(bounds(frame))
            self.apply(apply, frame, number)

        writer = (self.stream() if stream is None else stream).writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="1 second")).start()

    def apply(self, function: ForeachBatch, frame: DataFrame, number: int) -> None:
        """Call the function of ``foreach_batch``. Tests replace it."""
        function(frame, number)

    def run(self, pipeline: str, stream: DataFrame | None = None, **options: Any) -> StreamingQuery:
        """Run it over what is there now."""
        query = self.start(pipeline, stream, **options)
        query.awaitTermination()
        return query

    def refused(self, pipeline: str, stream: DataFrame | None = None, **options: Any) -> str:
        with pytest.raises(StreamingQueryException) as refused:
            self.run(pipeline, stream, **options)
        return str(refused.value)


@pytest.fixture
def query(orders_group: OrdersGroup, spark: SparkSession, tmp_path: Path) -> Iterator[Query]:
    yield Query(orders_group, spark, tmp_path / "checkpoint")
    for running in spark.streams.active:
        running.stop()


def test_each_record_is_applied_once_though_the_checkpoint_is_deleted_or_old(
    query: Query, orders_group: OrdersGroup, frames_pipeline: Callable[..., str], tmp_path: Path
) -> None:
    name = frames_pipeline()
    produced(orders_group, 10)
    query.run(name, query.stream(maxOffsetsPerTrigger=8))
    assert len(query.ranges) == 3, "8 of 20 offsets at a time"
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(10), doubled(10))
    old = tmp_path / "yesterday"
    shutil.copytree(query.checkpoint, old)

    produced(orders_group, 5, first=10)
    shutil.rmtree(query.checkpoint)
    query.run(name)
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(15), doubled(15)), (
        "its checkpoint was deleted"
    )

    produced(orders_group, 5, first=15)
    query.run(name, checkpoint=old)
    assert (orders_group.rows("entries"), orders_group.rows("orders")) == (entries(20), doubled(20)), (
        "its checkpoint was yesterday's"
    )
    assert offsets(orders_group) == {f"{orders_group.topic}/{partition}": 20 for partition in (0, 1)}


def test_a_micro_batch_after_the_ledgers_position_fails_and_names_both(
    query: Query, orders_group: OrdersGroup, frames_pipeline: Callable[..., str], tmp_path: Path
) -> None:
    name = frames_pipeline()
    produced(orders_group, 10)
    query.run(name)
    orders_group.ledger().reset_offset(orders_group.topic, 1, 5, reason="look again", log=(0, 10))
    produced(orders_group, 5, first=10)
    message = query.refused(name)
    assert f"{orders_group.topic}/1" in message
    assert (
        f"begins at offset 10, and group {orders_group.group!r} is at 5: the 5 offsets between would be lost" in message
    )
    ledger = {
        "group": orders_group.group,
        "database": DATABASE.name,
        "ledgerSchema": orders_group.schema,
        "startingOffsets": "ledger",
    }
    query.run(name, query.stream(**ledger), checkpoint=tmp_path / "new")
    assert query.ranges[-1]["startingOffsets"] == f'{{"{orders_group.topic}":{{"0":10,"1":5}}}}'
    assert orders_group.rows("orders") == doubled(15)


@pytest.mark.long("several streams, each of which Spark plans and refuses")
def test_a_frame_that_is_not_the_stream_as_it_is_is_refused(
    query: Query, orders_group: OrdersGroup, frames_pipeline: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing is claimed or written."""
    name = frames_pipeline()
    produced(orders_group, 3)

    def refused(stream: DataFrame) -> str:
        shutil.rmtree(query.checkpoint, ignore_errors=True)
        return query.refused(name, stream)

    assert "the query has the operators Filter: give foreachBatch the stream as it is" in refused(
        query.stream().where("offset <> 1")
    )
    assert "the query has the operators Project" in refused(query.stream().select("topic", "partition", "offset"))
    assert f"the stream reads some partitions of {orders_group.topic}" in refused(
        query.stream(assign=f'{{"{orders_group.topic}":[0]}}')
    )
    rates = spark.readStream.format("rate").load()
    assert "does not have the column offset of seekpoint's source" in refused(rates)
    with pytest.raises(ConfigError, match="a stream has no bounds"):
        bounds(query.stream())
    assert (offsets(orders_group), orders_group.rows("entries")) == ({}, [])


@pytest.mark.long("two queries, and the first must be seen to fail")
def test_the_newer_of_two_queries_has_the_partitions(
    query: Query, orders_group: OrdersGroup, frames_pipeline: Callable[..., str], tmp_path: Path
) -> None:
    name = frames_pipeline()
    produced(orders_group, 5)
    first = query.start(name, now=False)
    until(lambda: len(orders_group.rows("entries")) == 10, "the first query's rows", 120)
    second = query.start(name, now=False, checkpoint=tmp_path / "second")
    until(
        lambda: offsets(orders_group) == {f"{orders_group.topic}/{n}": 5 for n in (0, 1)} and len(query.ranges) > 1,
        "both",
        120,
    )
    produced(orders_group, 5, first=5)
    until(lambda: orders_group.rows("entries") == entries(10), "all rows", 120)
    until(lambda: not (first.isActive and second.isActive), "one of them was fenced", 120)
    produced(orders_group, 5, first=10)
    until(lambda: orders_group.rows("entries") == entries(15), "the other one continues", 120)
    assert orders_group.rows("orders") == doubled(15)
    ended = first if not first.isActive else second
    assert "seekpoint.errors.Fenced: " in str(ended.exception())


def test_operators_see_a_worker_between_micro_batches_and_none_after_the_query(
    query: Query, orders_group: OrdersGroup, frames_pipeline: Callable[..., str]
) -> None:
    produced(orders_group, 2)
    running = query.start(frames_pipeline(), now=False)
    until(lambda: len(orders_group.rows("entries")) == 4, "rows", 120)

    def worker() -> list[tuple[Any, ...]]:
        columns = "state, client_id LIKE 'spark %', seen_at"
        return orders_group.execute(
            f"SELECT {columns} FROM {{schema}}.worker WHERE consumer_group = :g", g=orders_group.group
        )

    until(lambda: [row[:2] for row in worker()] == [("running", True)], "a worker", 60)
    seen = worker()[0][2]
    until(lambda: worker()[0][2] > seen, "a later sign of life", 60)
    running.stop()
    until(lambda: [row.owner for row in orders_group.ledger().read()] == [None, None], "its partitions given back", 60)
