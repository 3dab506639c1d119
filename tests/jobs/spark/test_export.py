"""Exports whose files Spark's tasks write, and reloads whose tasks read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.spark.orders import DATABASE
from seekpoint.errors import ArchiveDamaged, RangeLost
from seekpoint.jobs.export import Export
from seekpoint.jobs.reload import Reload
from seekpoint.runs.run import Progress
from seekpoint.spark import SparkStager, SparkWriter
from support.archive import ArchivedGroup
from support.reload_orders import OrdersGroup, doubled, of


def run(archived_group: ArchivedGroup, spark: SparkSession, progress: Progress | None = None, **options: Any) -> Any:
    arguments: dict[str, Any] = {"writer": SparkWriter(spark, archived_group.kafka), "progress": progress, **options}
    return Export(
        archived_group.engine, archived_group.kafka, archived_group.archive, archived_group.group, **arguments
    ).run()


def test_tasks_write_what_one_process_would(spark: SparkSession, archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(3)
    for partition, count in enumerate((100, 40, 0)):
        archived_group.produce(
            name, [(f"k{n}", f"{n}") for n in range(count)], partition=partition, headers=[("a", None)]
        )
    archived_group.set_positions(name, {0: 100, 1: 40, 2: 0})
    progress: list[Any] = []
    done = run(archived_group, spark, lambda *args: progress.append(args), range_records=10)
    assert (done.files, done.records) == (14, 140)
    assert progress[-1] == ("exporting", 140, 140)
    for partition, count in enumerate((100, 40)):
        assert [start for start, _, _ in archived_group.spans(name, partition)] == list(range(0, count, 10))
        assert archived_group.archived(name, 0, count, partition) == archived_group.logged(name, 0, count, partition)
    assert run(archived_group, spark).files == 0
    whole = spark.read.parquet(*archived_group.archive.files(name))
    assert whole.selectExpr("count(*)", "count(distinct partition, offset)", "max(timestamp) > '2020-01-01'").first() \
        == (140, 140, True)  # fmt: skip


def test_what_ends_an_export_comes_as_it_was_raised(
    spark: SparkSession, archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = archived_group.filled(100)
    plan = Export._plan

    def and_cut(self: Export, stands: Any) -> Any:
        ranges = plan(self, stands)
        archived_group.trim(name, 15)
        return ranges

    monkeypatch.setattr(Export, "_plan", and_cut)
    with pytest.raises(RangeLost, match="retention has passed it"):
        run(archived_group, spark, range_records=10)
    assert archived_group.spans(name) == []


@pytest.mark.long
def test_a_reloads_tasks_chain_the_archive_with_the_log(
    spark: SparkSession, orders_group: OrdersGroup, module: Callable[[str], str], archived_group: ArchivedGroup
) -> None:
    records = [of(n % 40, n, n) for n in range(120)]
    orders_group.produce(orders_group.topic, records, partition=0)
    orders_group.work(120)
    archive = archived_group.archive
    Export(orders_group.engine, archived_group.kafka, archive, orders_group.group, range_records=50).run()
    archived_group.trim(orders_group.topic, 100)
    code = (
        "from support.reload_orders import pipeline\n"
        f"orders = pipeline({orders_group.group!r}, {orders_group.topic!r}, {orders_group.schema!r}, version=2)\n"
    )
    stager = SparkStager(spark, archived_group.kafka, database=DATABASE, schema=orders_group.schema, range_records=1)
    reload = Reload(
        [f"{module(code)}:orders"],
        orders_group.engine,
        archived_group.kafka,
        schema=orders_group.schema,
        stager=stager,
        archive=archive,
        range_records=30,
    )
    driver = reload.open()
    first = (archived_group.folder / "archive").rglob("*.parquet")
    away = min(first)
    away.rename(away.with_suffix(".away"))
    with pytest.raises(ArchiveDamaged, match="it is missing"):
        reload.run(driver)
    away.with_suffix(".away").rename(away)
    reload.run(reload.take_over(driver.run.id))
    assert orders_group.rows() == doubled(records)
