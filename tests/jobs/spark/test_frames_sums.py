"""DataFrames into sums: what a join and a groupBy make of the records is added once, in the offsets' transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it

from jobs.spark.frames import apply, produced
from seekpoint import Accumulate
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, Fenced, FrameFailed, HandlerOutdated
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.staging.stage import Staged, Task
from seekpoint.runs.run import Run
from seekpoint.spark import Frame, SparkPipeline
from seekpoint.testing import assert_frames_merge, raw
from support.batch_process import offsets
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup, of

pytestmark = pytest.mark.usefixtures("frames_group")

SUMS = """
import msgspec
from pyspark.sql import functions as F
from seekpoint import Accumulate, Json
from seekpoint.spark import Frame, SparkPipeline

class Order(msgspec.Struct):
    id: int
    amount: int
    at: int = 0

def by_region(orders, customers):
    region = F.coalesce("region", F.lit("nowhere")).alias("region")
    return orders.join(customers, "id", "left").groupBy(region, (F.col("at") % 3).alias("day")).agg(
        F.sum("amount").alias("cents"), F.count("*").alias("orders"),
        F.min("at").alias("first_at"), F.max("at").alias("last_at"))

sums = Accumulate(({schema!r}, "sales"), key=["region", "day"], add=["cents", "orders"], least=["first_at"],
                  most=["last_at"])
sales = SparkPipeline({group!r}, topics={topic!r}, value=Json(Order), on_poison="dead_letter",
                      inputs={{"customers": ({schema!r}, "customers")}}, frames={{"sales": Frame(by_region, sums)}})
"""

TABLES = """
CREATE TABLE {schema}.sales (region text, day integer, cents bigint NOT NULL CHECK (cents >= 0),
    orders integer NOT NULL, first_at bigint, last_at bigint, note text DEFAULT 'none', PRIMARY KEY (region, day));
CREATE TABLE {schema}.customers (id bigint PRIMARY KEY, region text);
INSERT INTO {schema}.customers SELECT n, CASE WHEN n % 2 = 0 THEN 'north' ELSE 'south' END
    FROM generate_series(0, 2000) AS n WHERE n % 5 <> 0;
"""


@pytest.fixture
def sums_pipeline(orders_group: OrdersGroup, frames_pipeline: Callable[..., str]) -> str:
    """The pipeline's name; its tables are there."""
    orders_group.execute(TABLES)
    return frames_pipeline(SUMS)


def expected(count: int, partitions: Sequence[int] = (0, 1), first: int = 0) -> list[tuple[Any, ...]]:
    """What a plain loop makes of so many orders in each partition."""
    table: dict[tuple[str, int], list[int]] = {}
    for partition in partitions:
        for n in range(first, count):
            id_ = n + partition * 1000
            region = "nowhere" if id_ % 5 == 0 else "north" if id_ % 2 == 0 else "south"
            row = table.setdefault((region, n % 3), [0, 0, n, n])
            row[:] = [row[0] + n, row[1] + 1, min(row[2], n), max(row[3], n)]
    return [(*key, *row, "none") for key, row in sorted(table.items())]


def sales(orders_group: OrdersGroup) -> list[tuple[Any, ...]]:
    return orders_group.rows("sales", "region, day, cents, orders, first_at, last_at, note")


def test_a_join_and_sums_are_added_with_their_offsets(
    orders_group: OrdersGroup, spark: SparkSession, sums_pipeline: str
) -> None:
    """I1: several micro-batches, a restart and a record that cannot be decoded; equal to a plain loop."""
    produced(orders_group)
    orders_group.produce(orders_group.topic, [("{}", "no json")], partition=1)
    done = apply(orders_group, spark, sums_pipeline, max_records=90)
    assert (done.micro_batches, done.records, done.dead_letters) == (3, 201, 1)
    assert (sales(orders_group), offsets(orders_group)) == (
        expected(100),
        {f"{orders_group.topic}/0": 100, f"{orders_group.topic}/1": 101},
    )
    produced(orders_group, 50, first=100)
    apply(orders_group, spark, sums_pipeline)
    assert sales(orders_group) == expected(150)
    assert apply(orders_group, spark, sums_pipeline).micro_batches == 0
    assert orders_group.schemas() == []


@pytest.mark.long
@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["opened", "staging", "turn staged", "staged", "turn cut_over", "applied"])
def test_a_driver_that_is_killed_adds_nothing_or_all(
    orders_group: OrdersGroup, spark: SparkSession, sums_pipeline: str, modules: Path, step: str
) -> None:
    """I1, I3: by signal 9 at each step; the next driver adds what is missing."""
    produced(orders_group)
    FramesProcess(orders_group, sums_pipeline, modules, step=step).kill_where_it_waits()
    written = 100 if step == "applied" else 0
    assert sales(orders_group) == expected(written)
    produced(orders_group, 20, first=100)
    assert apply(orders_group, spark, sums_pipeline).records == 2 * (120 - written)
    assert sales(orders_group) == expected(120)
    assert orders_group.schemas() == []


def test_a_second_driver_adds_in_the_place_of_the_first(
    orders_group: OrdersGroup, spark: SparkSession, sums_pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the first one has staged all sums when the second one claims, and adds nothing."""
    produced(orders_group)
    stage, waiting = FrameStager.stage, [lambda: apply(orders_group, spark, sums_pipeline)]

    def hooked(self: FrameStager, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from stage(self, run, tasks)
        if waiting:
            waiting.pop()()

    monkeypatch.setattr(FrameStager, "stage", hooked)
    with pytest.raises(Fenced):
        apply(orders_group, spark, sums_pipeline)
    assert sales(orders_group) == expected(100)


def test_a_backward_reset_is_refused_and_a_forward_one_is_not(
    orders_group: OrdersGroup, spark: SparkSession, sums_pipeline: str
) -> None:
    """I5: after one micro-batch the ledger knows that the group adds."""
    produced(orders_group)
    apply(orders_group, spark, sums_pipeline)
    with pytest.raises(ConfigError, match="count"):
        orders_group.ledger().reset_offset(orders_group.topic, 0, 50, reason="again", log=(0, 100))
    assert offsets(orders_group)[f"{orders_group.topic}/0"] == 100
    produced(orders_group, 20, first=100)
    for partition in (0, 1):
        orders_group.ledger().reset_offset(orders_group.topic, partition, 110, reason="skip", log=(0, 120))
    apply(orders_group, spark, sums_pipeline)
    sums = {(region, day): (cents, orders) for region, day, cents, orders, *_ in sales(orders_group)}
    skipped = {(region, day): (cents, orders) for region, day, cents, orders, *_ in expected(110, first=100)}
    assert sums == {
        (region, day): (cents - skipped.get((region, day), (0, 0))[0], orders - skipped.get((region, day), (0, 0))[1])
        for region, day, cents, orders, *_ in expected(120)
    }


@pytest.mark.long
def test_frames_of_another_version_take_the_groups_place(
    orders_group: OrdersGroup, spark: SparkSession, sums_pipeline: str, frames_pipeline: Callable[..., str]
) -> None:
    """The way to rebuild sums: a second group, into a schema beside the live one, then `groups replace`."""
    produced(orders_group)
    apply(orders_group, spark, sums_pipeline)
    beside, new = f"{orders_group.schema}_beside", f"{orders_group.group}-2"
    changed = SUMS.replace('F.sum("amount")', 'F.sum(F.col("amount") * 2)')
    changed = changed.replace('on_poison="dead_letter"', 'on_poison="dead_letter", version=2')
    twice = [(region, day, 2 * cents, *rest) for region, day, cents, *rest in expected(100)]
    orders_group.execute(f"CREATE SCHEMA {beside}; CREATE TABLE {beside}.sales (LIKE {{schema}}.sales INCLUDING ALL)")
    try:
        into = changed.replace('Accumulate(({schema!r}, "sales")', 'Accumulate(({beside!r}, "sales")')
        apply(orders_group, spark, frames_pipeline(into, group=new, beside=beside))
        admin = Admin(orders_group.engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema)
        admin.replace_group(admin.plan_replace(orders_group.group, by=new), reason="twice as much")
        assert sales(orders_group) == twice
    finally:
        orders_group.execute(f"DROP SCHEMA {beside} CASCADE")
    with pytest.raises(HandlerOutdated):
        apply(orders_group, spark, sums_pipeline)
    assert apply(orders_group, spark, frames_pipeline(changed)).micro_batches == 0
    assert sales(orders_group) == twice


# -- frames of Kafka's own columns, into one small table --------------------------------------------------------------

TOTALS = """
CREATE TABLE {schema}.totals (name text PRIMARY KEY, n smallint NOT NULL CHECK (n > -10),
    d numeric(8, 2) NOT NULL DEFAULT 0, f double precision NOT NULL DEFAULT 0, low bigint, high bigint)
"""
ORDER = "id bigint, amount bigint, at bigint"


def adding(orders_group: OrdersGroup, function: Any, *add: str, **options: Any) -> SparkPipeline:
    sink = Accumulate((orders_group.schema, "totals"), key=["name"], add=add or ["n"], **options)
    return SparkPipeline(orders_group.group, topics=orders_group.topic, frames={"totals": Frame(function, sink)})


def decoded(records: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    rows = records.select("offset", order).select("offset", "order.*")
    return rows.withColumn("name", F.concat(F.lit("a"), F.col("id"))).withColumn("n", F.col("amount"))


def summed(records: DataFrame) -> DataFrame:
    return decoded(records).groupBy("name").agg(F.sum("n").alias("n"))


def totals(orders_group: OrdersGroup) -> dict[str, int]:
    return dict(orders_group.execute("SELECT name, n FROM {schema}.totals"))


def test_rows_that_are_not_aggregated_are_added_up_in_the_database(
    orders_group: OrdersGroup, spark: SparkSession
) -> None:
    """Also where a row, or the sum of some, is beyond what the column and its constraint take."""
    orders_group.execute(TOTALS)
    orders_group.put([of(1, 40_000, 3), of(1, -39_990, 9), of(2, 5, 1)])
    orders_group.put([of(1, -5, 1)], partition=1)
    rows = adding(
        orders_group, lambda r: decoded(r).select("name", "n", F.col("at").alias("low"), F.col("at").alias("high")),
        least=["low"], most=["high"],
    )  # fmt: skip
    apply(orders_group, spark, rows)
    assert orders_group.rows("totals", "name, n, low, high") == [("a1", 5, 1, 9), ("a2", 5, 1, 1)]
    orders_group.put([of(1, -10, 12)])
    apply(orders_group, spark, rows)
    assert orders_group.rows("totals", "name, n, low, high") == [("a1", -5, 1, 12), ("a2", 5, 1, 1)]


def test_null_adds_nothing_and_begins_at_zero(orders_group: OrdersGroup, spark: SparkSession) -> None:
    orders_group.execute(TOTALS)
    orders_group.put([("{}", '{"id": 1, "at": 1}'), ("{}", '{"id": 2, "at": 1}'), of(2, 7, 1)])
    apply(orders_group, spark, adding(orders_group, summed))
    assert totals(orders_group) == {"a1": 0, "a2": 7}
    orders_group.put([("{}", '{"id": 2, "at": 1}')])
    apply(orders_group, spark, adding(orders_group, lambda r: decoded(r).select("name", "n")))
    assert totals(orders_group) == {"a1": 0, "a2": 7}


def _large(records: DataFrame) -> DataFrame:
    return decoded(records).groupBy("name").agg(F.sum(F.lit(2**62)).alias("n"))


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], Sequence[str], str]] = {
    "a sum that the column cannot hold": (
        summed, ["n"], "NumericValueOutOfRange: smallint out of range.*while .*totals, of frame 'totals'"),
    "a sum that Spark cannot hold": (_large, ["n"], "ARITHMETIC_OVERFLOW"),
    "a key that is null": (
        lambda r: decoded(r).groupBy(F.nullif("name", F.lit("a1")).alias("name")).agg(F.sum("n").alias("n")),
        ["n"], "the column 'name' is null in a row: the columns of key= need a value"),
    "digits that the column does not have": (
        lambda r: decoded(r).groupBy("name").agg(
            F.sum("n").alias("n"), F.sum(F.lit("0.001").cast("decimal(9, 3)")).alias("d")),
        ["n", "d"], "refuses a row: .*d"),
    "a sum of doubles that is infinite": (
        lambda r: decoded(r).groupBy("name").agg(F.sum("amount").alias("n"), F.sum(F.lit(1e308)).alias("f")),
        ["n", "f"], "a sum of 'f' is infinite or NaN"),
}  # fmt: skip


@pytest.mark.repeats("why")
@pytest.mark.parametrize("why", REFUSED)
def test_a_sum_that_cannot_be_stored_is_refused_with_its_ranges(
    orders_group: OrdersGroup, spark: SparkSession, why: str
) -> None:
    """Nothing is added, and the positions stay."""
    function, add, message = REFUSED[why]
    orders_group.execute(TOTALS)
    orders_group.put([of(1, 20_000), of(1, 20_000), of(2, 1)])
    with pytest.raises(FrameFailed, match=f"(?s){message}.*Nothing of {orders_group.topic}/0 .0, 3. is written"):
        apply(orders_group, spark, adding(orders_group, function, *add))
    assert (totals(orders_group), offsets(orders_group)) == (
        {},
        {f"{orders_group.topic}/0": 0, f"{orders_group.topic}/1": 0},
    )


def test_a_function_that_makes_another_plan_later_is_refused_then(
    orders_group: OrdersGroup, spark: SparkSession
) -> None:
    orders_group.execute(TOTALS)
    orders_group.put([of(1, 1)])
    calls: list[int] = []

    def changing(records: DataFrame) -> DataFrame:
        calls.append(1)
        return summed(records) if len(calls) == 1 else summed(records).limit(1)

    with pytest.raises(FrameFailed, match=r"operator GlobalLimit.*the plan has changed since the start"):
        apply(orders_group, spark, adding(orders_group, changing))
    assert totals(orders_group) == {}


def test_sums_are_checked_by_random_cuts(spark: SparkSession) -> None:
    records = [raw(b'{"id": %d, "amount": %d, "at": 1}' % (n % 3, n), offset=n) for n in range(30)]
    sink = Accumulate("totals", key=["name"], add=["n"], most=["high"])

    def pipeline_of(rows: Callable[[DataFrame], DataFrame]) -> SparkPipeline:
        def function(records: DataFrame) -> DataFrame:
            grouped = rows(decoded(records)).groupBy("name")
            return grouped.agg(F.sum("n").alias("n"), F.max("n").alias("high"))

        return SparkPipeline("totals", topics="topic", frames={"totals": Frame(function, sink)})

    assert_frames_merge(spark, pipeline_of(lambda rows: rows), records, cuts=2)

    def first(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)[:1]

    with pytest.raises(AssertionError, match="makes different rows"):
        assert_frames_merge(
            spark, pipeline_of(lambda rows: rows.coalesce(1).mapInArrow(first, rows.schema)), records, cuts=3, seed=1
        )
