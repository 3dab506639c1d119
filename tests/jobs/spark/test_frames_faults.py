"""Drivers and tasks that are killed, repeated, late or two at once: each record is applied once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from jobs.spark.frames import SALES, apply, doubled, driver_of, entries, produced
from jobs.spark.orders import ONCE
from seekpoint.errors import Fenced, FrameFailed, GroupPaused
from seekpoint.jobs.frames.frame_stager import FrameStager
from seekpoint.jobs.staging.stage import Staged, Task
from seekpoint.runs.run import Run
from support.batch_process import offsets
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup
from support.waiting import until

#: A task whose process ends while it makes a row.
IN_A_ROW = (
    SALES
    + ONCE
    + """
def first(amount):
    if amount == 25:
        once()
    return amount
"""
)

#: A task whose process ends after its rows were committed: the driver gets no answer.
BEHIND_COMMIT = (
    SALES
    + ONCE
    + """
from contextlib import contextmanager
from seekpoint.jobs.frames import rows as task

transaction = task.transaction

@contextmanager
def deadly(engine, schema):
    with transaction(engine, schema) as tx:
        yield tx
    if schema == {schema!r}:
        once()

def first(amount):
    task.transaction = deadly
    return amount
"""
)


def both_tables(orders_group: OrdersGroup) -> tuple[Any, Any]:
    return orders_group.rows("entries"), orders_group.rows()


def open_runs(orders_group: OrdersGroup) -> int:
    (row,) = orders_group.execute(
        "SELECT count(*) FROM {schema}.reload_run WHERE state NOT IN ('cut_over', 'failed', 'aborted')"
    )
    return int(row[0])


PLACES = ["opened", "staging", "turn staged", "staged", "turn cut_over", "applied"]


@pytest.mark.long
@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", PLACES)
def test_another_driver_continues_where_the_ledger_is(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], modules: Path, step: str
) -> None:
    """I1, I3: killed at any step, a driver leaves rows and offsets of the same micro-batches."""
    name = frames_pipeline()
    produced(orders_group)
    FramesProcess(orders_group, name, modules, step=step).kill_where_it_waits()
    written = 100 if step == "applied" else 0
    assert (both_tables(orders_group), offsets(orders_group)) == (
        (entries(written), doubled(written)),
        {f"{orders_group.topic}/{number}": written for number in (0, 1)},
    )
    produced(orders_group, 20, first=100)
    assert apply(orders_group, spark, name).records == 2 * (120 - written)
    assert both_tables(orders_group) == (entries(120), doubled(120))
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


@pytest.mark.long
def test_a_stream_that_is_killed_under_load_applies_each_record_once(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], modules: Path
) -> None:
    """I1, I3: killed by signal 9 wherever it is, once it has passed a random offset; two drivers overlap once."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance, name, count = random.Random(seed), frames_pipeline(), 0

    def produce(more: int) -> None:
        nonlocal count
        produced(orders_group, more, first=count)
        count += more

    def passed(offset: int) -> bool:
        return sum(offsets(orders_group).values()) >= 2 * offset

    produce(50)
    streams = [FramesProcess(orders_group, name, modules, streams=True, max_records=60)]
    for kill in range(3):
        target = chance.randint(count - 45, count - 25)
        until(partial(passed, target), f"offset {target} of both partitions, seed {seed}", 400)
        if kill == 1:  # the next one begins while this one runs
            streams.append(FramesProcess(orders_group, name, modules, streams=True, max_records=60))
            until(lambda: streams[0].exit_code is not None, "the older one is fenced, and ends", 400)
        streams.pop(0).close()
        produce(50)
        if not streams:
            streams.append(FramesProcess(orders_group, name, modules, streams=True, max_records=60))
    streams.pop().close()
    apply(orders_group, spark, name)
    assert both_tables(orders_group) == (entries(count), doubled(count)), f"seed {seed}"
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


@pytest.mark.long
@pytest.mark.parametrize("source", [IN_A_ROW, BEHIND_COMMIT], ids=["while it makes a row", "behind its commit"])
def test_a_task_whose_process_is_killed_is_run_again(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], tmp_path: Path, source: str
) -> None:
    marker = tmp_path / "marker"
    name = frames_pipeline(source, marker=str(marker))
    produced(orders_group)
    assert apply(orders_group, spark, name).records == 200
    assert marker.exists(), "no process was killed"
    assert both_tables(orders_group) == (entries(), doubled())


@pytest.mark.long
def test_a_stream_continues_when_its_python_processes_are_killed(
    orders_group: OrdersGroup, frames_pipeline: Callable[..., str], modules: Path
) -> None:
    """Those of tasks, those that plan a source for Spark's driver, and the daemon that starts them."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    produced(orders_group)
    stream = FramesProcess(orders_group, frames_pipeline(), modules, streams=True, max_records=40)
    try:
        until(lambda: any(offsets(orders_group).values()) or stream.exit_code is not None, "the first micro-batch", 400)
        for _ in range(10):
            kill_python(stream, chance.randint(1, 4), f"seed {seed}")
        until(lambda: set(offsets(orders_group).values()) == {100} or stream.exit_code is not None, f"seed {seed}", 400)
        assert stream.exit_code is None, f"seed {seed}: {stream.errors}"
    finally:
        stream.close()
    assert both_tables(orders_group) == (entries(), doubled()), f"seed {seed}"


def kill_python(stream: FramesProcess, count: int, seed: str) -> None:
    """SIGKILL to the Python processes that Spark has started, as soon as there are so many."""
    processes: list[psutil.Process] = []

    def are_there() -> bool:
        processes[:] = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(stream.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if "pyspark.daemon" in process.cmdline():
                        processes.append(process)
        return len(processes) >= count or stream.exit_code is not None

    until(are_there, f"{count} Python processes, {seed}", 400)
    assert stream.exit_code is None, f"{seed}: {stream.errors}"
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def staged_then(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Do something once, between a micro-batch's staging and its publishing."""
    stage, waiting = FrameStager.stage, [then]

    def hooked(self: FrameStager, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from stage(self, run, tasks)
        if waiting:
            waiting.pop()()

    monkeypatch.setattr(FrameStager, "stage", hooked)


def test_a_second_driver_fences_the_first(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the first one has staged all rows when the second one claims, and writes nothing."""
    name = frames_pipeline()
    produced(orders_group)
    staged_then(monkeypatch, lambda: apply(orders_group, spark, name))
    with pytest.raises(Fenced):
        apply(orders_group, spark, name)
    assert both_tables(orders_group) == (entries(), doubled())
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


def test_a_driver_notices_between_micro_batches_that_another_has_claimed(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    name = frames_pipeline()
    produced(orders_group)
    driver = driver_of(orders_group, spark, name, max_records=100)
    driver.start()
    first = driver.step()
    assert first is not None
    assert first.records == 100
    assert apply(orders_group, spark, name).records == 100
    with pytest.raises(Fenced, match="was claimed, reset or paused since"):
        driver.step()
    assert not driver.is_owned_elsewhere(), "the other one has given them back"
    driver.end()
    assert both_tables(orders_group) == (entries(), doubled())


def test_a_driver_that_ends_while_its_group_is_paused_gives_its_partitions_back(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    """Else the next claim would count a crash."""
    produced(orders_group, 10)
    driver = driver_of(orders_group, spark, frames_pipeline())
    driver.start()
    driver.step()
    orders_group.ledger().pause(reason="maintenance")
    for refusal in (Fenced, GroupPaused):
        with pytest.raises(refusal):
            driver.step()
    driver.end()
    assert [row.owner for row in orders_group.ledger().read()] == [None, None]


def test_a_reset_while_rows_are_staged_keeps_them_out(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: an operator moves the position; the next driver begins there."""
    name = frames_pipeline()
    produced(orders_group)

    def reset() -> None:
        orders_group.ledger().reset_offset(orders_group.topic, 0, 50, reason="skip", log=(0, 100))

    staged_then(monkeypatch, reset)
    with pytest.raises(Fenced):
        apply(orders_group, spark, name)
    assert both_tables(orders_group) == ([], [])
    assert apply(orders_group, spark, name).records == 150
    assert orders_group.rows("entries") == [row for row in entries() if row[0] >= 50]


def test_a_range_that_failed_is_applied_once_the_frame_is_right(
    orders_group: OrdersGroup, spark: SparkSession, frames_pipeline: Callable[..., str]
) -> None:
    produced(orders_group)
    bad = frames_pipeline(SALES + "\ndef first(amount):\n    return 1 // (amount - 7)\n")
    with pytest.raises(FrameFailed, match="ZeroDivisionError"):
        apply(orders_group, spark, bad)
    assert both_tables(orders_group) == ([], [])
    assert apply(orders_group, spark, frames_pipeline()).records == 200
    assert both_tables(orders_group) == (entries(), doubled())
