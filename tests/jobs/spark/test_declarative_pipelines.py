"""``create_sink`` with the format ``seekpoint``, in a declarative pipeline that ``spark-pipelines`` runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from jobs.spark.frames import entries, produced
from jobs.spark.orders import DATABASE
from jobs.spark.test_frames_faults import open_runs
from jobs.spark.test_stream_writer import ORDER
from seekpoint.testing.servers.spark import java_home
from support.batch_process import offsets
from support.reload_orders import OrdersGroup

pytestmark = pytest.mark.usefixtures("frames_group", "spark_environment")

SPEC = """
name: sales
storage: {storage}
libraries:
  - glob:
      include: sales.py
"""
SALES = """
from pyspark import pipelines as dp

dp.create_sink("entries", "seekpoint", {sink!r})

@dp.append_flow(target="entries")
def orders():
    stream = spark.readStream.format("seekpoint").options(**{source!r}).load()
    return stream.selectExpr("topic", "partition", "offset", *{columns!r})
"""
HOME = Path(pyspark.__file__).parent


@pytest.fixture
def project(orders_group: OrdersGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipeline that appends the group's orders to its table; in the environment what Spark needs."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path)))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_TESTING", "1")  # for a port that is free
    source = {
        "kafka.bootstrap.servers": orders_group.brokers,
        "subscribe": orders_group.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "8",
    }
    sink = {
        "group": orders_group.group,
        "table": f"{orders_group.schema}.entries",
        "database": DATABASE.name,
        "ledgerSchema": orders_group.schema,
    }
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    (tmp_path / "sales.py").write_text(SALES.format(sink=sink, source=source, columns=ORDER))
    return tmp_path


def run_pipeline(project: Path, *options: str) -> None:
    """Run the pipeline over the available records."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(project / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
    }
    done = subprocess.run(
        [
            HOME / "bin" / "spark-pipelines",
            "run",
            "--remote",
            "local[2]",
            *(word for setting in settings.items() for word in ("--conf", "=".join(setting))),
            *options,
        ],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.long
def test_a_sink_writes_each_row_once_though_its_pipeline_is_refreshed_or_has_lost_its_storage(
    orders_group: OrdersGroup, project: Path
) -> None:
    """I1, I3: a full refresh deletes the checkpoint, and reads the topic from its beginning."""
    produced(orders_group, 10)
    run_pipeline(project)
    assert orders_group.rows("entries") == entries(10)
    assert sorted(offsets(orders_group).values()) == [10, 10]
    produced(orders_group, 5, first=10)
    run_pipeline(project, "--full-refresh-all")
    assert orders_group.rows("entries") == entries(15)
    produced(orders_group, 5, first=15)
    shutil.rmtree(project / "storage")
    run_pipeline(project)
    assert orders_group.rows("entries") == entries(20)
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)
