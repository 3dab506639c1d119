"""Pipelines of DataFrames: what frames make is in the tables once, with the offsets; what fails is not written."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it

from jobs.spark.frames import SALES, apply, doubled, entries, produced
from seekpoint import Append, Json, Upsert
from seekpoint.errors import BatchRefused, ConfigError, FrameFailed, GroupPaused, ReloadRefused
from seekpoint.jobs.frames.declarations import name_of
from seekpoint.jobs.frames.frame_rows import FrameRows, StagedFrame
from seekpoint.jobs.frames.frame_stager import places_of
from seekpoint.jobs.frames.rows import FrameAttempt
from seekpoint.jobs.tables.staging_schema import LINE, OFFSET, PLACE, Staging
from seekpoint.jobs.tables.targets import PipelineSource, targets
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition
from seekpoint.spark import Frame, SparkPipeline
from support.batch_process import offsets
from support.reload_orders import Order, OrdersGroup, of, pipeline

ORDER = "id bigint, amount bigint, at bigint"

pytestmark = pytest.mark.usefixtures("frames_group")


def raw(
    orders_group: OrdersGroup, function: Callable[[DataFrame], DataFrame], sink: Any = None, **options: Any
) -> SparkPipeline:
    """A pipeline of one frame over Kafka's own columns, as an object."""
    frame = Frame(
        function, sink or Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset"])
    )
    return SparkPipeline(orders_group.group, topics=orders_group.topic, frames={"orders": frame}, **options)


def decoded(records: DataFrame) -> DataFrame:
    """The orders of Kafka's own columns, as Spark decodes them; null where a value is no order."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    return records.select("partition", "offset", order).select("*", "order.*", F.col("offset").alias("topic_offset"))


def dead_letters(orders_group: OrdersGroup) -> list[tuple[Any, ...]]:
    return orders_group.execute(
        "SELECT partition, record_offset, cause FROM {schema}.dead_letter WHERE consumer_group = :g ORDER BY 1, 2",
        g=orders_group.group,
    )


def states(orders_group: OrdersGroup) -> list[str]:
    return [state for (state,) in orders_group.execute("SELECT state FROM {schema}.reload_run ORDER BY opened_at")]


def test_what_is_new_is_applied_with_its_offsets(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    produced(orders_group)
    done = apply(orders_group, spark, name, max_records=120)
    assert (done.micro_batches, done.records, done.dead_letters) == (2, 200, 0)
    assert done.rows == {f"{orders_group.schema}.entries": 200, f"{orders_group.schema}.orders": 200}
    assert done.offsets == offsets(orders_group) == {f"{orders_group.topic}/0": 100, f"{orders_group.topic}/1": 100}
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(), doubled())
    assert apply(orders_group, spark, name).micro_batches == 0
    assert (orders_group.schemas(), states(orders_group)) == ([], ["cut_over"]), "the last micro-batch is on record"


def test_records_that_cannot_be_decoded_are_dead_letters_of_that_transaction(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Bytes that are no JSON, a number beyond 64 bits, a null value (I1, I4)."""
    name = frames_pipeline()
    produced(orders_group, 3)
    big = json.dumps({"id": 9, "amount": 2**70})
    orders_group.produce(orders_group.topic, [("{}", "no json"), ("{}", big), ("{}", None), of(5, 5, 5)], partition=0)
    done = apply(orders_group, spark, name)
    assert (done.records, done.dead_letters) == (10, 3)
    assert dead_letters(orders_group) == [(0, 3, "decode"), (0, 4, "decode"), (0, 5, "decode")]
    assert orders_group.rows("entries") == sorted([*entries(3), (5, 5, 5)])


def test_a_record_that_cannot_be_decoded_stops_where_the_policy_says_so(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline(SALES.replace('on_poison="dead_letter", ', ""))
    produced(orders_group, 3)
    orders_group.produce(orders_group.topic, [("{}", "no json")], partition=1)
    with pytest.raises(
        BatchRefused, match=f"{orders_group.topic}/1 offset 3: decode: DecodeError.*on_poison is 'stop'"
    ):
        apply(orders_group, spark, name)
    assert (orders_group.rows("entries"), orders_group.rows(), dead_letters(orders_group)) == ([], [], [])
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 0, f"{orders_group.topic}/1": 0}


def test_kafkas_own_columns_need_no_module(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """An object is enough: executors import nothing of it. Null values and other bytes are rows like any other."""
    produced(orders_group, 5)
    orders_group.produce(orders_group.topic, [("{}", None), ("{}", "no json")], partition=1)
    kept = raw(orders_group, lambda records: decoded(records).where("id IS NOT NULL AND partition = 1"))
    done = apply(orders_group, spark, kept)
    assert (done.records, done.rows) == (12, {f"{orders_group.schema}.entries": 5})
    assert orders_group.rows("entries") == [row for row in entries(5) if row[0] >= 1000]
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 5, f"{orders_group.topic}/1": 7}


def test_ranges_of_which_no_frame_reads_a_record_are_passed_with_their_dead_letters(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Spark sees that a condition is never true, and reads nothing (I4)."""
    name = frames_pipeline(
        SALES.replace("return orders.select", "return orders.where(F.lit(False)).select"),
    )
    orders_group.produce(orders_group.topic, [of(1), ("{}", "no json"), of(2)], partition=0)
    done = apply(orders_group, spark, name)
    assert (done.records, done.dead_letters, dead_letters(orders_group)) == (3, 1, [(0, 1, "decode")])
    assert (orders_group.rows("entries"), orders_group.rows()) == ([], [])


def test_a_join_and_a_shuffle_keep_each_row_once(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """Rows of one range are in many tasks, and tasks have rows of many ranges."""
    produced(orders_group)
    factors = spark.range(0, 2000).selectExpr("id", "id % 3 AS factor")

    def scaled(records: DataFrame) -> DataFrame:
        joined = decoded(records).hint("shuffle_hash").join(factors.hint("shuffle_hash"), "id").repartition(7, "factor")
        return joined.withColumn("amount", F.col("amount") * F.col("factor"))

    apply(orders_group, spark, raw(orders_group, scaled))
    assert orders_group.rows("entries") == sorted(
        (id_, amount * (id_ % 3), offset) for id_, amount, offset in entries()
    )


def test_the_newest_row_of_a_key_is_that_of_the_highest_offset_or_order(
    orders_group: OrdersGroup, spark: SparkSession
) -> None:
    first = [of(n % 7, n, 1000 - n) for n in range(50)]
    orders_group.produce(orders_group.topic, first, partition=0)
    columns = ["id", "amount", "at"]
    by_offset = raw(orders_group, decoded, Upsert((orders_group.schema, "orders"), key=["id"], columns=columns))
    apply(orders_group, spark, by_offset, max_records=30)
    assert orders_group.rows() == [(n % 7, n, 1000 - n) for n in sorted(range(43, 50), key=lambda n: n % 7)]
    orders_group.execute("TRUNCATE {schema}.orders")
    orders_group.ledger().reset_offset(orders_group.topic, 0, 0, reason="by order now", log=(0, 50))
    ordered = Upsert((orders_group.schema, "orders"), key=["id"], columns=columns, order_by="at")
    apply(
        orders_group,
        spark,
        raw(orders_group, lambda records: decoded(records).drop("partition", "offset"), ordered, version=2),
    )
    assert orders_group.rows() == [(n, n, 1000 - n) for n in range(7)]


def test_provenance_and_a_column_that_is_named_as_the_offset(orders_group: OrdersGroup, spark: SparkSession) -> None:
    produced(orders_group, 4)
    orders_group.execute('CREATE TABLE {schema}.placed (id bigint, topic text, part integer, "offset" bigint)')
    sink = Append(
        (orders_group.schema, "placed"), columns=["id", "offset"], provenance={"topic": "topic", "partition": "part"}
    )
    placed = raw(orders_group, lambda records: decoded(records).withColumn("topic", F.lit(orders_group.topic)), sink)
    apply(orders_group, spark, placed)
    rows = orders_group.execute('SELECT part, "offset", id, topic FROM {schema}.placed ORDER BY 1, 2')
    assert rows == [(p, n, n + 1000 * p, orders_group.topic) for p in (0, 1) for n in range(4)]


def test_a_key_of_the_records_place(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """Each record is a row of its own, under other names."""
    produced(orders_group, 4)
    orders_group.execute(
        "CREATE TABLE {schema}.placed (id bigint, part integer, place bigint, PRIMARY KEY (part, place))"
    )
    provenance = {"partition": "part", "offset": "place"}
    sink = Upsert((orders_group.schema, "placed"), key=["part", "place"], columns=["id"], provenance=provenance)
    apply(orders_group, spark, raw(orders_group, decoded, sink))
    rows = orders_group.execute("SELECT part, place, id FROM {schema}.placed ORDER BY 1, 2")
    assert rows == [(p, n, n + 1000 * p) for p in (0, 1) for n in range(4)]


FAILING: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a function on rows": (
        lambda records: decoded(records).withColumn(
            "amount", F.udf(lambda amount: 1 // (amount - amount), "bigint")("amount")
        ),
        "frame 'orders'.* failed: .*ZeroDivisionError",
    ),
    "a row that the table refuses": (
        lambda records: decoded(records).withColumn("amount", F.lit(None).cast("bigint")),
        "refuses a row: NotNullViolation",
    ),
    "a row of no record": (
        lambda records: decoded(records).withColumn("offset", F.col("offset") + 1000),
        "a row has partition [01], offset 10.., and the micro-batch has no such record",
    ),
    "a row without an offset": (
        lambda records: decoded(records).withColumn("offset", F.lit(None).cast("bigint")),
        "offset None, and the micro-batch has no such record",
    ),
}


@pytest.mark.repeats("why")
@pytest.mark.parametrize("why", FAILING)
def test_a_frame_that_fails_ends_the_run_with_its_ranges_named(
    orders_group: OrdersGroup, spark: SparkSession, why: str
) -> None:
    function, message = FAILING[why]
    produced(orders_group, 3)
    with pytest.raises(
        FrameFailed, match=f"(?s){message}.*Nothing of {orders_group.topic}/0 .0, 3., {orders_group.topic}/1 .0, 3."
    ):
        apply(orders_group, spark, raw(orders_group, function))
    assert (orders_group.rows("entries"), states(orders_group), orders_group.schemas()) == ([], ["failed"], [])
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 0, f"{orders_group.topic}/1": 0}
    assert [row.owner for row in orders_group.ledger().read()] == [None, None], "the partitions were given back"


def test_a_row_that_only_the_live_table_refuses_ends_the_run(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """A unique index, which no table of a task has."""
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.entries (amount)")
    produced(orders_group, 3)
    refused = "the database refuses rows that tasks could stage .UniqueViolation.*while .*entries, of frame 'orders'"
    with pytest.raises(
        FrameFailed, match=f"(?s){refused}.*Nothing of {orders_group.topic}/0 .0, 3., {orders_group.topic}/1 .0, 3."
    ):
        apply(orders_group, spark, raw(orders_group, decoded))
    assert (orders_group.rows("entries"), states(orders_group)) == ([], ["failed"])


def test_a_row_that_the_commit_refuses_ends_the_run(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """A deferred constraint: the message names frames and ranges all the same."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED")
    produced(orders_group, 3)
    with pytest.raises(
        FrameFailed, match=f"(?s)UniqueViolation.*at the COMMIT of frame 'orders'.*{orders_group.topic}/1 .0, 3."
    ):
        apply(orders_group, spark, raw(orders_group, decoded))
    assert (orders_group.rows("entries"), states(orders_group)) == ([], ["failed"])


def test_what_a_trigger_completes_is_stored(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """As a worker's rows are: the live table checks them after its triggers."""
    orders_group.execute(
        "ALTER TABLE {schema}.entries ADD stamp text NOT NULL CHECK (stamp = 'here'); "
        "CREATE FUNCTION {schema}.stamped() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN NEW.stamp = 'here'; RETURN NEW; END$$; "
        "CREATE TRIGGER stamped BEFORE INSERT ON {schema}.entries FOR EACH ROW EXECUTE FUNCTION {schema}.stamped()"
    )
    produced(orders_group, 3)
    apply(orders_group, spark, raw(orders_group, decoded))
    assert orders_group.rows("entries") == entries(3)
    assert orders_group.execute("SELECT DISTINCT stamp FROM {schema}.entries") == [("here",)]


def test_a_column_topic_of_the_frames_own(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """With one topic, rows need not say which one they are of."""
    orders_group.execute("ALTER TABLE {schema}.entries ADD topic text")
    produced(orders_group, 2)
    sink = Append((orders_group.schema, "entries"), columns=["id", "amount", "at", "topic_offset", "topic"])
    apply(
        orders_group,
        spark,
        raw(orders_group, lambda records: decoded(records).withColumn("topic", F.lit("a forum's")), sink),
    )
    assert orders_group.rows("entries") == entries(2)
    assert orders_group.execute("SELECT DISTINCT topic FROM {schema}.entries") == [("a forum's",)]


def test_equal_values_of_an_order(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """Equal rows without a place are one row, different ones have no order. With it, the later record is newer."""
    orders_group.produce(orders_group.topic, [of(1, 5, 9), of(1, 5, 9), of(2, 1, 9), of(2, 2, 9)], partition=0)
    sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at"], order_by="at")

    def placeless(records: DataFrame) -> DataFrame:
        return decoded(records).drop("partition", "offset")

    apply(orders_group, spark, raw(orders_group, lambda records: placeless(records).where("id = 1"), sink))
    assert orders_group.rows() == [(1, 5, 9)]
    orders_group.ledger().reset_offset(orders_group.topic, 0, 0, reason="again", log=(0, 4))
    with pytest.raises(
        BatchRefused, match=r"rows of one key, with equal values of 'at', .*or keep the record's partition"
    ):
        apply(orders_group, spark, raw(orders_group, placeless, sink))
    apply(orders_group, spark, raw(orders_group, decoded, sink))
    assert orders_group.rows() == [(1, 5, 9), (2, 2, 9)]


def test_the_name_of_a_pipeline_is_of_the_module_that_makes_it(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str], module: Callable[[str], str]
) -> None:
    """Another module may have imported it, and begun before it: executors need not have that one."""
    name = frames_pipeline()
    here = name.partition(":")[0]
    app = module(f"from {here} import sales")
    assert name_of(import_module(app).sales) == name
    sys.modules[here] = sys.modules.pop(here)  # as where the other one was begun first
    assert name_of(sys.modules[app].sales) == name


def test_a_frame_needs_no_right_to_delete(orders_group: OrdersGroup) -> None:
    sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount"])
    role = f"writes_{orders_group.schema}"
    with orders_group.engine.connect() as tx:  # never committed
        tx.exec_driver_sql(f"CREATE ROLE {role}")
        tx.exec_driver_sql(f"GRANT USAGE ON SCHEMA {orders_group.schema} TO {role}")
        tx.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE ON {orders_group.schema}.orders TO {role}")
        tx.exec_driver_sql(f"SET LOCAL ROLE {role}")
        sink.without_tombstones().check(tx)
        with pytest.raises(ConfigError, match="permission denied"):
            sink.check(tx)


def test_several_rows_of_one_key_need_an_order(orders_group: OrdersGroup, spark: SparkSession) -> None:
    produced(orders_group, 2)

    def twice(records: DataFrame) -> DataFrame:
        return decoded(records).withColumn("at", F.explode(F.array("at", F.col("at") + 1)))

    sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at"])
    topic = re.escape(orders_group.topic)
    with pytest.raises(BatchRefused, match=rf"several rows of one key of the record at {topic}/[01] offset [01], and"):
        apply(orders_group, spark, raw(orders_group, twice, sink))
    assert (orders_group.rows(), states(orders_group)) == ([], ["failed"])
    ordered = Upsert((orders_group.schema, "orders"), key=["id"], columns=["id", "amount", "at"], order_by="at")
    apply(orders_group, spark, raw(orders_group, twice, ordered, version=2))
    assert orders_group.rows() == [(id_, amount, offset + 1) for id_, amount, offset in entries(2)]


def test_a_key_without_an_order_is_named_with_its_records_partition(orders_group: OrdersGroup) -> None:
    source = PipelineSource("", pipeline(orders_group.group, orders_group.topic, orders_group.schema))
    partitions = places_of([Range(Partition(orders_group.topic, number), uuid4(), 0, 9) for number in (5, 2, 3)])
    orders_group.execute(
        f"""
        CREATE TABLE {{schema}}.attempt AS SELECT 7::bigint AS id, amount, 0::bigint AS at, 1::bigint AS "{PLACE}",
            4::bigint AS "{OFFSET}", 0::bigint AS "{LINE}" FROM generate_series(1, 2) AS amount
        """
    )
    staged = StagedFrame("frame 'orders'", ("id", "amount", "at"), [FrameAttempt("attempt", 2)], partitions)
    with orders_group.engine.connect() as tx:
        [target] = targets(tx, [source])
        rows = FrameRows(tx, Staging(orders_group.schema), [source], [], {0: staged})
        with pytest.raises(ReloadRefused, match=rf"the record at {re.escape(orders_group.topic)}/3 offset 4, and"):
            rows.check_order(target)


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "sums": (lambda records: records.groupBy("partition").count(), "it aggregates rows"),
    "no offset": (
        lambda records: decoded(records).drop("offset"),
        "has no column 'offset': keep the record's partition",
    ),
    "a missing column": (lambda records: decoded(records).drop("at"), "has no column 'at', which Append"),
    "a column twice": (lambda records: decoded(records).select("*", "id"), "has a column twice"),
    "a text for an offset": (
        lambda records: decoded(records).withColumn("offset", F.lit("7")),
        "its column 'offset' is string",
    ),
}


def test_what_cannot_be_applied_is_refused_before_a_claim(orders_group: OrdersGroup, spark: SparkSession) -> None:
    produced(orders_group, 1)
    for why, (function, message) in REFUSED.items():
        with pytest.raises(ConfigError, match=message):
            apply(orders_group, spark, raw(orders_group, function))
        assert (states(orders_group), offsets(orders_group)) == ([], {}), why
    entries_ = Append((orders_group.schema, "entries"))
    other = raw(
        orders_group,
        lambda records: decoded(records).select("partition", "offset", F.lit(1).alias("missing")),
        entries_,
    )
    with pytest.raises(ConfigError, match='column "missing" of relation "entries" does not exist'):
        apply(orders_group, spark, other)
    functions: list[tuple[Any, str]] = [
        (lambda records: decoded(records) if records.isEmpty() else records, "frame 'orders'.* raised "),
        (lambda _: None, "frame 'orders'.*returned a NoneType: return a DataFrame"),
        (lambda records: records.no_such_column, "frame 'orders'.* raised PySparkAttributeError"),
    ]
    for function, message in functions:
        with pytest.raises(FrameFailed, match=message):
            apply(orders_group, spark, raw(orders_group, function))
    local = SparkPipeline(
        orders_group.group,
        topics=orders_group.topic,
        value=Json(Order),
        frames={"a": Frame(lambda orders: orders, entries_)},
    )
    with pytest.raises(ConfigError, match="but no module that they can import has it"):
        apply(orders_group, spark, local)
    with pytest.raises(ConfigError, match="the password in database= would be in the job's plan and logs"):
        apply(orders_group, spark, raw(orders_group, decoded), database="postgresql://user:secret@127.0.0.1/db")


def test_two_frames_of_one_table_need_an_order(orders_group: OrdersGroup, spark: SparkSession) -> None:
    """One is written after the other, whatever the offsets of their rows are."""
    produced(orders_group, 4)
    columns = ["id", "amount", "at"]

    def halves(**options: Any) -> SparkPipeline:
        def half(number: int) -> Frame:
            sink = Upsert((orders_group.schema, "orders"), key=["id"], columns=columns, **options)
            return Frame(lambda records: decoded(records).where(F.col("offset") % 2 == number), sink)

        return SparkPipeline(orders_group.group, topics=orders_group.topic, frames={"even": half(0), "odd": half(1)})

    with pytest.raises(ConfigError, match=r"orders is written by 2 frames.* make one frame of them"):
        apply(orders_group, spark, halves())
    apply(orders_group, spark, halves(order_by="at"))
    assert orders_group.rows() == entries(4)


def test_a_paused_group_is_left_alone(orders_group: OrdersGroup, spark: SparkSession) -> None:
    produced(orders_group, 2)
    apply(orders_group, spark, raw(orders_group, decoded))
    produced(orders_group, 2, first=2)
    orders_group.ledger().pause(reason="maintenance")
    with pytest.raises(GroupPaused, match="maintenance"):
        apply(orders_group, spark, raw(orders_group, decoded))
    assert orders_group.rows("entries") == entries(2)
    orders_group.ledger().resume(reason="done")
    apply(orders_group, spark, raw(orders_group, decoded))
    assert orders_group.rows("entries") == entries(4)
