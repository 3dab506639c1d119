"""Which plans of DataFrames merge, on a real Spark: what depends on where micro-batches are cut is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it

from seekpoint import Accumulate
from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.columns import SCHEMA
from seekpoint.jobs.frames.plan import require_merging
from seekpoint.jobs.frames.plan_of_sums import require_adding
from seekpoint.jobs.frames.records import RecordsSource
from support.every_row import for_each

Make = Callable[[DataFrame, DataFrame], DataFrame]


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    return RecordsSource.frame(spark, {"columns": SCHEMA.jsonValue(), "tasks": []})


@pytest.fixture
def regions(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", "north")], "topic string, region string")


def _with(query: str, records: DataFrame, regions: DataFrame) -> DataFrame:
    return records.sparkSession.sql(f"WITH {query}", r=records, d=regions)


BY_ROW: dict[str, Make] = {
    "expressions": lambda r, _: r.select("*", (F.col("offset") * 2).alias("twice")).where("offset > 3"),
    "explode": lambda r, _: r.select("partition", "offset", F.explode("headers").alias("header")),
    "unpivot": lambda r, _: r.unpivot(["offset"], ["partition"], "name", "value"),
    "a join": lambda r, regions: r.join(regions, "topic"),
    "a broadcast join": lambda r, regions: r.join(F.broadcast(regions), "topic", "left"),
    "a join on the right": lambda r, regions: regions.join(r, "topic", "right"),
    "a semi join": lambda r, regions: r.join(regions, "topic", "left_semi"),
    "an anti join": lambda r, regions: r.join(regions, "topic", "left_anti"),
    "a join with sums of other rows": lambda r, regions: r.join(regions.groupBy("topic").agg(F.max("region")), "topic"),
    "a union of two selections": lambda r, _: r.where("offset = 1").unionByName(r.where("offset = 2")),
    "a function on columns of Arrow": lambda r, _: r.mapInArrow(lambda batches: batches, r.schema),
    "a function in Python": lambda r, _: r.withColumn("k", F.udf(lambda value: value, "string")("topic")),
    "a function in pandas": lambda r, _: r.mapInPandas(lambda batches: batches, r.schema),
    "a time and random values in the last select": lambda r, _: r.select(
        "*", F.current_timestamp().alias("at"), F.rand().alias("chance"), F.uuid().alias("id")
    ),
    "a column that is named as a function": lambda r, _: r.withColumn("rand(5)", F.lit(1)).where("`rand(5)` > 0"),
    "values in the place of nulls": lambda r, _: r.na.fill("x").na.replace(["a"], ["b"]).dropna(),
    "another distribution": lambda r, _: r.repartition(3, "topic").sortWithinPartitions("offset"),
    "a text with a line break": lambda r, _: r.withColumn("text", F.lit("a\nAggregate [b]\nb")),
    "a subquery of other rows": lambda r, _: r.where("offset > (SELECT 1)"),
    "WITH": lambda r, d: _with(
        "r AS (SELECT * FROM {r} WHERE offset > 3), n AS (SELECT topic, count(*) AS n FROM {d} GROUP BY topic) "
        "SELECT r.* FROM r JOIN n ON r.topic = n.topic WHERE offset > (WITH c AS (SELECT 1 AS a) SELECT max(a) FROM c)",
        r,
        d,
    ),
}


@for_each(BY_ROW)
def test_a_plan_that_works_row_by_row_is_accepted(name: str, records: DataFrame, regions: DataFrame) -> None:
    require_merging("frame", BY_ROW[name](records, regions))


def _in_subquery(records: DataFrame, _: DataFrame) -> DataFrame:
    return records.sparkSession.sql("SELECT *, (SELECT max(offset) FROM {r}) AS last FROM {r}", r=records)


def _exists(records: DataFrame, regions: DataFrame) -> DataFrame:
    query = "SELECT * FROM {d} AS d WHERE EXISTS (SELECT 1 FROM {r} AS r WHERE r.topic = d.topic)"
    return records.sparkSession.sql(query, r=records, d=regions)


def _lateral(records: DataFrame, _: DataFrame) -> DataFrame:
    query = "SELECT r.topic, doubled FROM {r} AS r, LATERAL (SELECT r.offset * 2 AS doubled)"
    return records.sparkSession.sql(query, r=records)


def _many(records: DataFrame, _: DataFrame) -> DataFrame:
    """More columns than a plan's text shows by default."""
    wide = records.select("*", *[F.lit(n).alias(f"c{n}") for n in range(40)])
    return wide.groupBy("topic").agg(*[F.sum(f"c{n}").alias(f"c{n}") for n in range(40)])


REFUSED: dict[str, tuple[Make, str]] = {
    "sums": (lambda r, _: r.groupBy("topic").agg(F.sum("offset")), "it aggregates rows.*operator Aggregate"),
    "a count below a filter": (lambda r, _: r.groupBy("topic").count().where("count > 1"), "operator Aggregate"),
    "a window": (lambda r, _: r.withColumn("n", F.row_number().over(Window.partitionBy("topic").orderBy("offset"))),
                 "operator Window"),
    "distinct": (lambda r, _: r.select("topic", "offset").distinct(), "it drops rows that are equal to others"),
    "dropDuplicates": (lambda r, _: r.dropDuplicates(["topic"]), "it drops rows that are equal to others"),
    "limit": (lambda r, _: r.limit(3), "it takes the first rows"),
    "offset": (lambda r, _: r.offset(1), "it skips the first rows"),
    "sample": (lambda r, _: r.sample(0.5), "it samples rows at random"),
    "sampleBy": (lambda r, _: r.sampleBy("partition", {0: 0.5}, 3), "rows, keys or amounts depend on random values"),
    "randomSplit": (lambda r, _: r.randomSplit([0.5, 0.5], 1)[0], "it samples rows at random"),
    "random rows": (lambda r, _: r.where(F.rand() < 0.5), "rows, keys or amounts depend on random values"),
    "random rows in SQL": (lambda r, _: r.where("random() < 0.5"), "rows, keys or amounts depend on random values"),
    "random values that are filtered": (lambda r, _: r.withColumn("n", F.rand()).where("n < 0.5"), "on random values"),
    "random values that are distributed by": (lambda r, _: r.withColumn("n", F.uuid()).repartition(3, "n"),
                                              "on random values"),
    "numbers of rows": (lambda r, _: r.withColumn("n", F.monotonically_increasing_id()),
                        r"monotonically_increasing_id\(\) numbers the rows of one micro-batch"),
    "numbers of tasks": (lambda r, _: r.withColumn("n", F.spark_partition_id()), "numbers the rows of one micro-batch"),
    "groups in Arrow": (lambda r, _: r.groupBy("topic").applyInArrow(lambda rows: rows, r.schema),
                        "FlatMapGroupsInArrow, which may not work row by row"),
    "groups of two tables": (lambda r, regions: r.groupBy("topic").cogroup(regions.groupBy("topic")).applyInPandas(
        lambda left, right: left, r.schema), "FlatMapCoGroupsInPandas, which may not work row by row"),
    "a pivot": (lambda r, _: r.groupBy("topic").pivot("partition", [0, 1]).agg(F.sum("offset")), "operator Aggregate"),
    "a lateral join": (_lateral, "operator LateralJoin, which may not work"),
    "observed metrics": (lambda r, _: r.observe("seen", F.count(F.lit(1)).alias("n")), "operator CollectMetrics"),
    "an aggregate of many columns": (_many, "operator Aggregate"),
    "intersect": (lambda r, regions: r.select("topic").intersect(regions.select("topic")), "operator Intersect"),
    "except": (lambda r, regions: r.select("topic").subtract(regions.select("topic")), "operator Except"),
    "groups in pandas": (lambda r, _: r.groupBy("topic").applyInPandas(lambda rows: rows, r.schema),
                         "FlatMapGroupsInPandas, which may not work row by row"),
    "a join with itself": (lambda r, _: r.join(r.select("topic", F.col("offset").alias("other")), "topic"),
                           "it joins the records with themselves"),
    "a join that keeps the others": (lambda r, regions: regions.join(r, "topic", "left"),
                                     "a join LeftOuter also returns rows without a record"),
    "a full join": (lambda r, regions: r.join(regions, "topic", "full"), "a join FullOuter also returns rows"),
    "others without records": (lambda r, regions: regions.join(r, "topic", "left_anti"),
                               "a join LeftAnti also returns rows"),
    "a subquery of the records": (_in_subquery, "a subquery reads the records"),
    "EXISTS": (_exists, "a subquery reads the records"),
    "sums in WITH": (
        lambda r, d: _with("n AS (SELECT topic, count(*) FROM {r} GROUP BY topic), m AS (SELECT * FROM {d}) "
            "SELECT n.* FROM n JOIN m ON n.topic = m.topic", r, d),
        "operator Aggregate"),
    "a join with itself in WITH": (
        lambda r, d: _with("a AS (SELECT * FROM {r}), b AS (SELECT topic FROM {d}) "
            "SELECT x.topic FROM a AS x JOIN a AS y ON x.offset = y.offset JOIN b ON x.topic = b.topic", r, d),
        "it joins the records with themselves"),
    "random rows in WITH": (
        lambda r, d: _with("a AS (SELECT *, rand() AS n FROM {r}), b AS (SELECT topic FROM {d}) "
            "SELECT a.n FROM a JOIN b ON a.topic = b.topic WHERE a.n > 0.5", r, d),
        "on random values"),
    "a subquery of the records in WITH": (
        lambda r, d: _with("a AS (SELECT max(offset) AS last FROM {r}), b AS (SELECT topic FROM {d}) "
            "SELECT x.offset FROM {r} AS x JOIN b ON x.topic = b.topic WHERE x.offset = (SELECT last FROM a)", r, d),
        "a subquery reads the records"),
    "an RDD": (lambda r, _: r.sparkSession.createDataFrame(r.rdd, r.schema), "its plan does not read the records"),
    "a checkpoint": (lambda r, _: r.localCheckpoint(eager=False), "its plan does not read the records"),
    "a union with rows of other data": (lambda r, d: r.select("topic").union(d.select("topic")), "from no record"),
    "other rows alone": (lambda _, regions: regions, "its plan does not read the records"),
}  # fmt: skip


@for_each(REFUSED)
def test_a_plan_that_depends_on_its_micro_batch_is_refused(name: str, records: DataFrame, regions: DataFrame) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^frame: .*{message}"):
        require_merging("frame", make(records, regions))


SINK = Accumulate("sums", key=["topic"], add=["n"], least=["low"], most=["high"])


def _amounts(records: DataFrame) -> DataFrame:
    """Rows of what is added."""
    return records.select("topic", *(F.col("offset").alias(name) for name in ("n", "low", "high")))


def _grouped(rows: DataFrame, n: Any = None) -> DataFrame:
    return rows.groupBy("topic").agg(
        (F.sum("n") if n is None else n).alias("n"), F.min("low").alias("low"), F.max("high").alias("high")
    )


def _in_sql(records: DataFrame, regions: DataFrame) -> DataFrame:
    query = (
        "SELECT d.region AS topic, sum(offset) FILTER (WHERE offset > 3) AS n, min(offset) AS low, max(offset) AS high "
        "FROM {r} AS r JOIN {d} AS d ON r.topic = d.topic GROUP BY d.region"
    )
    return records.sparkSession.sql(query, r=records, d=regions)


ADDED: dict[str, tuple[Make, bool]] = {
    "rows as they are": (lambda r, _: _amounts(r).where("n > 3"), False),
    "sums": (lambda r, _: _grouped(_amounts(r)), True),
    "counts": (lambda r, _: _grouped(_amounts(r), F.count("*")), True),
    "counts of some": (lambda r, _: _grouped(_amounts(r), F.count_if(F.col("n") > 3)), True),
    "a join before": (lambda r, regions: _grouped(_amounts(r.join(regions, "topic", "left"))), True),
    "SQL": (_in_sql, True),
    "other names": (
        lambda r, _: _amounts(r).groupBy("topic").agg(F.sum("n"), F.min("low"), F.max("high"))
        .toDF("topic", "n", "low", "high").select("high", "low", "n", "topic"), True),
    "rows of WITH": (
        lambda r, d: _with(
            "a AS (SELECT * FROM {r}), b AS (SELECT topic FROM {d}) SELECT a.topic, count(*) AS n, min(a.offset) AS "
            "low, max(a.offset) AS high FROM a JOIN b ON a.topic = b.topic GROUP BY a.topic", r, d), True),
    "a group of an expression": (
        lambda r, _: _amounts(r).groupBy(F.substring("topic", 1, 2).alias("topic")).agg(
            F.sum("n").alias("n"), F.min("low").alias("low"), F.max("high").alias("high")), True),
    "a constant group": (
        lambda r, _: _amounts(r).agg(F.sum("n").alias("n"), F.min("low").alias("low"), F.max("high").alias("high"))
        .withColumn("topic", F.lit("all")), True),
    "sorted, by another distribution": (lambda r, _: _grouped(_amounts(r)).repartition(2, "topic").sort("n"), True),
    "a union of sums": (lambda r, _: _grouped(_amounts(r)).unionByName(_grouped(_amounts(r), F.count("*"))), True),
    "a group that is written in another way": (
        lambda r, _: _grouped(_amounts(r)).withColumn("topic", F.upper("topic")), True),
    "a text with brackets": (
        lambda r, _: _grouped(_amounts(r).withColumn("n", F.when(F.col("topic") == "a), [b", 1).otherwise(2))), True),
}  # fmt: skip


@for_each(ADDED)
def test_aggregates_that_merge_are_accepted_into_sums(name: str, records: DataFrame, regions: DataFrame) -> None:
    make, aggregates = ADDED[name]
    assert require_adding("frame", make(records, regions), SINK) is aggregates


def _strange(records: DataFrame, _: DataFrame) -> DataFrame:
    other = records.sparkSession.createDataFrame([("a", 1, 1, 1)], "topic string, n bigint, low bigint, high bigint")
    return _amounts(records).unionByName(other)


NOT_ADDED: dict[str, tuple[Make, str]] = {
    "an average": (lambda r, _: _grouped(_amounts(r), F.avg("n")), r"it aggregates with avg\(n\).* do not add up"),
    "distinct counts": (lambda r, _: _grouped(_amounts(r), F.count_distinct("n")), "it aggregates with count"),
    "distinct sums": (lambda r, _: _grouped(_amounts(r), F.sum_distinct("n")), "it aggregates with sum"),
    "sums that become null": (lambda r, _: _grouped(_amounts(r), F.try_sum("n")), "it aggregates with try_sum"),
    "the first": (lambda r, _: _grouped(_amounts(r), F.first("n")), "it aggregates with first"),
    "a sum and one": (lambda r, _: _grouped(_amounts(r), F.sum("n") + 1), "it aggregates with"),
    "a sum of another type": (lambda r, _: _grouped(_amounts(r), F.sum("n").cast("int")), "it aggregates with cast"),
    "a negated sum": (lambda r, _: _grouped(_amounts(r), -F.sum("n")), "it aggregates with"),
    "a function in pandas": (
        lambda r, _: _amounts(r).groupBy("topic").agg(_added("n").alias("n")), "it aggregates with"),
    "half of a sum": (lambda r, _: _grouped(_amounts(r)).withColumn("n", F.col("n") / 2), "it computes .* from the"),
    "bits of a sum": (lambda r, _: _grouped(_amounts(r)).withColumn("n", F.bitwise_not("n")), "it computes .* from"),
    "a part of the group by a sum": (
        lambda r, _: _grouped(_amounts(r)).withColumn("topic", F.col("n").cast("string")), "it computes .* from the"),
    "a filter by a sum": (lambda r, _: _grouped(_amounts(r)).where("n > 1"), "after groupBy .operator Filter"),
    "a join after": (lambda r, d: _grouped(_amounts(r)).join(d, "topic"), "after groupBy .operator Join"),
    "sums of sums": (lambda r, _: _grouped(_grouped(_amounts(r))), "it aggregates rows"),
    "sums of distinct rows": (lambda r, _: _grouped(_amounts(r).distinct()), "it drops rows that are equal"),
    "sums of the first rows": (lambda r, _: _grouped(_amounts(r).limit(3)), "it takes the first rows"),
    "the first sums": (lambda r, _: _grouped(_amounts(r)).limit(3), "operator GlobalLimit"),
    "a rank of sums": (
        lambda r, _: _grouped(_amounts(r)).withColumn("n", F.rank().over(Window.orderBy("n"))), "operator Window"),
    "sums of random rows": (lambda r, _: _grouped(_amounts(r).where(F.rand() < 0.5)), "on random values"),
    "random amounts": (lambda r, _: _amounts(r).withColumn("n", F.rand()), "on random values"),
    "a random group": (lambda r, _: _grouped(_amounts(r)).withColumn("topic", F.uuid()), "it computes uuid"),
    "rows of no record": (_strange, "a union adds rows that come from no record"),
    "sums of rows of no record": (lambda r, d: _grouped(_strange(r, d)), "a union adds rows that come from no record"),
    "sums and rows": (lambda r, _: _grouped(_amounts(r)).unionByName(_amounts(r)), "a union of sums with rows"),
    "a constant to be added": (lambda r, _: _grouped(_amounts(r), F.lit(1)), "'n' is a column of the group, .* add="),
    "a min to be added": (lambda r, _: _grouped(_amounts(r), F.min("n")), "'n' is a min, and .* has it in add="),
    "a sum for a key": (
        lambda r, _: _amounts(r).groupBy("topic").agg(F.sum("n").alias("k"), F.sum("n").alias("n"),
            F.min("low").alias("low"), F.max("high").alias("high")).drop("topic").withColumnRenamed("k", "topic"),
        "'topic' is a sum or a count, and .* has it in key="),
    "a lowest text": (
        lambda r, _: _grouped(_amounts(r).withColumn("low", F.col("topic"))), "'low' is a text, and Spark's min"),
    "a lowest array of texts": (
        lambda r, _: _grouped(_amounts(r).withColumn("low", F.array("topic"))), "'low' is a text, and Spark's min"),
    "a part of the group twice": (
        lambda r, _: _grouped(_amounts(r)).select("topic", "n", "low", "high", "high"),
        "it selects a column of groupBy twice"),
    "a text that hides where an expression ends": (
        lambda r, _: _grouped(_amounts(r), F.sum(F.when(F.col("topic") == "a)", 1))), "aggregates with|cannot be read"),
}  # fmt: skip


def _added(column: str) -> Any:
    """An aggregate in pandas, which has a known function's name."""
    in_pandas: Any = vars(F)["pandas_udf"]
    _sum.__name__, _sum.__annotations__ = "sum", {"values": import_module("pandas").Series, "return": int}
    return in_pandas(_sum, "bigint")(column)


def _sum(values: Any) -> int:
    return int(values.mean())


@for_each(NOT_ADDED)
def test_what_does_not_add_up_is_refused_for_sums(name: str, records: DataFrame, regions: DataFrame) -> None:
    make, message = NOT_ADDED[name]
    with pytest.raises(ConfigError, match=f"(?s)^frame: .*{message}"):
        require_adding("frame", make(records, regions), SINK)


def test_sums_need_errors_where_they_are_too_large(records: DataFrame) -> None:
    """Without ANSI mode Spark's sums wrap around."""
    spark = records.sparkSession
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(ConfigError, match=r"spark\.sql\.ansi\.enabled is off"):
            require_adding("frame", _grouped(_amounts(records)), SINK)
        assert not require_adding("frame", _amounts(records), SINK)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    rounding = Accumulate("sums", key=["topic"], add=["n"], least=["low"], most=["high"], round=True)
    with pytest.raises(ConfigError, match="would round the sums of each micro-batch"):
        require_adding("frame", _grouped(_amounts(records)), rounding)
