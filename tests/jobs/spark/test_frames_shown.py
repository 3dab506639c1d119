"""What Spark's UI, the log and the ledger show of a micro-batch while its tasks run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from jobs.spark.frames import SALES, entries, produced
from jobs.spark.test_frames_stream import streaming
from seekpoint.jobs.frames import frame_stager
from seekpoint.jobs.run_progress import progress_of
from support.reload_orders import OrdersGroup
from support.waiting import until

#: Partition 1's rows wait until a file is there.
HELD = SALES.replace(
    "    return amount\n",
    """    import pathlib
    import threading
    while amount == 99 and not pathlib.Path({marker!r}).exists():
        threading.Event().wait(0.05)
    return amount
""",
)


def rest(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """What Spark's REST API says of the application."""
    context = spark.sparkContext
    with urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}", timeout=120) as answer:
        entries: list[dict[str, Any]] = json.load(answer)
    return entries


@pytest.fixture(autouse=True)
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log each time that the driver looks at a job."""
    monkeypatch.setattr(frame_stager, "LOG_SECONDS", 0.0)
    caplog.set_level(logging.INFO, logger="seekpoint")


def test_a_micro_batch_is_shown_while_it_runs(
    orders_group: OrdersGroup,
    spark: SparkSession,
    frames_pipeline: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Jobs and stages have the group, the frame and the run as their description; the log counts tasks."""

    def descriptions(path: str) -> set[str]:
        descriptions = {job.get("description", "") for job in rest(spark, path)}
        return {description for description in descriptions if orders_group.group in description}

    marker = tmp_path / "marker"
    name = frames_pipeline(HELD, marker=str(marker))
    produced(orders_group)
    with streaming(orders_group, spark, name) as stream:
        try:
            until(lambda: descriptions("stages?status=active") or stream.error, "a stage of the micro-batch", 120)
            ((run,),) = orders_group.execute(
                "SELECT id FROM {schema}.reload_run WHERE :g = ANY (groups)", g=orders_group.group
            )
            shown = f"{orders_group.group}: frame 'entries' (entries), run {run}"
            assert descriptions("stages?status=active") == {f"seekpoint: {shown}"}
            assert descriptions("jobs?status=running") == {f"seekpoint: {shown}"}
            line = re.compile(rf"group {re.escape(shown)}: \d of [1-9]\d* tasks are done")
            until(lambda: any(line.fullmatch(entry.getMessage()) for entry in caplog.records), "a line of the log", 60)
            assert progress_of(orders_group.engine, orders_group.schema, run).run.is_open
        finally:
            marker.touch()
        until(lambda: len(orders_group.rows("entries")) == 200, "the orders", 120)
    assert orders_group.rows("entries") == entries()
    texts = {
        f"seekpoint: {orders_group.group}: frame {sink}, run {run}"
        for sink in ("'entries' (entries)", "'orders' (doubled)")
    }
    assert descriptions("jobs") == texts
