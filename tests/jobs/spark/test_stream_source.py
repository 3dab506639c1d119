"""``spark.readStream.format("seekpoint")``: bounded micro-batches from the options' or the ledger's offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.spark.orders import DATABASE
from support.archive import ArchivedGroup
from support.log_changes import delete, trim
from support.topics import add_partitions
from support.waiting import until


class Streams:
    """Queries that keep each micro-batch's records, as (partition, offset)."""

    def __init__(self, spark: SparkSession, archived_group: ArchivedGroup, folder: Path) -> None:
        self.spark, self.archived_group, self.folder = spark, archived_group, folder
        self.batches: list[list[tuple[int, int]]] = []

    @property
    def of_group(self) -> dict[str, str]:
        return {
            "group": self.archived_group.group,
            "database": DATABASE.name,
            "ledgerSchema": self.archived_group.schema,
        }

    def frame(self, **options: Any) -> DataFrame:
        brokers = {"kafka.bootstrap.servers": self.archived_group.brokers}
        return self.spark.readStream.format("seekpoint").options(**brokers, **options).load()

    def start(self, frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any) -> StreamingQuery:
        def keep(rows: DataFrame, _: int) -> None:
            places = rows.select("partition", "offset").collect()
            if places:  # Spark runs the first one of a query though there is nothing yet
                self.batches.append(sorted((row.partition, row.offset) for row in places))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, frame: DataFrame, checkpoint: str = "checkpoint") -> list[list[tuple[int, int]]]:
        """The micro-batches of what is there now."""
        self.batches.clear()
        self.start(frame, checkpoint, availableNow=True).awaitTermination()
        return list(self.batches)

    def refused(self, **options: Any) -> str:
        with pytest.raises((PySparkException, StreamingQueryException)) as refused:
            self.run(self.frame(**options), "refused")
        return str(refused.value)


@pytest.fixture
def streams(spark: SparkSession, archived_group: ArchivedGroup, tmp_path: Path) -> Iterator[Streams]:
    yield Streams(spark, archived_group, tmp_path)
    for running in spark.streams.active:
        running.stop()


def of(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(*offsets)]


def test_it_reads_in_micro_batches_from_its_checkpoint_and_finds_new_partitions(streams: Streams) -> None:
    name = streams.archived_group.topic(2)
    streams.archived_group.produce(name, map(str, range(8)), partition=0)
    streams.archived_group.produce(name, map(str, range(4)), partition=1)
    earliest = {"subscribe": name, "startingOffsets": "earliest", "includeHeaders": "true"}
    frame = streams.frame(**earliest, maxOffsetsPerTrigger=6)
    assert frame.columns[-1] == "headers"
    assert streams.run(frame) == [of(0, 0, 4) + of(1, 0, 2), of(0, 4, 8) + of(1, 2, 4)], "of each partition its share"

    add_partitions(streams.archived_group.admin, name, 3)
    streams.archived_group.produce(name, ["a"], partition=1)
    streams.archived_group.produce(name, ["b"], partition=2)
    assert streams.run(streams.frame(**earliest)) == [[(1, 4), (2, 0)]]
    assert streams.run(streams.frame(**earliest)) == []


@pytest.mark.long("each kind of start is a query")
def test_it_begins_at_the_end_or_at_an_offset_or_where_the_group_is(streams: Streams) -> None:
    name = streams.archived_group.topic(2)
    for partition in (0, 1):
        streams.archived_group.produce(name, map(str, range(5)), partition=partition)
    assert streams.run(streams.frame(subscribe=name), "latest") == [], "as Spark's"
    streams.archived_group.produce(name, ["new"], partition=0)
    assert streams.run(streams.frame(subscribe=name), "latest") == [[(0, 5)]]
    offsets = json.dumps({name: {"0": -1, "1": 3}})
    assert streams.run(streams.frame(subscribe=name, startingOffsets=offsets), "given") == [of(1, 3, 5)]
    group = streams.frame(subscribe=name, **streams.of_group)
    assert streams.run(group, "without") == [of(0, 0, 6) + of(1, 0, 5)], "a group that has not begun"
    streams.archived_group.set_positions(name, {0: 4, 1: 2})
    assert streams.run(streams.frame(subscribe=name, **streams.of_group), "group") == [of(0, 4, 6) + of(1, 2, 5)]


@pytest.mark.long("each refusal is a query")
def test_what_a_stream_does_not_take_is_refused_in_words(streams: Streams) -> None:
    name = streams.archived_group.topic()
    options = {"subscribe": name, "startingOffsets": "earliest"}
    assert "endingOffsets: a stream has no end; omit it" in streams.refused(**options, endingOffsets="latest")
    assert "maxTriggerDelay limits how long minOffsetsPerTrigger waits" in streams.refused(
        **options, maxTriggerDelay="1m"
    )
    assert "maxTriggerDelay must be a time such as 30s" in streams.refused(
        **options, maxTriggerDelay="soon", minOffsetsPerTrigger=1
    )
    batch = streams.spark.read.format("seekpoint").option("kafka.bootstrap.servers", streams.archived_group.brokers)
    with pytest.raises(PySparkException, match="maxOffsetsPerTrigger bounds the micro-batches of a stream"):
        batch.options(**options, maxOffsetsPerTrigger=3).load().count()
    batch = streams.spark.read.format("seekpoint").option("kafka.bootstrap.servers", streams.archived_group.brokers)
    unknown = streams.of_group | {"group": "unknown"}
    refused = r"as a batch .*has no offsets of group 'unknown'.*; as a stream \(spark.readStream\): deadLetters"
    with pytest.raises(PySparkException, match=refused):
        batch.options(subscribe=name, deadLetters="exclude", **unknown).load().count()
    batch = streams.spark.read.format("seekpoint").option("kafka.bootstrap.servers", streams.archived_group.brokers)
    with pytest.raises(PySparkException, match=r"has no offsets of group 'unknown'"):
        batch.options(decode="json:loads", **unknown).load().count()
    streams.archived_group.produce(name, ["a"])
    frame = streams.frame(**options)
    streams.start(frame, "one", processingTime="1 second")
    until(lambda: streams.batches == [[(0, 0)]], "the first query's records", 120)
    with pytest.raises(StreamingQueryException, match="two queries read one streaming DataFrame"):
        streams.start(frame, "two", availableNow=True).awaitTermination()


@pytest.mark.long("a topic is deleted and created again between two runs of a query")
@pytest.mark.parametrize("values", [["c", "d", "e"], ["c"]], ids=["more records", "fewer records"])
def test_a_topic_that_was_created_again_ends_the_query(streams: Streams, values: list[str]) -> None:
    """Also with Trigger.AvailableNow, which asks for the ends before it knows the position."""
    name = streams.archived_group.topic()
    streams.archived_group.produce(name, ["a", "b"])
    frame = streams.frame(subscribe=name, startingOffsets="earliest")
    assert streams.run(frame) == [of(0, 0, 2)]
    delete(streams.archived_group.kafka, streams.archived_group.admin, name)
    streams.archived_group.topic(name=name)
    streams.archived_group.produce(name, values)
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        streams.run(streams.frame(subscribe=name, startingOffsets="earliest"))


@pytest.mark.long("each choice of topics is a query")
def test_a_query_may_read_more_topics_than_before_and_not_fewer(streams: Streams) -> None:
    first, second = streams.archived_group.topic(2), streams.archived_group.topic()
    streams.archived_group.produce(first, ["a"], partition=0)
    streams.archived_group.produce(second, ["b"])
    earliest = {"startingOffsets": "earliest"}
    assert streams.run(streams.frame(subscribe=first, **earliest)) == [[(0, 0)]]
    assert streams.run(streams.frame(subscribe=f"{first},{second}", **earliest)) == [[(0, 0)]], "the second's"
    fewer = "has a position of .*, which its subscribe or assign no longer names"
    with pytest.raises(StreamingQueryException, match=fewer):
        streams.run(streams.frame(subscribe=second, **earliest))
    with pytest.raises(StreamingQueryException, match=fewer):
        streams.run(streams.frame(assign=json.dumps({first: [0], second: [0]}), **earliest))


@pytest.mark.long("partitions are added between three runs of a query")
def test_a_micro_batch_that_is_run_again_begins_an_added_partition_where_it_began(streams: Streams) -> None:
    name = streams.archived_group.topic()
    streams.archived_group.produce(name, ["a"])
    frame = streams.frame(subscribe=name, startingOffsets="earliest")
    assert streams.run(frame) == [[(0, 0)]]
    assert streams.run(frame) == [], "no micro-batch without records"
    add_partitions(streams.archived_group.admin, name, 2)
    streams.archived_group.produce(name, ["b", "c"], partition=1)

    def fail(_: DataFrame, __: int) -> None:
        raise RuntimeError("as if the driver were killed")

    writer = streams.frame(subscribe=name).writeStream.foreachBatch(fail).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="as if the driver were killed"):
        writer.option("checkpointLocation", str(streams.folder / "checkpoint")).start().awaitTermination()
    streams.archived_group.produce(name, ["d"], partition=0)
    assert streams.run(frame) == [of(1, 0, 2), [(0, 1)]]


@pytest.mark.long("partitions are added between two runs of a query")
def test_records_of_an_added_partition_are_not_left_out(streams: Streams) -> None:
    """I4: retention may remove them before a query sees the partition."""
    name = streams.archived_group.topic()
    streams.archived_group.produce(name, ["a"])
    frame = streams.frame(subscribe=name, startingOffsets="earliest")
    assert streams.run(frame) == [[(0, 0)]]
    add_partitions(streams.archived_group.admin, name, 2)
    streams.archived_group.produce(name, ["b", "c"], partition=1)
    fresh = AdminClient({"bootstrap.servers": streams.archived_group.brokers})  # the other knows one partition
    trim(fresh, name, 1, partition=1)
    with pytest.raises(StreamingQueryException, match="the partition was added, and its log begins at 1 now"):
        streams.run(frame)


@pytest.mark.long("it waits for seconds that pass")
def test_a_micro_batch_waits_for_enough_records_at_most_so_long(streams: Streams) -> None:
    name = streams.archived_group.topic()
    streams.archived_group.produce(name, ["a"])
    frame = streams.frame(subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    query = streams.start(frame, processingTime="0 seconds")
    until(lambda: query.status["message"] == "Waiting for data to arrive", "it has looked", 120)
    assert streams.batches == []
    streams.archived_group.produce(name, ["b", "c"])
    until(lambda: streams.batches == [of(0, 0, 3)], "three records", 120)
    query.stop()
    streams.archived_group.produce(name, ["d"])
    hurried = streams.frame(subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="1ms")
    streams.start(hurried, processingTime="0 seconds")
    until(lambda: streams.batches[-1] == [(0, 3)], "the delay is over", 120)  # the stop may repeat the one before
