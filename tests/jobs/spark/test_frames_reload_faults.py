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
from jobs.spark.frames import apply
from jobs.spark.test_frames_reload import ALL, Log, add, expected, reach, reloaded, runs, tables, worker_pipeline
from seekpoint.admin import Admin
from seekpoint.cli.job_output import resume
from seekpoint.errors import ReloadOver
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


#: Up to the cut-over's COMMIT, in their order.
PLACES = ["opened", "staging", "first frame", "merging", "turn catching_up", "catching_up", "compared", "locked",
          "turn cut_over"]  # fmt: skip


@pytest.mark.long
def test_other_drivers_resume_whichever_steps_the_drivers_before_were_killed_at(
    orders_group: OrdersGroup, spark: SparkSession, log: Log, newer_pipeline: str, modules: Path
) -> None:
    """I1, I3: nothing of the rebuilt rows is live before the cut-over's COMMIT, and all of them are after it.

    Two of the nine steps before it a run, and the one after it: each driver starts a Java and its Python processes.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    known, run = Admin(orders_group.engine, schema=orders_group.schema).runs, None
    for n, number in enumerate(sorted(random.Random(seed).sample(range(len(PLACES)), 2))):
        where = f"killed at {PLACES[number]}, seed {seed}"
        what = {"step": PLACES[number], "reloads": True, "resume": run and str(run)}
        FramesProcess(orders_group, newer_pipeline, modules, **what).kill_where_it_waits()
        run = the_run(orders_group)
        assert (tables(orders_group), orders_group.version()) == (expected(log, times=1), 1), where
        assert resume(known.get(run)) == f"seekpoint spark reload {newer_pipeline} --resume {run}"
        left = sum(map(len, log.values())) if number < PLACES.index("first frame") else 0
        assert progress_of(orders_group.engine, orders_group.schema, run).left == left, where
        apply_more(orders_group, log, 40 + 5 * n)
    what = {"step": "published", "reloads": True, "resume": str(run)}
    FramesProcess(orders_group, newer_pipeline, modules, **what).kill_where_it_waits()
    assert (tables(orders_group), orders_group.version()) == (expected(log), 2), f"seed {seed}"
    with pytest.raises(ReloadOver, match=f"run {run} is cut over: open another one"):
        reloaded(orders_group, spark, newer_pipeline, resume=run)
    assert known.sweep() == [run]
    assert (orders_group.schemas(), runs(orders_group)) == ([], [("merge", "cut_over")])
    add(orders_group, log, 5, first=70)
    assert apply(orders_group, spark, newer_pipeline).records == 10
    assert tables(orders_group) == expected(log), f"seed {seed}"


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
