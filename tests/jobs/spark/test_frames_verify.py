"""``seekpoint.spark.verify``: the tables of a SparkPipeline, compared with what its frames make of the log."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.spark.frames import apply, driver_of, produced
from jobs.spark.orders import DATABASE
from jobs.spark.test_frames_sums import SUMS
from jobs.spark.test_frames_sums import TABLES as SUMS_TABLES
from seekpoint.errors import FrameFailed, ReloadRefused
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.reload import Difference, Report
from seekpoint.spark import FramesVerified, verify
from support.reload_orders import OrdersGroup
from support.waiting import until

#: A row per id, and sums of them; ``factor`` is of an input.
BOTH = SUMS.replace("from seekpoint import Accumulate", "from seekpoint import Accumulate, Upsert").replace(
    'frames={{"sales"',
    """frames={{
    "orders": Frame(lambda orders: orders.select("partition", "offset", "id", "amount", "at"),
                    Upsert(({schema!r}, "orders"), key=["id"], offset_column="note_offset")), "sales\"""",
)


def verified(orders_group: OrdersGroup, spark: SparkSession, pipeline: Any, **options: Any) -> Report:
    return verified_rows(orders_group, spark, pipeline, **options).report


def verified_rows(orders_group: OrdersGroup, spark: SparkSession, pipeline: Any, **options: Any) -> FramesVerified:
    return verify(
        spark,
        pipeline,
        kafka={"bootstrap.servers": orders_group.brokers},
        database=DATABASE,
        schema=orders_group.schema,
        **options,
    )


def counts(report: Report) -> dict[str, tuple[int, int, int, int]]:
    """Equal, missing, extra and different rows of each table."""
    return {
        table.table.split(".")[1]: (table.equal, table.missing, table.extra, table.different) for table in report.tables
    }


def states(orders_group: OrdersGroup) -> list[tuple[Any, ...]]:
    return orders_group.execute(
        "SELECT state FROM {schema}.reload_run WHERE strategy = 'verify' AND :g = ANY (groups)", g=orders_group.group
    )


@pytest.fixture
def two_sinks_pipeline(frames_group: OrdersGroup, frames_pipeline: Callable[..., str], spark: SparkSession) -> str:
    """A pipeline that upserts rows and adds sums; three micro-batches have applied 100 orders and a dead letter."""
    orders_group = frames_group
    orders_group.execute(SUMS_TABLES)
    name = frames_pipeline(BOTH)
    produced(orders_group, 50)
    orders_group.produce(orders_group.topic, [("{}", "nonsense")], partition=0)
    produced(orders_group, 30, first=20)  # the ids from 20 on again
    assert apply(orders_group, spark, name, max_records=60).micro_batches == 3
    return name


def test_tables_of_frames_are_compared_with_the_log_at_the_stored_offsets(
    orders_group: OrdersGroup, spark: SparkSession, two_sinks_pipeline: str
) -> None:
    report = verified(orders_group, spark, two_sinks_pipeline)
    assert report.is_empty, report
    assert counts(report) == {"orders": (100, 0, 0, 0), "sales": (9, 0, 0, 0)}
    assert report.offsets == {f"{orders_group.group} {orders_group.topic}/{number}": 81 - number for number in (0, 1)}
    assert (report.dead_letters, orders_group.schemas(), states(orders_group)) == (0, [], [("verified",)])

    produced(orders_group, 10, first=50)  # not applied: it is after the stored offsets
    orders_group.execute("UPDATE {schema}.orders SET amount = amount + 1 WHERE id < 3")
    orders_group.execute("DELETE FROM {schema}.orders WHERE id IN (10, 11)")
    orders_group.execute("INSERT INTO {schema}.orders (id, amount, at) VALUES (7777, 1, 1)")
    orders_group.execute(
        "UPDATE {schema}.sales SET cents = cents + 1, note = 'mine' WHERE region = 'nowhere' AND day = 0"
    )
    result = verified_rows(orders_group, spark, two_sinks_pipeline)
    report = result.report
    assert counts(report) == {"orders": (95, 2, 1, 3), "sales": (8, 0, 0, 1)}
    assert (result.run.state, orders_group.schemas()) == ("verified", [])  # the DataFrames need no staged table
    kinds = {
        name.split(".")[1]: Counter(row.kind for row in frame.collect()) for name, frame in result.differences.items()
    }
    assert kinds == {"orders": {"missing": 2, "extra": 1, "different": 3}, "sales": {"different": 1}}
    rows = result.differences[f"{orders_group.schema}.orders"]
    [extra] = rows.where("kind = 'extra'").collect()
    assert (extra.key, extra.live["amount"], extra.rebuilt) == ({"id": "7777"}, "1", None)
    ids = [row.key["id"] for row in rows.where("kind = 'missing' AND live IS NULL").collect()]
    assert sorted(ids) == ["10", "11"]
    changed = rows.where("kind = 'different'").collect()
    assert all(int(row.live["amount"]) == int(row.rebuilt["amount"]) + 1 for row in changed)
    (sums,) = [table for table in report.tables if table.table.endswith("sales")]
    (sample,) = sums.samples
    assert sample.live is not None
    assert sample.rebuilt is not None
    assert int(sample.live["cents"] or 0) == int(sample.rebuilt["cents"] or 0) + 1
    assert orders_group.execute("SELECT count(*) FROM {schema}.orders WHERE id = 7777") == [(1,)]


def test_differences_of_a_table_whose_frames_join_an_input_name_it(
    orders_group: OrdersGroup, spark: SparkSession, two_sinks_pipeline: str
) -> None:
    """The rebuilt rows have the dimension as it is now, the live ones as it was in each micro-batch."""
    orders_group.execute("UPDATE {schema}.customers SET region = 'west' WHERE region = 'south'")
    by_table: dict[str, Difference] = {
        table.table.split(".")[1]: table for table in verified(orders_group, spark, two_sinks_pipeline).tables
    }
    assert (by_table["orders"].inputs, by_table["orders"].is_empty) == ((), True)
    assert (by_table["sales"].inputs, by_table["sales"].missing, by_table["sales"].extra) == (("customers",), 3, 3)


def test_a_stream_that_never_rests_waits_for_one_pass(
    orders_group: OrdersGroup, spark: SparkSession, two_sinks_pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch is applied during each pass, until the comparison holds the positions where they are."""
    driver = driver_of(orders_group, spark, two_sinks_pipeline)
    driver.start()
    passes: list[int] = []
    commits: list[threading.Thread] = []
    stage = FrameStager.stage

    def and_one_more(self: FrameStager, run: Any, tasks: Any) -> Any:
        yield from stage(self, run, tasks)
        if run.strategy != "verify":
            return
        passes.append(len(tasks))
        produced(orders_group, 2, first=100 + 2 * len(passes))
        if len(passes) < 5:
            driver.step()
        elif len(passes) == 5:  # the positions are held
            commits.append(threading.Thread(target=driver.step))
            commits[0].start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(lambda: orders_group.execute(waiting)[0][0] > 0, "the micro-batch waits for its positions", 120)

    monkeypatch.setattr(FrameStager, "stage", and_one_more)
    report = verified(orders_group, spark, two_sinks_pipeline)
    commits[0].join()
    driver.end()
    assert len(passes) == 5
    assert report.is_empty, report
    assert report.offsets == {f"{orders_group.group} {orders_group.topic}/{number}": 89 - number for number in (0, 1)}
    assert [row.next_offset for row in orders_group.ledger().read()] == [91, 90]


def test_a_dead_letter_that_is_replayed_meanwhile_ends_it(
    orders_group: OrdersGroup, spark: SparkSession, two_sinks_pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = FrameStager.stage

    def and_replayed(self: FrameStager, run: Any, tasks: Any) -> Any:
        yield from stage(self, run, tasks)
        orders_group.execute(
            "UPDATE {schema}.dead_letter SET state = 'replayed' WHERE consumer_group = :g", g=orders_group.group
        )

    monkeypatch.setattr(FrameStager, "stage", and_replayed)
    with pytest.raises(ReloadRefused, match="offset 50: a dead letter was replayed since the run was opened"):
        verified(orders_group, spark, two_sinks_pipeline)
    assert (orders_group.schemas(), states(orders_group)) == ([], [("failed",)])


def test_what_cannot_be_rebuilt_ends_it_and_leaves_nothing(
    orders_group: OrdersGroup, spark: SparkSession, two_sinks_pipeline: str
) -> None:
    """A constraint that the log's older rows break: a table cannot have them any more."""
    orders_group.execute("UPDATE {schema}.orders SET amount = 1; ALTER TABLE {schema}.orders ADD CHECK (amount < 3)")
    with pytest.raises(FrameFailed, match="orders refuses a row"):
        verified(orders_group, spark, two_sinks_pipeline)
    assert (orders_group.schemas(), states(orders_group)) == ([], [("failed",)])
