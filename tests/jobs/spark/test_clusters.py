"""Executors that are processes of their own, as on a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobs.spark.frames import SALES, doubled, entries, produced
from jobs.spark.orders import BEHIND_COMMIT, DATABASE, FOR_EVER, expected
from seekpoint.jobs.reload import Reload
from seekpoint.testing.servers.spark import start_cluster
from support.batch_process import offsets
from support.reload_orders import OrdersGroup, of
from support.waiting import until

pytestmark = pytest.mark.usefixtures("spark_environment")
JOB = Path(__file__).parent / "cluster.py"
ENDLESS = 500.0  # seconds: alone, the longest takes 76


@contextmanager
def started(
    orders_group: OrdersGroup,
    name: str,
    master: str,
    config: Mapping[str, str] | None = None,
    jobs: Sequence[str] = (),
    **stager: Any,
) -> Iterator[subprocess.Popen[str]]:
    """A reload (or these jobs) on this master, in a process of its own, which ends with the block."""
    order = {
        "jobs": [(job, name) for job in jobs or ["reload"]],
        "master": master,
        "config": dict(config or {}),
        "brokers": orders_group.brokers,
        "schema": orders_group.schema,
        "topic": orders_group.topic,
        "stager": stager,
    }
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(JOB)], env={**os.environ, "ORDER": json.dumps(order)}, **pipes) as job:
        try:
            yield job
        finally:
            job.kill()


def resumed(orders_group: OrdersGroup, name: str) -> None:
    """Take over the one run, which is staging still, without Spark."""
    reload = Reload(
        [name],
        orders_group.engine,
        {"bootstrap.servers": orders_group.brokers},
        schema=orders_group.schema,
        range_records=40,
    )
    (run,) = reload.runs.list()
    assert run.state == "staging"
    reload.run(reload.take_over(run.id))
    assert orders_group.rows() == expected()


@pytest.mark.long
def test_separate_executors_of_which_one_is_killed_after_its_commit(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    with started(
        orders_group, applied_pipeline(BEHIND_COMMIT), "local-cluster[2,1,1024]", jobs=["reload", "read"]
    ) as job:
        output, errors = job.communicate(timeout=ENDLESS)
    assert (job.returncode, output.split()) == (0, ["CutOver", "200"]), errors
    assert (tmp_path / "marker").exists(), "no process was killed"
    assert orders_group.rows() == expected()
    attempts = orders_group.execute("SELECT count(*) FROM {schema}.reload_staged")
    assert attempts == [(7,)], "six ranges, and one of them twice"


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


@pytest.mark.long
def test_tasks_that_hang_are_overtaken_by_their_copies_on_another_machine(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    """Speculation, in a reload and in a batch: two attempts at one range at the same time, and its rows once."""
    name = applied_pipeline(FOR_EVER)
    for partition in (0, 1):
        orders_group.produce(
            orders_group.topic, [of(n + partition * 1000, n, n) for n in range(100, 200)], partition=partition
        )
    with start_cluster() as master, started(orders_group, name, master, SPECULATION, ["reload", "batch"]) as job:
        output, errors = job.communicate(timeout=ENDLESS)
    assert (job.returncode, output.split()) == (0, ["CutOver", "BatchDone"]), errors
    assert {file.name for file in tmp_path.glob("marker*")} == {"marker99", "marker199"}, "something did not hang"
    assert orders_group.rows() == expected(200)
    assert offsets(orders_group) == {f"{orders_group.topic}/0": 200, f"{orders_group.topic}/1": 200}


#: Of two tasks of a frame, the first attempt at the last order never makes a row.
IN_A_FRAME = (
    SALES.replace("return orders.", "return orders.repartition(2).", 1)
    + """
import os, threading

def first(amount):
    if amount == 199:
        try:
            os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return amount
        threading.Event().wait()
    return amount
"""
)


@pytest.mark.long
def test_a_frames_task_that_hangs_is_overtaken_by_its_copy(
    frames_group: OrdersGroup, frames_pipeline: Callable[..., str], tmp_path: Path
) -> None:
    """Speculation in a micro-batch: two attempts at the same rows, of which those that the answers name are written."""
    orders_group, marker = frames_group, tmp_path / "marker"
    name = frames_pipeline(IN_A_FRAME, marker=str(marker))
    produced(orders_group, 200)
    with start_cluster() as master, started(orders_group, name, master, SPECULATION, ["run"]) as job:
        output, errors = job.communicate(timeout=ENDLESS)
    assert (job.returncode, output.split()) == (0, ["FramesDone"]), errors
    assert marker.exists(), "no task hung"
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(200), doubled(200))
    assert sorted(offsets(orders_group).values()) == [200, 200]


@pytest.mark.long
def test_the_tasks_of_a_killed_driver_end_and_another_driver_takes_over(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    """The run has a row: the driver that takes it over stages what is missing, here without Spark."""
    name = applied_pipeline(FOR_EVER)
    with started(orders_group, name, "local[2,4]") as job:
        until((tmp_path / "marker99").exists, "a task to come as far as that", ENDLESS)
        family = psutil.Process(job.pid).children(recursive=True)
        assert len(family) > 1, "a JVM, and Python workers"
        job.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    resumed(orders_group, name)


@pytest.mark.long
def test_a_cluster_that_dies_while_ranges_are_staged_is_heard_of(
    orders_group: OrdersGroup, applied_pipeline: Callable[[str], str], tmp_path: Path
) -> None:
    """Spark waits for executors in silence, for ever; the run is open still, and continues without Spark."""
    name = applied_pipeline(FOR_EVER)
    without_copies = SPECULATION | {"spark.speculation": "false"}
    with ExitStack() as cluster:
        master = cluster.enter_context(start_cluster())
        with started(orders_group, name, master, without_copies, patience=2.0) as job:
            until((tmp_path / "marker99").exists, "a task to come as far as that", ENDLESS)
            cluster.close()
            _, errors = job.communicate(timeout=ENDLESS)
    assert re.search(r"ConnectionError: Spark's master spark://\S+ has provided no executor for 2 s", errors), errors
    resumed(orders_group, name)


LOGGED = """
import sys
from seekpoint.cli.spark_session import spark_session
settings = ["spark.eventLog.enabled=true", "spark.eventLog.compress=false", "spark.eventLog.dir=" + sys.argv[1],
            "spark.executorEnv.SEEKPOINT_DATABASE_URL=postgresql://u:hunter2@h/db",
            "spark.executorEnv.SEEKPOINT_SASL_PASSWORD=hunter2", "spark.executorEnv.MY_URL=postgresql://u:hunter2@h/db"]
with spark_session("local[1]", settings) as spark:
    spark.range(3).collect()
"""


@pytest.mark.long
def test_no_secret_of_the_executors_is_in_the_event_log(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LOGGED, tmp_path.as_uri()], check=True, timeout=ENDLESS)
    logged = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".crc")
    assert "SEEKPOINT_DATABASE_URL" in logged
    assert "hunter2" not in logged


HIDDEN = """
import sys
from pyspark.errors import PySparkException
from py4j.protocol import Py4JJavaError
from seekpoint.spark import ledger
from seekpoint.testing.servers.spark import start_spark

with start_spark("local[1]", {}) as spark:
    try:
        spark.read.format("seekpoint").option("table", "ledger").load()
    except (PySparkException, Py4JJavaError) as error:
        assert "DATA_SOURCE_NOT_FOUND" in str(error), error
    else:
        sys.exit("it was found")
    print(ledger(spark, database=sys.argv[1], schema=sys.argv[2]).count())
"""


@pytest.mark.long
def test_a_source_that_another_module_hides_is_registered(orders_group: OrdersGroup, tmp_path: Path) -> None:
    """Spark imports each module ``pyspark_*`` to find sources, and finds none where one of them fails."""
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('broken')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", HIDDEN, DATABASE.name, orders_group.schema]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=ENDLESS,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
