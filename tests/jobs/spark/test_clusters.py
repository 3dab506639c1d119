"""Executors that are processes of their own, as on a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

import psutil
import pytest

from jobs.spark.orders import BEHIND_COMMIT, FOR_EVER, expected
from seekpoint.jobs.reload import Reload
from seekpoint.testing.servers.spark import start_cluster
from support.reload_orders import Shop

JOB = Path(__file__).parent / "cluster.py"


def started(
    shop: Shop, name: str, master: str, config: Mapping[str, str] | None = None, **stager: float
) -> subprocess.Popen[str]:
    """A reload on this master, in a process of its own."""
    order = {
        "pipeline": name,
        "master": master,
        "config": dict(config or {}),
        "brokers": shop.brokers,
        "schema": shop.schema,
        "stager": stager,
    }
    return subprocess.Popen(
        [sys.executable, str(JOB)],
        env={**os.environ, "ORDER": json.dumps(order)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(shop: Shop, name: str, master: str, config: Mapping[str, str] | None = None) -> None:
    """The same, to its end."""
    with started(shop, name, master, config) as job:
        try:
            output, errors = job.communicate(timeout=240)
        finally:
            job.kill()
    assert job.returncode == 0, errors
    assert json.loads(output.splitlines()[-1]) == {"outcome": "CutOver"}


@pytest.mark.usefixtures("surroundings")
def test_executors_of_their_own_with_one_that_is_killed_behind_its_commit(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    run(shop, named(BEHIND_COMMIT), "local-cluster[2,1,1024]")
    assert (tmp_path / "marker").exists(), "nobody was killed"
    assert shop.rows() == expected()
    attempts = shop.execute("SELECT count(*) FROM {schema}.reload_staged")
    assert attempts == [(7,)], "six ranges, and one of them twice"


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


@pytest.mark.usefixtures("surroundings")
def test_a_task_that_hangs_is_overtaken_by_its_copy_on_another_machine(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    """Speculation: two attempts at one range at the same time; the one that is left behind leaves nothing."""
    name = named(FOR_EVER)
    with start_cluster() as master:
        run(shop, name, master, SPECULATION)
    assert (tmp_path / "marker").exists(), "nothing hung"
    assert shop.rows() == expected()


@pytest.mark.usefixtures("surroundings")
def test_a_driver_that_is_killed_takes_its_tasks_along_and_another_goes_on(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    """The run is on record: whoever takes it stages what is missing, here without Spark."""
    name = named(FOR_EVER)
    with started(shop, name, "local[2,4]") as job:
        wait_until((tmp_path / "marker").exists, "no task came as far as that")
        family = psutil.Process(job.pid).children(recursive=True)
        assert len(family) > 1, "a JVM, and Python workers"
        job.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    reload = Reload([name], shop.engine, {"bootstrap.servers": shop.brokers}, schema=shop.schema, range_records=40)
    (run_,) = reload.runs.list()
    assert run_.state == "staging"
    reload.run(reload.take_over(run_.id))
    assert shop.rows() == expected()


@pytest.mark.usefixtures("surroundings")
def test_a_cluster_that_dies_while_ranges_are_staged_is_heard_of(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    """Spark waits for executors in silence, for ever; the run is open still, and continues without Spark."""
    name = named(FOR_EVER)
    with start_cluster() as master:
        job = started(shop, name, master, SPECULATION | {"spark.speculation": "false"}, patience=2.0)
        wait_until((tmp_path / "marker").exists, "no task came as far as that")
    with job:
        try:
            _, errors = job.communicate(timeout=120)
        finally:
            job.kill()
    assert re.search(r"ConnectionError: Spark's master spark://\S+ has given no executor for 2 s", errors), errors
    reload = Reload([name], shop.engine, {"bootstrap.servers": shop.brokers}, schema=shop.schema, range_records=40)
    (run_,) = reload.runs.list()
    assert run_.state == "staging"
    reload.run(reload.take_over(run_.id))
    assert shop.rows() == expected()


LOGGED = """
import sys
from seekpoint.cli.spark_session import spark_session
settings = ["spark.eventLog.enabled=true", "spark.eventLog.compress=false", "spark.eventLog.dir=" + sys.argv[1],
            "spark.executorEnv.SEEKPOINT_DATABASE_URL=postgresql://u:hunter2@h/db",
            "spark.executorEnv.SEEKPOINT_SASL_PASSWORD=hunter2", "spark.executorEnv.MY_URL=postgresql://u:hunter2@h/db"]
with spark_session("local[1]", settings) as spark:
    spark.range(3).collect()
"""


@pytest.mark.usefixtures("surroundings")
def test_no_secret_of_the_executors_stands_in_the_event_log(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LOGGED, tmp_path.as_uri()], check=True, timeout=240)
    logged = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".crc")
    assert "SEEKPOINT_DATABASE_URL" in logged
    assert "hunter2" not in logged


def wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline, pause = monotonic() + 180, threading.Event()
    while not condition():
        assert monotonic() < deadline, message
        pause.wait(0.05)
