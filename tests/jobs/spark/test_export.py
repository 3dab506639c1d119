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
from seekpoint.jobs.run import Progress
from seekpoint.spark import SparkStager, SparkWriter
from support.archive import Vault
from support.reload_orders import Shop, doubled, of


def run(vault: Vault, spark: SparkSession, progress: Progress | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"writer": SparkWriter(spark, vault.kafka), "progress": progress, **options}
    return Export(vault.engine, vault.kafka, vault.archive, vault.group, **given).run()


def test_tasks_write_what_one_process_would(spark: SparkSession, vault: Vault) -> None:
    name = vault.topic(3)
    for partition, count in enumerate((100, 40, 0)):
        vault.produce(name, [(f"k{n}", f"{n}") for n in range(count)], partition=partition, headers=[("a", None)])
    vault.stand(name, {0: 100, 1: 40, 2: 0})
    told: list[Any] = []
    done = run(vault, spark, lambda *said: told.append(said), range_records=10)
    assert (done.files, done.records) == (14, 140)
    assert told[-1] == ("exporting", 140, 140)
    for partition, count in enumerate((100, 40)):
        assert [start for start, _, _ in vault.spans(name, partition)] == list(range(0, count, 10))
        assert vault.archived(name, 0, count, partition) == vault.logged(name, 0, count, partition)
    assert run(vault, spark).files == 0
    whole = spark.read.parquet(*vault.archive.files(name))
    assert whole.selectExpr("count(*)", "count(distinct partition, offset)", "max(timestamp) > '2020-01-01'").first() \
        == (140, 140, True)  # fmt: skip


def test_what_ends_an_export_comes_as_it_was_raised(
    spark: SparkSession, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = vault.filled(100)
    plan = Export._plan

    def and_cut(self: Export, stands: Any) -> Any:
        ranges = plan(self, stands)
        vault.trim(name, 15)
        return ranges

    monkeypatch.setattr(Export, "_plan", and_cut)
    with pytest.raises(RangeLost, match="retention has passed it"):
        run(vault, spark, range_records=10)
    assert vault.spans(name) == []


@pytest.mark.long
def test_a_reloads_tasks_chain_the_archive_with_the_log(
    spark: SparkSession, shop: Shop, module: Callable[[str], str], vault: Vault
) -> None:
    records = [of(n % 40, n, n) for n in range(120)]
    shop.produce(shop.topic, records, partition=0)
    shop.work(120)
    archive = vault.archive
    Export(shop.engine, vault.kafka, archive, shop.group, range_records=50).run()
    vault.trim(shop.topic, 100)
    made = (
        "from support.reload_orders import pipeline\n"
        f"orders = pipeline({shop.group!r}, {shop.topic!r}, {shop.schema!r}, version=2)\n"
    )
    stager = SparkStager(spark, vault.kafka, database=DATABASE, schema=shop.schema, range_records=1)
    reload = Reload(
        [f"{module(made)}:orders"],
        shop.engine,
        vault.kafka,
        schema=shop.schema,
        stager=stager,
        archive=archive,
        range_records=30,
    )
    driver = reload.open()
    first = (vault.folder / "archive").rglob("*.parquet")
    away = min(first)
    away.rename(away.with_suffix(".away"))
    with pytest.raises(ArchiveDamaged, match="it is not there"):
        reload.run(driver)
    away.with_suffix(".away").rename(away)
    reload.run(reload.take_over(driver.run.id))
    assert shop.rows() == doubled(records)
