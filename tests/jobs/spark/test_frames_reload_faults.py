"""Drivers of a reload that are killed: the old tables or the new ones, and another driver brings the run to its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from jobs.spark import test_frames_reload
from jobs.spark.test_frames_reload import ALL, Log, add, expected, reach, reloaded, runs, tables, worker_pipeline
from seekpoint.admin import Admin
from seekpoint.cli.job_output import resume
from seekpoint.jobs.run_progress import progress_of
from seekpoint.runs.run import Driver, Step
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup

log = test_frames_reload.log


@pytest.fixture
def newer_pipeline(log: Log, frames_pipeline: Callable[..., str]) -> str:
    """The name of version 2, whose entries have twice the amount; a worker of version 1 has applied the log."""
    return frames_pipeline(ALL, version=2, times=2)


def the_run(orders_group: OrdersGroup) -> UUID:
    [(run,)] = orders_group.execute("SELECT id FROM {schema}.reload_run WHERE :g = ANY (groups)", g=orders_group.group)
    return UUID(str(run))


def apply_more(orders_group: OrdersGroup, log: Log, first: int) -> None:
    worker = orders_group.run_worker(worker_pipeline(orders_group))
    add(orders_group, log, 5, first=first)
    reach(orders_group, log)
    worker.stop()


PLACES = ["merging", "locked"]


@pytest.mark.long
@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", PLACES)
def test_another_driver_resumes(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, newer_pipeline: str, *, modules: Path, step: str
) -> None:
    """I1: nothing of the rebuilt rows is live before the cut-over, and all of them are after it."""
    FramesProcess(orders_group, newer_pipeline, modules, step=step, reloads=True).kill_where_it_waits()
    known, run = Admin(orders_group.engine, schema=orders_group.schema).runs, the_run(orders_group)
    assert (tables(orders_group), orders_group.version()) == (expected(log, times=1), 1)
    assert resume(known.get(run)) == f"seekpoint spark reload {newer_pipeline} --resume {run}"
    assert progress_of(orders_group.engine, orders_group.schema, run).left == 0
    apply_more(orders_group, log, 40)
    assert reloaded(orders_group, spark, newer_pipeline, resume=run).run.id == run
    assert tables(orders_group) == expected(log)
    assert (orders_group.schemas(), runs(orders_group)) == ([], [("merge", "cut_over")])


class BrokenOff(BaseException):
    """The driver ends here, without another statement."""


def test_a_run_that_is_broken_off_at_random_steps_ends_with_each_record_once(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, newer_pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3: version 1 applies more records after each break, until the cut-over raises the version."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance, left = random.Random(seed), 0
    step = Driver.step

    @contextmanager
    def breaking(self: Driver, *states: str, **options: Any) -> Iterator[Step]:
        nonlocal left
        with step(self, *states, **options) as tx:
            yield tx
            left -= 1
            if not left:
                raise BrokenOff  # all of this step is rolled back

    monkeypatch.setattr(Driver, "step", breaking)
    run = None
    for n in range(3):
        left = chance.randint(1, 12)
        try:
            reloaded(orders_group, spark, newer_pipeline, resume=run)
        except BrokenOff:
            run = the_run(orders_group)
            assert tables(orders_group) == expected(log, times=1), f"seed {seed}"
            apply_more(orders_group, log, 40 + 5 * n)
        else:
            break
    left = 0
    if Admin(orders_group.engine, schema=orders_group.schema).runs.get(the_run(orders_group)).is_open:
        reloaded(orders_group, spark, newer_pipeline, resume=run)
    assert tables(orders_group) == expected(log), f"seed {seed}"
    Admin(orders_group.engine, schema=orders_group.schema).runs.sweep()
    assert (orders_group.schemas(), runs(orders_group)) == ([], [("merge", "cut_over")])
