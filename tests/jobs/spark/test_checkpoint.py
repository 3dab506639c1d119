"""A query that Spark ran is taken over at what its checkpoint has committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seekpoint import Partition
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, Fenced
from support.archive import ArchivedGroup

#: A stream whose offsets are those of Spark's Kafka source, and which ends where its option says.
STREAM = """
import json
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

class Reader(DataSourceStreamReader):
    def __init__(self, options):
        self.topic, self.end = options["topic"], json.loads(options["end"])

    def initialOffset(self):
        return {self.topic: dict.fromkeys(self.end, 0)}

    def latestOffset(self, *_):
        return {self.topic: self.end}

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield ("a",)

class Stream(DataSource):
    @classmethod
    def name(cls):
        return "like_kafka"

    def schema(self):
        return "value string"

    def streamReader(self, schema):
        return Reader(self.options)
"""


@pytest.mark.parametrize("format_", ["1", pytest.param("2", marks=pytest.mark.long("the other format"))])
def test_a_group_begins_where_a_query_has_committed(
    spark: SparkSession, archived_group: ArchivedGroup, module: Callable[[str], str], tmp_path: Path, format_: str
) -> None:
    topic = archived_group.topic(2)
    for partition in (0, 1):
        archived_group.produce(topic, map(str, range(10)), partition=partition)
    spark.dataSource.register(import_module(module(STREAM)).Stream)
    checkpoint = tmp_path / "checkpoint"
    settings = {
        "spark.sql.streaming.offsetLog.formatVersion": format_,
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": str(format_ == "2").lower(),
    }

    def run_query(*ends: int) -> None:
        options = {"topic": topic, "end": json.dumps({str(number): end for number, end in enumerate(ends)})}
        stream = spark.readStream.format("like_kafka").options(**options)
        frame = (stream.name("orders") if format_ == "2" else stream).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(60)

    admin = Admin(archived_group.engine, archived_group.kafka, schema=archived_group.schema)
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        run_query(3, 1)
        before = admin.plan_import(archived_group.group, from_checkpoint=str(checkpoint))
        run_query(6, 4)
    finally:
        for key in settings:
            spark.conf.unset(key)
    assert (checkpoint / "offsets" / "1").read_text().startswith(f"v{format_}\n")
    assert [(partition.partition.number, partition.offset) for partition in before.partitions] == [(0, 3), (1, 1)]
    with pytest.raises(
        Fenced, match=rf"the query of checkpoint {checkpoint} has committed 6 for {topic}/0, but the plan has"
    ):
        admin.apply(before, reason="a test")
    assert archived_group.ledger.read() == []

    plan = admin.plan_import(archived_group.group, from_checkpoint=checkpoint.as_uri())
    assert plan.consequences == (
        f"{topic}/0 begins at 6, the checkpoint's offset, 4 offsets before the end of its log",
        f"{topic}/1 begins at 4, the checkpoint's offset, 6 offsets before the end of its log",
        "the offsets are the end of batch 1, the last one committed; stop the query first",
        f"a checkpoint has no topic ids: if {topic} was created again since, the offsets are wrong",
    )
    later = checkpoint / "offsets" / "2"
    later.write_text((checkpoint / "offsets" / "1").read_text())
    with pytest.raises(Fenced, match=r"has changed since the plan was made \(the query has begun batch 2"):
        admin.apply(plan, reason="a test", actor="ada")
    later.unlink()
    admin.apply(plan, reason="a test", actor="ada")
    assert {row.partition: row.next_offset for row in archived_group.ledger.read()} == {
        Partition(topic, 0): 6,
        Partition(topic, 1): 4,
    }
    (first, _) = admin.history(archived_group.group, [topic])
    assert first.reason == f"the query of checkpoint {checkpoint}: a test"
    with pytest.raises(ConfigError, match="name the consumer whose offsets to import"):
        admin.plan_import(archived_group.group, "old", from_checkpoint=str(checkpoint))
