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
from support.reload_orders import PLAIN, OrdersGroup, of


def run(
    orders_group: OrdersGroup,
    spark: SparkSession,
    name: str,
    *,
    database: Any = DATABASE,
    copy_sessions: int | None = None,
    resume: UUID | None = None,
    **options: Any,
) -> BatchDone:
    sizes = {"range_records": options["range_records"]} if "range_records" in options else {}
    its = {"schema": orders_group.schema, "database": database, "copy_sessions": copy_sessions, **sizes}
    calling = {name: options.pop(name) for name in ("reason", "pause") if name in options}
    job = batch(
        orders_group, name, stager=SparkStager(spark, {"bootstrap.servers": orders_group.brokers}, **its), **options
    )
    return job.run(**calling) if resume is None else job.take_over(resume)


@pytest.mark.long
def test_a_bounded_batch_has_no_more_tasks_than_sessions(
    orders_group: OrdersGroup,
    spark: SparkSession,
    unread_pipeline: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each task has one session, whatever the number of ranges; the next batch begins where this one ended."""
    name = unread_pipeline(PLAIN)
    frame, tasks = StagingSource.frame, []

    def counted(session: SparkSession, plan: Any) -> Any:
        tasks.append([len(ranges) for ranges in plan["tasks"]])
        return frame(session, plan)

    monkeypatch.setattr(StagingSource, "frame", counted)
    done = run(orders_group, spark, name, range_records=20, copy_sessions=1, max_records=120)
    assert tasks == [[6]]  # ranges of the one task
    assert (done.records, done.offsets) == (120, {f"{orders_group.topic}/0": 60, f"{orders_group.topic}/1": 60})
    assert run(orders_group, spark, name, max_records=1_000).records == 80
    assert orders_group.rows() == expected()


def test_what_is_new_is_applied_by_tasks(
    orders_group: OrdersGroup, spark: SparkSession, unread_pipeline: Callable[[str], str]
) -> None:
    name = unread_pipeline(PLAIN)
    progress: list[tuple[str, int, int]] = []
    done = run(orders_group, spark, name, reason="nightly", progress=lambda *step: progress.append(step))
    assert (done.records, done.rows, done.dead_letters) == (200, {f"{orders_group.schema}.orders": 200}, 0)
    assert done.offsets == offsets(orders_group) == {f"{orders_group.topic}/0": 100, f"{orders_group.topic}/1": 100}
    assert progress[-1] == ("staging", 200, 200)
    assert orders_group.rows() == expected()
    assert run(orders_group, spark, name).is_empty
    assert paused(orders_group) is None


@pytest.mark.long
@pytest.mark.parametrize("source", [IN_A_ROW, BEHIND_COMMIT], ids=["in mid-transaction", "behind its commit"])
def test_a_task_whose_process_is_killed_is_run_again(
    orders_group: OrdersGroup, spark: SparkSession, unread_pipeline: Callable[[str], str], tmp_path: Path, source: str
) -> None:
    done = run(orders_group, spark, unread_pipeline(source))
    assert (tmp_path / "marker").exists(), "no process was killed"
    assert done.records == 200
    assert orders_group.rows() == expected()


def test_a_record_that_ends_it_is_named_as_a_task_found_it(
    orders_group: OrdersGroup, spark: SparkSession, unread_pipeline: Callable[[str], str]
) -> None:
    name = unread_pipeline(PLAIN)
    orders_group.produce(orders_group.topic, [of(1, 5_000)], partition=1)
    with pytest.raises(BatchRefused, match=f"{orders_group.topic}/1 offset 100: row: ValueError: too much"):
        run(orders_group, spark, name)
    assert orders_group.rows() == []
    assert paused(orders_group) is None


@pytest.mark.long
def test_a_variable_that_executors_do_not_have_ends_the_batch_and_its_pause(
    orders_group: OrdersGroup,
    spark: SparkSession,
    unread_pipeline: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's Python processes were started without it: the first thing that happens on a cluster."""
    name = unread_pipeline(PLAIN)
    monkeypatch.setenv("SEEKPOINT_TEST_DRIVER_ALONE", orders_group.engine.url.render_as_string(hide_password=False))
    with pytest.raises(ConfigError, match="SEEKPOINT_TEST_DRIVER_ALONE") as caught:
        run(orders_group, spark, name, database=Env("SEEKPOINT_TEST_DRIVER_ALONE"), pause=True)
    (opened,) = batch(orders_group).runs.list()
    assert (opened.state, opened.swept, paused(orders_group)) == ("failed", True, None)
    assert any(note.startswith(f"batch {opened.id} has ended: nothing was staged") for note in caught.value.__notes__)
    assert run(orders_group, spark, name).records == 200


@pytest.mark.long
def test_a_batch_whose_driver_was_killed_is_resumed_by_spark(
    orders_group: OrdersGroup, spark: SparkSession, unread_pipeline: Callable[[str], str]
) -> None:
    name = unread_pipeline(PLAIN)
    Batcher(orders_group, step="staging", version=2).kill_where_it_waits()
    (opened,) = batch(orders_group).runs.list()
    done = run(orders_group, spark, name, resume=UUID(str(opened.id)))
    assert (done.run, done.records) == (opened.id, 200)
    assert orders_group.rows() == expected()


def test_a_pipeline_is_unread(orders_group: OrdersGroup, spark: SparkSession) -> None:
    pipeline: Any = orders_group.pipeline()
    orders_group.produce(orders_group.topic, [of(1, 1)], partition=0)
    with pytest.raises(ConfigError, match="module:name"):
        run(orders_group, spark, pipeline)
    assert (orders_group.rows(), paused(orders_group)) == ([], None)
