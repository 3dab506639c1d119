"""A group's records as a DataFrame: exactly those between two positions, whatever the log does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from sqlalchemy import text

from kafka.test_odd_records import produce_by_hand
from seekpoint import Partition
from seekpoint.errors import ConfigError, RangeLost, RangeStuck
from seekpoint.jobs.spark.columns import KAFKA
from seekpoint.jobs.spark.session import require_this_python
from seekpoint.kafka.ranges import Range
from seekpoint.ledger import Ledger
from seekpoint.spark import Env, bounds, read, stored_ranges
from support.archive import ArchivedGroup
from support.log_changes import delete, in_transactions

Produce = Callable[..., list[tuple[int, int]]]
Make = Callable[..., str]


def public_ledger(archived_group: ArchivedGroup) -> Ledger:
    return Ledger(archived_group.engine, archived_group.group, schema=archived_group.schema)


def frame_of(archived_group: ArchivedGroup, spark: SparkSession, **options: Any) -> DataFrame:
    return read(spark, public_ledger(archived_group), archived_group.group, **{"kafka": archived_group.kafka} | options)


def rows_of(archived_group: ArchivedGroup, spark: SparkSession, **options: Any) -> list[Row]:
    """What the DataFrame of the group's records holds, in order."""
    return sorted(
        frame_of(archived_group, spark, **options).collect(), key=lambda row: (row.topic, row.partition, row.offset)
    )


def offsets(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in rows]


def test_it_ends_at_the_ledgers_offsets_while_the_log_grows(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(3)
    for partition, count in enumerate((40, 25)):
        archived_group.produce(name, map(str, range(count)), partition=partition)
    archived_group.set_positions(name, {0: 40, 1: 25, 2: 0})
    archived_group.produce(name, ["later"] * 10, partition=0)
    archived_group.produce(name, ["later"] * 10, partition=2)
    rows = rows_of(archived_group, spark)
    assert offsets(rows) == [(0, n) for n in range(40)] + [(1, n) for n in range(25)]
    assert [row.value for row in rows] == [str(n).encode() for count in (40, 25) for n in range(count)]
    assert {row.topic for row in rows} == {name}


def test_every_column_comes_as_it_was_written(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    archived_group.produce(name, [("k", "v")], headers=[("a", b"1"), ("a", None), ("é", b"\xff")])
    archived_group.produce(name, [(None, None), (b"\xff\x00", "")])
    produce_by_hand(archived_group.brokers, name, b"{}", b"\xff\xfe", 1_785_587_400_123)
    produce_by_hand(archived_group.brokers, name, b"{}", b"h", 2**62)
    archived_group.set_positions(name, {0: 1})  # the next one is poison
    first, second, third, fourth, fifth = rows_of(archived_group, spark, end={(name, 0): 5})
    assert (first.key, first.value) == (b"k", b"v")
    assert [tuple(header) for header in first.headers] == [("a", b"1"), ("a", None), ("é", b"\xff")]
    assert (second.key, second.value, second.headers) == (None, None, [])
    assert (third.key, third.value) == (b"\xff\x00", b"")
    assert fourth.headers is None, "they cannot be read, which is not the same as none"
    assert fourth.timestamp.astimezone(UTC) == datetime(2026, 8, 1, 12, 30, 0, 123_000, UTC)
    assert fifth.timestamp is None, "no timestamp of Spark's is that late"


def test_its_ends_can_be_named(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(2)
    archived_group.produce(name, map(str, range(30)), partition=0)
    archived_group.produce(name, map(str, range(30)), partition=1)
    archived_group.set_positions(name, {0: 30, 1: 30})
    archived_group.produce(name, map(str, range(30)), partition=1)
    rows = rows_of(archived_group, spark, start={(name, 0): 10}, end={Partition(name, 0): 20, Partition(name, 1): 40})
    assert offsets(rows) == [(0, n) for n in range(10, 20)] + [(1, n) for n in range(40)]
    as_text = frame_of(archived_group, spark, start=f'{{"{name}":{{"0":10}}}}', end=f'{{"{name}":{{"0":20,"1":40}}}}')
    assert bounds(as_text) == {
        "startingOffsets": f'{{"{name}":{{"0":10,"1":0}}}}',
        "endingOffsets": f'{{"{name}":{{"0":20,"1":40}}}}',
    }
    assert as_text.count() == 50
    with pytest.raises(ConfigError, match=r"end= has -1 for .*, but an offset is 0 or greater"):
        frame_of(archived_group, spark, end=f'{{"{name}":{{"0":-1}}}}')


@pytest.mark.long
def test_dead_letters_are_excluded_marked_or_alone(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    """Not those that were replayed, nor another topic id's; even if a task has none of them."""
    name = archived_group.topic(2)
    archived_group.produce(name, map(str, range(40)), partition=0)
    archived_group.produce(name, map(str, range(5)), partition=1)
    archived_group.set_positions(name, {0: 40, 1: 5})
    states = {3: "dead_lettered", 5: "replayed", 17: "blocked", 30: "skipped", 31: "discarded"}
    topic_id = archived_group.id_of(name)
    with archived_group.engine.begin() as tx:
        columns = "consumer_group, topic, topic_id, partition, record_offset, state, cause, error, attempts, version, "
        columns += "header_names, header_values"
        for offset, state in [*states.items(), (8, "another topic's")]:
            its = {"group": archived_group.group, "topic": name, "at": offset, "id": topic_id, "state": state}
            if state == "another topic's":
                its |= {"id": uuid4(), "state": "dead_lettered"}
            values = ":group, :topic, :id, 0, :at, :state, 'handler', 'e', 1, 1, '{}', '{}'"
            tx.execute(text(f"INSERT INTO {archived_group.schema}.dead_letter ({columns}) VALUES ({values})"), its)
    dead = [(0, offset) for offset in (3, 17, 30, 31)]
    every = [(0, n) for n in range(40)] + [(1, n) for n in range(5)]
    assert offsets(rows_of(archived_group, spark, range_records=4)) == [
        offset for offset in every if offset not in dead
    ]
    assert offsets(rows_of(archived_group, spark, dead_letters="include")) == every
    assert offsets(rows_of(archived_group, spark, range_records=4, dead_letters="only")) == dead
    assert len(rows_of(archived_group, spark, max_records=6, dead_letters="include")) == 6
    marked = rows_of(archived_group, spark, range_records=4, dead_letters="mark")
    assert offsets(marked) == every
    assert offsets([row for row in marked if row.dead_letter]) == dead
    assert {row.value for row in marked if row.dead_letter} == {b"3", b"17", b"30", b"31"}
    with pytest.raises(ConfigError, match=r"dead_letters must be one of 'exclude', .*, got 'no'"):
        frame_of(archived_group, spark, dead_letters="no")


def test_small_tasks_leave_nothing_out_and_read_nothing_twice(
    spark: SparkSession, archived_group: ArchivedGroup
) -> None:
    name = archived_group.topic(3)
    for partition, count in enumerate((101, 7, 0)):
        archived_group.produce(name, map(str, range(count)), partition=partition)
    archived_group.set_positions(name, {0: 101, 1: 7, 2: 0})
    frame = frame_of(archived_group, spark, topics=name, range_records=25)
    assert frame.rdd.getNumPartitions() == 6
    places = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    assert places == [(0, n) for n in range(101)] + [(1, n) for n in range(7)]


def test_it_is_a_dataframe_like_any_other(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    archived_group.filled([f'{{"id": {n}, "even": {str(n % 2 == 0).lower()}}}' for n in range(50)])
    frame_of(archived_group, spark).createOrReplaceTempView("applied")
    decoded = "SELECT from_json(CAST(value AS STRING), 'id int, even boolean') v FROM applied"
    assert spark.sql(f"SELECT sum(v.id) FROM ({decoded}) WHERE v.even").collect()[0][0] == sum(range(0, 50, 2))
    assert len(spark.table("applied").limit(3).collect()) == 3


def test_nothing_applied_is_an_empty_dataframe_and_asks_no_broker(
    spark: SparkSession, archived_group: ArchivedGroup
) -> None:
    name = archived_group.filled(5)
    frame = frame_of(archived_group, spark, kafka={"bootstrap.servers": "127.0.0.1:1"}, start={(name, 0): 5})
    assert frame.schema.names == [*KAFKA.names, "headers"]
    assert frame.collect() == []


def test_aborted_records_are_left_out(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.topic()
    in_transactions(archived_group.brokers, name, (3, True), (3, False), (3, True), (2, False))
    archived_group.set_positions(name, {0: 11})
    assert offsets(rows_of(archived_group, spark, end={(name, 0): 15})) == [(0, n) for n in (0, 1, 2, 8, 9, 10)]
    dirty = {**archived_group.kafka, "isolation.level": "read_uncommitted"}
    assert frame_of(archived_group, spark, kafka=dirty).count() == 9


def test_an_end_that_cannot_be_read_yet_is_refused_before_a_task_waits_for_it(
    spark: SparkSession, archived_group: ArchivedGroup
) -> None:
    name = archived_group.filled(5)
    end_it = in_transactions(archived_group.brokers, name, (3, None))
    with pytest.raises(RangeStuck, match="the log can be read only up to 5 now"):
        rows_of(archived_group, spark, end={(name, 0): 8})
    assert len(rows_of(archived_group, spark)) == 5
    end_it.abort_transaction(30)


@pytest.mark.long
def test_retention_is_a_loss_before_and_while_it_is_read(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(50)
    frame = frame_of(archived_group, spark)
    archived_group.trim(name, 30)
    with pytest.raises(PySparkException, match=r"RangeLost: .*the first offset left is 30"):
        frame.collect()
    with pytest.raises(RangeLost, match="Begin there, which omits 30 records"):
        rows_of(archived_group, spark)
    assert offsets(rows_of(archived_group, spark, start={(name, 0): 30})) == [(0, n) for n in range(30, 50)]


@pytest.mark.long
def test_a_recreated_topic_is_never_read_as_the_one_before(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(5)
    frame = frame_of(archived_group, spark)
    assert frame.count() == 5
    delete(archived_group.kafka, archived_group.admin, name)
    archived_group.topic(name=name)
    archived_group.produce(name, ["new"] * 20)
    with pytest.raises(PySparkException, match=r"TopicRecreated: .*deleted and created again"):
        frame.collect()


def test_what_is_not_there_is_named(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(5)
    with pytest.raises(ConfigError, match=rf"no offsets of orders; it reads {name}"):
        rows_of(archived_group, spark, topics="orders")
    with pytest.raises(ConfigError, match="start= names orders/3, which group"):
        rows_of(archived_group, spark, start={("orders", 3): 1})
    with pytest.raises(ConfigError, match=r"the ledger in schema .* has no offsets of group 'unknown'"):
        stored_ranges(public_ledger(archived_group), "unknown")
    with pytest.raises(ConfigError, match="swap or correct its ends"):
        rows_of(archived_group, spark, start={(name, 0): 6})
    (stored,) = stored_ranges(public_ledger(archived_group), archived_group.group, [name])
    assert (stored.partition, stored.start, stored.end) == (Partition(name, 0), 0, 5)
    assert isinstance(stored, Range)


# -- settings that travel -------------------------------------------------------------------------------------------


@pytest.mark.long("another run of Spark's tasks")
def test_a_password_is_sent_by_name_alone(
    spark: SparkSession, archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived_group.filled(5)
    with pytest.raises(ConfigError, match=r"write Env\('NAME'\)"):
        frame_of(archived_group, spark, kafka={**archived_group.kafka, "sasl.password": "hunter2"})
    with pytest.raises(ConfigError, match="'error_cb' cannot be sent"):
        frame_of(archived_group, spark, kafka={**archived_group.kafka, "error_cb": print})
    with pytest.raises(ConfigError, match="the environment variable SEEKPOINT_TEST_NOWHERE is not set"):
        frame_of(archived_group, spark, kafka={"bootstrap.servers": Env("SEEKPOINT_TEST_NOWHERE")})
    monkeypatch.setenv("SEEKPOINT_TEST_HERE", archived_group.kafka["bootstrap.servers"])
    frame = frame_of(archived_group, spark, kafka={"bootstrap.servers": Env("SEEKPOINT_TEST_HERE")})
    with pytest.raises(PySparkException, match="the environment variable SEEKPOINT_TEST_HERE is not set"):
        frame.collect()  # the workers were started before


def test_another_python_in_the_workers_is_refused_in_a_sentence(
    spark: SparkSession, archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/python-of-another")
    with pytest.raises(ConfigError, match="set the environment variable PYSPARK_PYTHON="):
        frame_of(archived_group, spark)


def test_the_python_of_an_archive_must_be_beside_the_driver_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's recipe for packages: Spark plans a data source here, by the path that the executors have."""
    monkeypatch.chdir(tmp_path)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="./environment/bin/python", master="yarn"))
    with pytest.raises(ConfigError, match=r"tar -xzf env.tar.gz -C environment.*--deploy-mode cluster") as refused:
        require_this_python(session)
    assert f"./environment/bin/python does not exist here ({tmp_path})" in str(refused.value)
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    (tmp_path / "environment" / "bin" / "python").symlink_to(sys.executable)
    require_this_python(session)
