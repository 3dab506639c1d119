"""A group's records as a DataFrame: exactly those between two positions, whatever the log does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from sqlalchemy import Engine, text

from kafka.test_odd_records import produce_by_hand
from seekpoint import Append, Bytes, Ledger, Partition, Pipeline
from seekpoint.errors import ConfigError, RangeLost, RangeStuck
from seekpoint.jobs.spark.source import ARROW, SCHEMA
from seekpoint.kafka.ranges import Range
from seekpoint.spark import Env, read, stored_ranges
from support.events import Run
from support.log_changes import in_transactions, trim

Produce = Callable[..., list[tuple[int, int]]]
Make = Callable[..., str]


class Group:
    """A group whose worker has applied everything of a topic, and stopped."""

    def __init__(self, engine: Engine, schema: str, name: str, run_worker: Callable[..., Run], broker: str) -> None:
        self.engine, self.schema, self.name = engine, schema, name
        self._run_worker = run_worker
        self.kafka = {"bootstrap.servers": broker}
        self.ledger = Ledger(engine, name, schema=schema)
        with engine.begin() as tx:
            tx.execute(text(f'CREATE TABLE IF NOT EXISTS "{schema}".seen (at bigint)'))

    def apply(self, topic: str, ends: Mapping[int, int]) -> None:
        """Work until the positions of these partitions are there."""
        sink = Append(f"{self.schema}.seen", columns=["at"], row=_row)
        run = self._run_worker(Pipeline(self.name, topics=topic, value=Bytes(), sinks=[sink]))
        for partition, end in ends.items():
            run.reached(topic, end, partition)
        run.stop()

    def rows(self, spark: SparkSession, **options: Any) -> list[Row]:
        """What the DataFrame holds, in order."""
        frame = read(spark, self.ledger, self.name, kafka=self.kafka, **options)
        return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def _row(record: Any) -> tuple[int]:
    return (record.offset,)


@pytest.fixture
def of_group(
    seekpoint_engine: Engine, seekpoint_schema: str, group: str, run_worker: Callable[..., Run], seekpoint_broker: str
) -> Group:
    return Group(seekpoint_engine, seekpoint_schema, group, run_worker, seekpoint_broker)


def offsets(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in rows]


def test_our_arrow_schema_is_the_one_that_spark_asks_for() -> None:
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW)


def test_it_ends_at_the_ledgers_offsets_while_the_log_goes_on(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce
) -> None:
    name = topic(3)
    for partition, count in enumerate((40, 25)):
        produce(name, map(str, range(count)), partition=partition)
    of_group.apply(name, {0: 40, 1: 25})
    produce(name, ["later"] * 10, partition=0)
    produce(name, ["later"] * 10, partition=2)
    rows = of_group.rows(spark)
    assert offsets(rows) == [(0, n) for n in range(40)] + [(1, n) for n in range(25)]
    assert [row.value for row in rows] == [str(n).encode() for count in (40, 25) for n in range(count)]
    assert {row.topic for row in rows} == {name}


def test_every_column_comes_as_it_was_written(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce, seekpoint_broker: str
) -> None:
    name = topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    produce(name, [("k", "v")], headers=[("a", b"1"), ("a", None), ("é", b"\xff")])
    produce(name, [(None, None), (b"\xff\x00", "")])
    produce_by_hand(seekpoint_broker, name, b"{}", b"\xff\xfe", 1_785_587_400_123)
    produce_by_hand(seekpoint_broker, name, b"{}", b"h", 2**62)
    of_group.apply(name, {0: 1})  # the next one is poison
    first, second, third, fourth, fifth = of_group.rows(spark, end={(name, 0): 5})
    assert (first.key, first.value) == (b"k", b"v")
    assert [tuple(header) for header in first.headers] == [("a", b"1"), ("a", None), ("é", b"\xff")]
    assert (second.key, second.value, second.headers) == (None, None, [])
    assert (third.key, third.value) == (b"\xff\x00", b"")
    assert fourth.headers is None, "they cannot be read, which is not the same as none"
    assert fourth.timestamp.astimezone(UTC) == datetime(2026, 8, 1, 12, 30, 0, 123_000, UTC)
    assert fifth.timestamp is None, "no timestamp of Spark's is that late"


def test_its_ends_can_be_named(spark: SparkSession, of_group: Group, topic: Make, produce: Produce) -> None:
    name = topic(2)
    produce(name, map(str, range(30)), partition=0)
    produce(name, map(str, range(30)), partition=1)
    of_group.apply(name, {0: 30, 1: 30})
    produce(name, map(str, range(30)), partition=1)
    rows = of_group.rows(spark, start={(name, 0): 10}, end={Partition(name, 0): 20, Partition(name, 1): 40})
    assert offsets(rows) == [(0, n) for n in range(10, 20)] + [(1, n) for n in range(40)]


def test_small_tasks_leave_nothing_out_and_read_nothing_twice(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce
) -> None:
    name = topic(3)
    for partition, count in enumerate((101, 7, 0)):
        produce(name, map(str, range(count)), partition=partition)
    of_group.apply(name, {0: 101, 1: 7})
    frame = read(spark, of_group.ledger, of_group.name, name, kafka=of_group.kafka, smallest=25)
    assert frame.rdd.getNumPartitions() == 6
    found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    assert found == [(0, n) for n in range(101)] + [(1, n) for n in range(7)]


def test_it_is_a_dataframe_like_any_other(spark: SparkSession, of_group: Group, topic: Make, produce: Produce) -> None:
    name = topic()
    produce(name, [f'{{"id": {n}, "even": {str(n % 2 == 0).lower()}}}' for n in range(50)])
    of_group.apply(name, {0: 50})
    read(spark, of_group.ledger, of_group.name, kafka=of_group.kafka).createOrReplaceTempView("applied")
    decoded = "SELECT from_json(CAST(value AS STRING), 'id int, even boolean') v FROM applied"
    assert spark.sql(f"SELECT sum(v.id) FROM ({decoded}) WHERE v.even").collect()[0][0] == sum(range(0, 50, 2))
    assert len(spark.table("applied").limit(3).collect()) == 3


def test_nothing_applied_is_an_empty_dataframe_and_asks_no_broker(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce
) -> None:
    name = topic()
    produce(name, map(str, range(5)))
    of_group.apply(name, {0: 5})
    frame = read(
        spark, of_group.ledger, of_group.name, kafka={"bootstrap.servers": "127.0.0.1:1"}, start={(name, 0): 5}
    )
    assert frame.schema == SCHEMA
    assert frame.collect() == []


def test_aborted_records_are_left_out(spark: SparkSession, of_group: Group, topic: Make, seekpoint_broker: str) -> None:
    name = topic()
    in_transactions(seekpoint_broker, name, (3, True), (3, False), (3, True), (2, False))
    of_group.apply(name, {0: 11})
    assert offsets(of_group.rows(spark, end={(name, 0): 15})) == [(0, n) for n in (0, 1, 2, 8, 9, 10)]
    dirty = {**of_group.kafka, "isolation.level": "read_uncommitted"}
    assert read(spark, of_group.ledger, of_group.name, kafka=dirty).count() == 9


def test_an_end_that_cannot_be_read_yet_is_refused_before_a_task_waits_for_it(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce, seekpoint_broker: str
) -> None:
    name = topic()
    produce(name, map(str, range(5)))
    of_group.apply(name, {0: 5})
    end_it = in_transactions(seekpoint_broker, name, (3, None))
    with pytest.raises(RangeStuck, match="what can be read now ends at 5"):
        of_group.rows(spark, end={(name, 0): 8})
    assert len(of_group.rows(spark)) == 5
    end_it()


def test_retention_is_a_loss_before_and_while_it_is_read(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce, seekpoint_broker: str
) -> None:
    name = topic()
    produce(name, map(str, range(50)))
    of_group.apply(name, {0: 50})
    frame = read(spark, of_group.ledger, of_group.name, kafka=of_group.kafka)
    admin = AdminClient({"bootstrap.servers": seekpoint_broker, "log_level": 0})
    trim(admin, name, 30)
    with pytest.raises(PySparkException, match=r"RangeLost: .*the first offset left is 30"):
        frame.collect()
    with pytest.raises(RangeLost, match="Begin there, which leaves 30 records out"):
        of_group.rows(spark)
    assert offsets(of_group.rows(spark, start={(name, 0): 30})) == [(0, n) for n in range(30, 50)]


def test_a_recreated_topic_is_never_read_as_the_one_before(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce, seekpoint_broker: str
) -> None:
    name = topic()
    produce(name, map(str, range(5)))
    of_group.apply(name, {0: 5})
    frame = read(spark, of_group.ledger, of_group.name, kafka=of_group.kafka)
    assert frame.count() == 5
    admin = AdminClient({"bootstrap.servers": seekpoint_broker, "log_level": 0})
    admin.delete_topics([name])[name].result(20)
    _create_again(topic, name)
    produce(name, ["new"] * 20)
    with pytest.raises(PySparkException, match=r"TopicRecreated: .*deleted and created again"):
        frame.collect()


def _create_again(topic: Make, name: str) -> None:
    deadline, pause = monotonic() + 60, threading.Event()
    while True:
        try:
            topic(name=name)
        except KafkaException:
            assert monotonic() < deadline, "the broker still deletes it"
            pause.wait(0.05)
        else:
            return


def test_what_is_not_there_is_named(
    spark: SparkSession, of_group: Group, topic: Make, produce: Produce, seekpoint_engine: Engine
) -> None:
    name = topic()
    produce(name, map(str, range(5)))
    of_group.apply(name, {0: 5})
    with pytest.raises(ConfigError, match=rf"no offsets of orders; it reads {name}"):
        of_group.rows(spark, topics="orders")
    with pytest.raises(ConfigError, match="start= and end= name orders/3"):
        of_group.rows(spark, start={("orders", 3): 1})
    with pytest.raises(ConfigError, match="the ledger has no offsets of group 'nobody'"):
        stored_ranges(of_group.ledger, "nobody")
    with pytest.raises(ConfigError, match="swap or correct its ends"):
        of_group.rows(spark, start={(name, 0): 6})
    (found,) = stored_ranges(of_group.ledger, of_group.name, [name])
    assert (found.partition, found.start, found.end) == (Partition(name, 0), 0, 5)
    assert isinstance(found, Range)


# -- settings that travel -------------------------------------------------------------------------------------------


def test_a_password_is_sent_by_name_alone(
    spark: SparkSession,
    of_group: Group,
    topic: Make,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic()
    produce(name, map(str, range(5)))
    of_group.apply(name, {0: 5})
    with pytest.raises(ConfigError, match=r"write Env\('NAME'\)"):
        read(spark, of_group.ledger, of_group.name, kafka={**of_group.kafka, "sasl.password": "hunter2"})
    with pytest.raises(ConfigError, match="'error_cb' cannot be sent"):
        read(spark, of_group.ledger, of_group.name, kafka={**of_group.kafka, "error_cb": print})
    with pytest.raises(ConfigError, match="the environment variable SEEKPOINT_TEST_NOWHERE is not set"):
        read(spark, of_group.ledger, of_group.name, kafka={"bootstrap.servers": Env("SEEKPOINT_TEST_NOWHERE")})
    monkeypatch.setenv("SEEKPOINT_TEST_HERE", of_group.kafka["bootstrap.servers"])
    frame = read(spark, of_group.ledger, of_group.name, kafka={"bootstrap.servers": Env("SEEKPOINT_TEST_HERE")})
    with pytest.raises(PySparkException, match="the environment variable SEEKPOINT_TEST_HERE is not set"):
        frame.collect()  # the workers were started before


def test_another_python_in_the_workers_is_refused_in_a_sentence(
    spark: SparkSession, of_group: Group, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/python-of-another")
    with pytest.raises(ConfigError, match="set the environment variable PYSPARK_PYTHON="):
        read(spark, of_group.ledger, of_group.name, kafka=of_group.kafka)
