"""Batches whose ranges are staged by Spark's tasks: once, although tasks crash, repeat or are slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from jobs.spark.orders import BEHIND_COMMIT, DATABASE, IN_A_ROW, expected
from seekpoint.errors import BatchRefused, ConfigError
from seekpoint.jobs.batch import BatchDone
from seekpoint.jobs.spark.data_sources import StagingSource
from seekpoint.spark import Env, SparkStager
from support.batch_process import Batcher, batch, offsets, paused
from support.reload_orders import PLAIN, Shop, of


def run(
    shop: Shop,
    spark: SparkSession,
    name: str,
    *,
    database: Any = DATABASE,
    copy_sessions: int | None = None,
    resume: UUID | None = None,
    **options: Any,
) -> BatchDone:
    sizes = {"range_records": options["range_records"]} if "range_records" in options else {}
    its = {"schema": shop.schema, "database": database, "copy_sessions": copy_sessions, **sizes}
    calling = {name: options.pop(name) for name in ("reason", "pause") if name in options}
    job = batch(shop, name, stager=SparkStager(spark, {"bootstrap.servers": shop.brokers}, **its), **options)
    return job.run(**calling) if resume is None else job.take_over(resume)


@pytest.mark.long
def test_a_bounded_batch_has_no_more_tasks_than_sessions(
    shop: Shop, spark: SparkSession, unread: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has one session, whatever the number of ranges; the next batch begins where this one ended."""
    name = unread(PLAIN)
    frame, tasks = StagingSource.frame, []

    def counted(session: SparkSession, plan: Any) -> Any:
        tasks.append([len(ranges) for ranges in plan["tasks"]])
        return frame(session, plan)

    monkeypatch.setattr(StagingSource, "frame", counted)
    done = run(shop, spark, name, range_records=20, copy_sessions=1, max_records=120)
    assert tasks == [[6]]  # ranges of the one task
    assert (done.records, done.offsets) == (120, {f"{shop.topic}/0": 60, f"{shop.topic}/1": 60})
    assert run(shop, spark, name, max_records=1_000).records == 80
    assert shop.rows() == expected()


def test_what_is_new_is_applied_by_tasks(shop: Shop, spark: SparkSession, unread: Callable[[str], str]) -> None:
    name = unread(PLAIN)
    told: list[tuple[str, int, int]] = []
    done = run(shop, spark, name, reason="nightly", progress=lambda *step: told.append(step))
    assert (done.records, done.rows, done.dead_letters) == (200, {f"{shop.schema}.orders": 200}, 0)
    assert done.offsets == offsets(shop) == {f"{shop.topic}/0": 100, f"{shop.topic}/1": 100}
    assert told[-1] == ("staging", 200, 200)
    assert shop.rows() == expected()
    assert run(shop, spark, name).is_empty
    assert paused(shop) is None


@pytest.mark.long
@pytest.mark.parametrize("source", [IN_A_ROW, BEHIND_COMMIT], ids=["in mid-transaction", "behind its commit"])
def test_a_task_whose_process_is_killed_is_run_again(
    shop: Shop, spark: SparkSession, unread: Callable[[str], str], tmp_path: Path, source: str
) -> None:
    done = run(shop, spark, unread(source))
    assert (tmp_path / "marker").exists(), "nobody was killed"
    assert done.records == 200
    assert shop.rows() == expected()


def test_a_record_that_ends_it_is_named_as_a_task_found_it(
    shop: Shop, spark: SparkSession, unread: Callable[[str], str]
) -> None:
    name = unread(PLAIN)
    shop.produce(shop.topic, [of(1, 5_000)], partition=1)
    with pytest.raises(BatchRefused, match=f"{shop.topic}/1 offset 100: row: ValueError: too much"):
        run(shop, spark, name)
    assert shop.rows() == []
    assert paused(shop) is None


@pytest.mark.long
def test_a_variable_that_executors_do_not_have_ends_the_batch_and_its_pause(
    shop: Shop, spark: SparkSession, unread: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Python processes were started without it: the first thing that happens on a cluster."""
    name = unread(PLAIN)
    monkeypatch.setenv("SEEKPOINT_TEST_DRIVER_ALONE", shop.engine.url.render_as_string(hide_password=False))
    with pytest.raises(ConfigError, match="SEEKPOINT_TEST_DRIVER_ALONE") as caught:
        run(shop, spark, name, database=Env("SEEKPOINT_TEST_DRIVER_ALONE"), pause=True)
    (found,) = batch(shop).runs.list()
    assert (found.state, found.swept, paused(shop)) == ("failed", True, None)
    assert any(note.startswith(f"batch {found.id} has ended: nothing was staged") for note in caught.value.__notes__)
    assert run(shop, spark, name).records == 200


@pytest.mark.long
def test_a_batch_whose_driver_was_killed_is_resumed_by_spark(
    shop: Shop, spark: SparkSession, unread: Callable[[str], str]
) -> None:
    name = unread(PLAIN)
    Batcher(shop, at="staging", version=2).kill_where_it_waits()
    (found,) = batch(shop).runs.list()
    done = run(shop, spark, name, resume=UUID(str(found.id)))
    assert (done.run, done.records) == (found.id, 200)
    assert shop.rows() == expected()


def test_a_pipeline_is_unread(shop: Shop, spark: SparkSession) -> None:
    pipeline: Any = shop.pipeline()
    shop.produce(shop.topic, [of(1, 1)], partition=0)
    with pytest.raises(ConfigError, match="module:name"):
        run(shop, spark, pipeline)
    assert (shop.rows(), paused(shop)) == ([], None)
