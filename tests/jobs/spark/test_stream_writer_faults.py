"""``writeStream.format("seekpoint")`` under faults: drivers killed at every step, and two queries at once."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.errors.exceptions.base import StreamingQueryException

from jobs.spark import test_stream_writer
from jobs.spark.frames import entries, produced
from jobs.spark.test_frames_faults import PLACES, open_runs
from jobs.spark.test_stream_writer import ORDER, Sink
from support import halting_sink
from support.batch_process import offsets
from support.frames_process import FramesProcess
from support.reload_orders import OrdersGroup
from support.waiting import until

pytestmark = pytest.mark.usefixtures("frames_group")
sink = test_stream_writer.sink


def kill_where_a_process_waits(sink: Sink, modules: Path, place: str, halted: Path) -> None:
    """SIGKILL a query's driver when a process of its sink has halted, and wait for the end of Spark's processes."""
    driver = FramesProcess(
        sink.orders_group,
        "",
        modules,
        table=f"{sink.orders_group.schema}.entries",
        columns=ORDER,
        topic=sink.orders_group.topic,
        checkpoint=str(sink.checkpoint),
        env={halting_sink.PLACE: place, halting_sink.HALTED: str(halted)},
    )
    try:
        until(lambda: halted.exists() or driver.exit_code is not None, f"a process halts at {place}", 400)
        assert driver.exit_code is None, driver.errors
        family = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    halted.unlink()


@pytest.mark.long
def test_each_row_is_written_once_whichever_step_the_driver_is_killed_at(
    sink: Sink, orders_group: OrdersGroup, modules: Path, tmp_path: Path
) -> None:
    """I1, I3: from before the claim to after the COMMIT; the next query finds the checkpoint, or none.

    Four of the eight steps a run: each driver starts a Java and its Python processes.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance, count, before = random.Random(seed), 0, 0
    for place in chance.sample(["called", "written", *PLACES], 4):
        produced(orders_group, 5, first=count)
        count += 5
        if chance.random() < 0.3:
            shutil.rmtree(sink.checkpoint, ignore_errors=True)
        kill_where_a_process_waits(sink, modules, place, tmp_path / "halted")
        passed, *others = sorted(offsets(orders_group).values()) or [0]
        assert set(others) <= {passed}, f"killed at {place}, seed {seed}"
        assert (passed > before) is (place == "applied"), f"killed at {place}, seed {seed}"
        assert orders_group.rows("entries") == entries(passed), f"killed at {place}, seed {seed}"
        before = passed
    sink.run(sink.orders())
    assert orders_group.rows("entries") == entries(count), f"seed {seed}"
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)


@pytest.mark.long("two queries at once, and another one")
def test_two_queries_at_once_write_each_row_once(sink: Sink, orders_group: OrdersGroup, tmp_path: Path) -> None:
    """I2: of two micro-batches, the one that has claimed first is refused, and ends its query."""
    produced(orders_group, 30)
    running = [
        sink.start(sink.orders(maxOffsetsPerTrigger=6), checkpointLocation=str(tmp_path / name))
        for name in ("first", "second")
    ]
    for query in running:
        with suppress(StreamingQueryException):
            query.awaitTermination()
    for query in running:
        if (error := query.exception()) is not None:
            assert "seekpoint.errors.Fenced: " in str(error)
    assert len(orders_group.rows("entries")) == sum(offsets(orders_group).values())
    sink.run(sink.orders())
    assert orders_group.rows("entries") == entries(30)
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)
