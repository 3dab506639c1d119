"""``spark.read.format("seekpoint")``: found by name, with the options and columns of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import DecimalType, LongType, StringType, StructType

from jobs.spark.orders import DATABASE
from seekpoint.errors import ConfigError
from seekpoint.ledger import Ledger
from seekpoint.spark import bounds, dead_letters, ledger, read, runs
from support.archive import ArchivedGroup
from support.log_changes import delete
from support.topics import add_partitions

DAY = datetime(2026, 8, 1, tzinfo=UTC)


class Source:
    """Reads by options alone, on the servers of an archived group."""

    def __init__(self, spark: SparkSession, archived_group: ArchivedGroup) -> None:
        self.spark, self.archived_group = spark, archived_group

    @property
    def of_group(self) -> dict[str, str]:
        return {
            "group": self.archived_group.group,
            "database": DATABASE.name,
            "ledgerSchema": self.archived_group.schema,
        }

    def frame(self, **options: Any) -> DataFrame:
        brokers = {"kafka.bootstrap.servers": self.archived_group.brokers}
        return self.spark.read.format("seekpoint").options(**brokers, **options).load()

    def rows(self, **options: Any) -> list[Row]:
        return sorted(self.frame(**options).collect(), key=lambda row: (row.topic, row.partition, row.offset))

    def offsets(self, **options: Any) -> list[tuple[int, int]]:
        return [(row.partition, row.offset) for row in self.rows(**options)]

    def refused(self, **options: Any) -> str:
        """The sentence of the exception that a read with these options raises where it is made."""
        with pytest.raises(PySparkException) as refused:
            self.frame(**options)
        return str(refused.value)

    def dead_letters(self, topic: str, states: dict[int, str], topic_id: UUID | None = None) -> None:
        """Store a dead letter of partition 0 in each of these states, by offset."""
        for offset, state in states.items():
            self.archived_group.execute(
                "INSERT INTO {schema}.dead_letter (consumer_group, topic, topic_id, partition, record_offset, state, "
                "cause, error, attempts, version, header_names, header_values) "
                "VALUES (:group, :topic, :id, 0, :at, :state, 'handler', 'e', 1, 1, '{{h}}', '{{v}}')",
                group=self.archived_group.group, topic=topic, id=topic_id or self.archived_group.id_of(topic),
                at=offset, state=state,
            )  # fmt: skip


@pytest.fixture
def source(spark: SparkSession, archived_group: ArchivedGroup) -> Source:
    return Source(spark, archived_group)


def spark_json(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


# -- columns ------------------------------------------------------------------------------------------------------


def test_it_is_found_by_its_name_and_has_the_columns_of_sparks_kafka_source(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, [("k", "a")], partition=0, headers=[("h", b"1")], timestamp=1_785_587_400_123)
    source.archived_group.produce(name, [None], partition=1)
    frame = source.frame(subscribe=name, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int", True),
        ("offset", "bigint", True),
        ("timestamp", "timestamp", True),
        ("timestampType", "int", True),
        ("headers", "array<struct<key:string,value:binary>>", True),
    ]
    first, second = sorted(frame.collect(), key=lambda row: row.partition)
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"k", b"a", name, 0, 0)
    assert first.timestamp.astimezone(UTC) == datetime(2026, 8, 1, 12, 30, 0, 123_000, UTC)
    assert [tuple(header) for header in first.headers] == [("h", b"1")]
    assert (first.timestampType, second.value, second.headers) == (0, None, [])
    assert source.frame(subscribe=name).columns == frame.columns[:-1]


@pytest.mark.long("another topic and another run of Spark's tasks")
def test_a_timestamp_of_the_broker_has_its_own_type(source: Source) -> None:
    name = source.archived_group.topic(config={"message.timestamp.type": "LogAppendTime"})
    source.archived_group.produce(name, ["a"])
    (row,) = source.rows(subscribe=name)
    assert row.timestampType == 1


# -- bounds -------------------------------------------------------------------------------------------------------


def test_without_a_group_it_reads_what_sparks_kafka_source_would(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, map(str, range(20)), partition=0)
    source.archived_group.produce(name, map(str, range(5)), partition=1)
    source.archived_group.trim(name, 4)
    first, second = [(0, n) for n in range(4, 20)], [(1, n) for n in range(5)]
    frame = source.frame(subscribe=name)
    source.archived_group.produce(name, ["later"], partition=0)
    assert [(row.partition, row.offset) for row in sorted(frame.collect(), key=lambda row: row.offset)] == sorted(
        first + second, key=lambda row: row[1]
    )
    assert bounds(frame) == {
        "startingOffsets": spark_json(name, 4, 0).replace(" ", ""),
        "endingOffsets": spark_json(name, 20, 5).replace(" ", ""),
    }
    assert source.offsets(subscribe=name, **bounds(frame)) == first + second, "the same is read again"
    assert bounds(frame.where("offset > 5").select("offset")) == bounds(frame)
    for several in (frame.union(source.frame(subscribe=name)), frame.crossJoin(source.frame(subscribe=name))):
        with pytest.raises(ConfigError, match="a union or a join of several reads, each with its own bounds"):
            bounds(several)
    both = {"startingOffsets": spark_json(name, -2, 2), "endingOffsets": spark_json(name, 6, -1)}
    assert source.offsets(subscribe=name, **both) == [(0, 4), (0, 5), (1, 2), (1, 3), (1, 4)]
    assert source.offsets(assign=json.dumps({name: [1]})) == second
    assert source.offsets(subscribe=name, startingOffsets=spark_json(name, 21, 5)) == []


def test_times_are_bounds(source: Source) -> None:
    name = source.archived_group.topic(2)
    milliseconds = round(DAY.timestamp() * 1000)
    for n in range(6):
        source.archived_group.produce(name, [str(n)], partition=0, timestamp=milliseconds + n)
    source.archived_group.produce(name, ["old"], partition=1, timestamp=milliseconds - 5)
    bounds = {"startingTimestamp": str(milliseconds + 2), "endingTimestamp": str(milliseconds + 4)}
    message = source.refused(subscribe=name, **bounds)
    assert f"startingTimestamp: {name}/1 has no record with the timestamp {milliseconds + 2} or a later one" in message
    at_end = {"startingOffsetsByTimestampStrategy": "latest"}
    assert source.offsets(subscribe=name, **bounds, **at_end) == [(0, 2), (0, 3)]
    by_partition = {"startingOffsetsByTimestamp": spark_json(name, milliseconds + 5, milliseconds - 9)}
    assert source.offsets(subscribe=name, **by_partition) == [(0, 5), (1, 0)]
    ends = {"endingOffsetsByTimestamp": spark_json(name, milliseconds + 1, milliseconds)}
    assert source.offsets(subscribe=name, **ends) == [(0, 0), (1, 0)]


def test_with_a_group_it_reads_what_was_applied_and_what_was_not(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, map(str, range(10)), partition=0)
    source.archived_group.produce(name, map(str, range(4)), partition=1)
    source.archived_group.set_positions(name, {0: 6, 1: 4})
    applied = source.frame(**source.of_group)
    source.archived_group.set_positions(name, {0: 10, 1: 4})
    assert applied.count() == applied.filter("value IS NOT NULL").count() == 10, "the bounds are those of its plan"
    source.archived_group.set_positions(name, {0: 6, 1: 4})
    left = {"startingOffsets": "ledger", "endingOffsets": "latest"}
    assert source.offsets(**source.of_group, **left) == [(0, n) for n in range(6, 10)]
    assert source.offsets(**source.of_group, assign=json.dumps({name: [1]})) == [(1, n) for n in range(4)]


def test_the_position_of_an_earlier_time_is_a_bound(source: Source) -> None:
    name = source.archived_group.topic(2)
    for number in (0, 1):
        source.archived_group.produce(name, map(str, range(10)), partition=number)
    source.archived_group.set_positions(name, {0: 9, 1: 8})
    for number, (hour, position) in enumerate([(1, 3), (2, 7)]):
        for partition in (0, 1):
            source.archived_group.execute(
                "INSERT INTO {schema}.position_sample "
                "(consumer_group, topic, partition, at, topic_id, next_offset, log_start, log_end) "
                "VALUES (:group, :topic, :partition, :at, :id, :position, 0, 10)",
                group=source.archived_group.group, topic=name, partition=partition, at=DAY + timedelta(hours=hour),
                id=source.archived_group.id_of(name), position=position - partition * number,
            )  # fmt: skip
    between = {"startingOffsets": "ledger@2026-08-01T01:30:00Z", "endingOffsets": "ledger@2026-08-01T02:00:00+00:00"}
    assert source.offsets(**source.of_group, **between) == [(0, n) for n in range(3, 7)] + [(1, n) for n in range(3, 6)]
    message = source.refused(**source.of_group, startingOffsets="ledger@2026-08-01T00:59:59Z")
    assert f"the ledger has no sample of {name}/0 before that" in message


def test_bounds_that_do_not_fit_are_refused_where_the_frame_is_made(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, map(str, range(5)), partition=0)
    source.archived_group.set_positions(name, {0: 5, 1: 0})
    missing = source.refused(subscribe=name, startingOffsets=spark_json(name, 1))
    assert f"startingOffsets leaves out {name}/1: name exactly the partitions that are read" in missing
    extra = source.refused(**source.of_group, endingOffsets=spark_json(name, 1, 0, 0))
    assert f"endingOffsets names {name}/2: name exactly the partitions" in extra
    other = source.refused(subscribe=name, startingOffsets=spark_json("other", 1))
    assert f"startingOffsets leaves out {name}/0, {name}/1 and names other/0" in other
    assert "the brokers have no topic 'not-there'" in source.refused(subscribe="not-there")
    assert f"assign names {name}/7, and the topic has 2 partitions" in source.refused(assign=json.dumps({name: [7]}))
    assert f"assign names {name}/7, for which group" in source.refused(
        **source.of_group, assign=json.dumps({name: [7]})
    )
    assert "log can be read only up to 5 now" in source.refused(subscribe=name, endingOffsets=spark_json(name, 6, 0))
    assert f"got {name}/0 [4, 3): swap or correct its ends" in source.refused(
        subscribe=name, startingOffsets=spark_json(name, 4, 0), endingOffsets=spark_json(name, 3, 0)
    )
    source.archived_group.trim(name, 3)
    assert "retention has passed it: the first offset left is 3" in source.refused(**source.of_group)


@pytest.mark.long
def test_a_topic_id_that_is_not_the_ledgers_is_refused(source: Source) -> None:
    name = source.archived_group.filled(5)
    before = source.frame(subscribe=name)
    delete(source.archived_group.kafka, source.archived_group.admin, name)
    source.archived_group.topic(name=name)
    source.archived_group.produce(name, ["new"] * 20)
    for more in ({}, {"startingOffsets": "ledger", "endingOffsets": "latest"}):
        assert "was deleted and created again" in source.refused(**source.of_group, **more)
    with pytest.raises(PySparkException, match=r"TopicRecreated: .*deleted and created again"):
        before.collect()
    assert len(source.rows(subscribe=name)) == 20, "without a group the topic of now is read"


@pytest.mark.long("another topic, which gets a partition")
def test_partitions_that_the_ledger_does_not_have_are_not_left_out_in_silence(source: Source) -> None:
    name = source.archived_group.filled(5)
    add_partitions(source.archived_group.admin, name, 2)
    left = {"startingOffsets": "ledger", "endingOffsets": "latest"}
    assert f"the ledger has no offset of {name}/1 for group" in source.refused(**source.of_group, **left)
    assert len(source.rows(**source.of_group)) == 5


# -- what is read of the ranges -----------------------------------------------------------------------------------


def test_what_was_applied_is_without_dead_letters_and_skipped_ranges(source: Source) -> None:
    name = source.archived_group.topic()
    source.archived_group.produce(name, map(str, range(20)))
    source.archived_group.set_positions(name, {0: 5})
    source.archived_group.ledger.reset_offset(
        name, 0, 8, log=(0, 20), reason="a test", topic_id=source.archived_group.id_of(name), lost="operator"
    )
    source.archived_group.ledger.reset_offset(
        name, 0, 20, log=None, reason="applied", topic_id=source.archived_group.id_of(name)
    )
    source.dead_letters(name, {2: "dead_lettered", 3: "replayed", 9: "blocked", 15: "skipped"})
    source.dead_letters(name, {4: "dead_lettered"}, topic_id=uuid4())
    every, dead, skipped = range(20), {2, 9, 15}, {5, 6, 7}

    def of(dead_letters: str) -> list[int]:
        return [offset for _, offset in source.offsets(**source.of_group, deadLetters=dead_letters)]

    assert of("exclude") == [n for n in every if n not in dead | skipped]
    assert [offset for _, offset in source.offsets(**source.of_group)] == of("exclude")
    assert of("include") == list(every)
    assert of("only") == sorted(dead)
    marked = source.rows(**source.of_group, deadLetters="mark", includeHeaders="true", maxRecordsPerPartition="3")
    assert [row.offset for row in marked if row.dead_letter] == sorted(dead)
    assert len(marked) == 20
    by_python = read(
        source.spark,
        Ledger(source.archived_group.engine, source.archived_group.group, schema=source.archived_group.schema),
        source.archived_group.group,
        kafka=source.archived_group.kafka,
    )
    assert sorted(row.offset for row in by_python.collect()) == of("exclude")


def test_the_number_of_tasks(source: Source) -> None:
    name = source.archived_group.topic(3)
    for partition, count in enumerate((101, 7, 0)):
        source.archived_group.produce(name, map(str, range(count)), partition=partition)

    def tasks(**options: str) -> int:
        frame = source.frame(subscribe=name, **options)
        assert frame.count() == 108
        return frame.rdd.getNumPartitions()

    assert tasks() == 1, "a task costs more than so few records"
    assert tasks(maxRecordsPerPartition="25") == 6
    assert tasks(minPartitions="4") >= 4
    assert tasks(minPartitions="4", maxRecordsPerPartition="10") == 12


# -- typed values -------------------------------------------------------------------------------------------------

TYPED = """
import datetime, decimal, uuid
import msgspec
from seekpoint import Append, Json, Pipeline, Text

class Line(msgspec.Struct):
    sku: str
    count: int

class Order(msgspec.Struct):
    id: int
    amount: decimal.Decimal
    key: uuid.UUID | None
    at: datetime.datetime
    lines: list[Line] = []

class Loose(msgspec.Struct):
    anything: object

orders = Pipeline({group!r}, topics={topic!r}, value=Json(Order, tombstones=True), sinks=[Append("orders")])
untyped = Pipeline({group!r}, topics={topic!r}, value=Json(), sinks=[Append("orders")])
loose = Pipeline({group!r}, topics={topic!r}, value=Json(Loose), sinks=[Append("orders")])
other = Pipeline({group!r}, topics="other", value=Json(Order), sinks=[Append("orders")])
text = Pipeline({group!r}, topics={topic!r}, value=Text(tombstones=True), sinks=[Append("orders", row=lambda r: None)])
"""


def test_values_have_the_types_of_a_pipelines_codec(source: Source, module: Callable[[str], str]) -> None:
    name = source.archived_group.topic()
    code = module(TYPED.format(group=source.archived_group.group, topic=name))
    key = uuid4()
    order = {
        "id": 7, "amount": "12.50", "key": str(key), "at": "2026-08-01T12:30:00Z", "lines": [{"sku": "a", "count": 2}],
    }  # fmt: skip
    source.archived_group.produce(
        name, [json.dumps(order), json.dumps({**order, "id": 8, "key": None, "lines": []}), None]
    )
    frame = source.frame(subscribe=name, decode=f"{code}:orders")
    value = frame.schema["value"].dataType
    assert isinstance(value, StructType)
    assert value.names == ["id", "amount", "key", "at", "lines"]
    assert [field.dataType for field in value][:3] == [LongType(), DecimalType(38, 18), StringType()]
    first, second, third = sorted(frame.collect(), key=lambda row: row.offset)
    assert (first.value.id, first.value.amount, first.value.key) == (7, Decimal("12.50"), str(key))
    assert first.value["at"].astimezone(UTC) == datetime(2026, 8, 1, 12, 30, tzinfo=UTC)
    assert [tuple(line) for line in first.value.lines] == [("a", 2)]
    assert (second.value.id, second.value.key, second.value.lines) == (8, None, [])
    assert third.value is None
    assert frame.selectExpr("sum(value.id)", "sum(size(value.lines))").collect()[0][0] == 15
    assert frame.columns == source.frame(subscribe=name).columns

    plain = source.rows(subscribe=name, decode=f"{code}:text")
    assert [row.value for row in plain][1:] == [json.dumps({**order, "id": 8, "key": None, "lines": []}), None]

    source.archived_group.produce(name, ["{"])
    source.archived_group.set_positions(name, {0: 4})
    source.dead_letters(name, {3: "dead_lettered"})
    assert len(source.rows(**source.of_group, decode=f"{code}:orders")) == 3
    with pytest.raises(
        PySparkException, match=rf"{name}/0 offset 3 cannot be decoded by {code}:orders: .*deadLetters="
    ):
        source.rows(subscribe=name, decode=f"{code}:orders")
    assert "Json(Any) does not say which type values have" in source.refused(subscribe=name, decode=f"{code}:untyped")
    assert "field 'anything' has no single type" in source.refused(subscribe=name, decode=f"{code}:loose")
    assert f"does not read topic '{name}': it has other" in source.refused(subscribe=name, decode=f"{code}:other")
    assert "there is no module 'nowhere'" in source.refused(subscribe=name, decode="nowhere:orders")


# -- SQL ----------------------------------------------------------------------------------------------------------


def test_it_is_read_from_sql(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, map(str, range(10)), partition=0)
    source.archived_group.set_positions(name, {0: 6, 1: 0})
    options = {**source.of_group, "kafka.bootstrap.servers": source.archived_group.brokers}
    listed = ", ".join(f"{key} '{value}'" for key, value in options.items())
    view = f"orders_{uuid4().hex}"
    source.spark.sql(f"CREATE TEMPORARY VIEW {view} USING seekpoint OPTIONS ({listed})")
    source.archived_group.set_positions(name, {0: 10, 1: 0})
    query = f"SELECT count(*), sum(CAST(CAST(value AS STRING) AS INT)) FROM {view}"
    assert [tuple(row) for row in source.spark.sql(query).collect()] == [(6, 15)]
    shown = {row.col_name: row.comment for row in source.spark.sql(f"DESCRIBE {view}").collect()}
    assert shown["offset"] == f"{name}/0 [0, 6), {name}/1 [0, 0)"
    assert source.spark.sql(f"SELECT a.offset FROM {view} a JOIN {view} b USING (offset)").count() == 6
    with pytest.raises(PySparkException, match="Spark does not pass the options of CREATE TABLE to a Python source"):
        source.spark.sql(f"CREATE TABLE {view}_table USING seekpoint OPTIONS ({listed})")


def test_columns_are_not_the_callers(source: Source) -> None:
    name = source.archived_group.filled(1)
    options = {"kafka.bootstrap.servers": source.archived_group.brokers, "subscribe": name}
    frame = source.spark.read.format("seekpoint").schema("value string").options(**options).load()
    with pytest.raises(PySparkException, match=r"leave \.schema\(\.\.\.\) out"):
        frame.collect()
    with pytest.raises(ConfigError, match="does not have the column offset"):
        bounds(source.frame(subscribe=name).select("value"))


# -- the ledger's tables ------------------------------------------------------------------------------------------


def test_the_ledger_its_dead_letters_and_runs_are_frames(source: Source) -> None:
    name = source.archived_group.topic(2)
    source.archived_group.produce(name, map(str, range(10)), partition=0)
    source.archived_group.set_positions(name, {0: 6, 1: 0})
    source.dead_letters(name, {2: "dead_lettered", 4: "replayed"})
    where = {"database": DATABASE.name, "schema": source.archived_group.schema}
    rows = ledger(source.spark, **where).where(f"topic = '{name}'").orderBy("partition").collect()
    assert [(row.consumer_group, row.partition, row.first_offset, row.next_offset) for row in rows] == [
        (source.archived_group.group, 0, 0, 6),
        (source.archived_group.group, 1, 0, 0),
    ]
    assert rows[0].topic_id == str(source.archived_group.id_of(name))
    assert "token" not in rows[0]
    (dead,) = dead_letters(source.spark, **where).where("state = 'dead_lettered'").collect()
    assert (dead.offset, dead.error, list(dead.header_names)) == (2, "e", [b"h"])
    assert runs(source.spark, **where).count() == 0
    records = source.frame(**source.of_group, deadLetters="include")
    on = ["topic", "partition", "offset"]
    assert records.join(dead_letters(source.spark, **where), on).select("offset").count() == 2, "they join"
    source.spark.conf.set(f"spark.executorEnv.{DATABASE.name}", "postgresql://u:hunter2@h/db")
    try:
        with pytest.raises(ConfigError, match=f"spark.executorEnv.{DATABASE.name} is written to Spark's event log"):
            ledger(source.spark, **where)
    finally:
        source.spark.conf.unset(f"spark.executorEnv.{DATABASE.name}")
    with pytest.raises(PySparkException, match="table must be one of ledger, dead_letters, runs, got 'rows'"):
        source.spark.read.format("seekpoint").option("table", "rows").load()


@pytest.mark.long("every column of each table")
def test_every_column_of_the_tables_is_read(source: Source) -> None:
    name = source.archived_group.filled(5)
    source.dead_letters(name, {0: "discarded"})
    where = {"database": DATABASE.name, "schema": source.archived_group.schema}
    for frame in (ledger(source.spark, **where), dead_letters(source.spark, **where), runs(source.spark, **where)):
        counted = frame.selectExpr(*(f"count(`{column}`) AS `{column}`" for column in frame.columns)).collect()
        assert len(counted[0]) == len(frame.columns)
