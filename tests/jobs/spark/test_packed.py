"""PySpark's recipe for a cluster without the code: an environment by ``--archives``, a pipeline by ``--py-files``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from acceptance.test_wheel import environment, run, wheel
from jobs.spark.frames import doubled, entries, produced
from jobs.spark.orders import DATABASE
from seekpoint.testing.servers.spark import java_home, start_cluster
from support.reload_orders import OrdersGroup

__all__ = ["wheel"]  # a fixture
HOME = Path(pyspark.__file__).parent
ENDLESS = 500.0  # seconds
#: What Spark's distribution has on the executors' machines as ``python/lib/pyspark.zip``, without Java's part.
JAVAS = {"bin", "data", "examples", "jars", "licenses", "pandas", "python", "sbin", "tests"}
#: Parts of pyarrow that nothing here imports, and compiled modules.
UNUSED = ("flight", "include", "tests", "__pycache__")

JOB = """
import json, os, sys
from pyspark.sql import SparkSession
from seekpoint.spark import Env, run

order = json.loads(os.environ["ORDER"])
spark = SparkSession.builder.getOrCreate()
done = run(spark, order["sales"], kafka={"bootstrap.servers": order["brokers"]}, database=Env(order["database"]),
           schema=order["schema"], available_now=True)
options = {"kafka.bootstrap.servers": order["brokers"], "group": order["group"], "database": order["database"],
           "ledgerSchema": order["schema"]}
values = spark.read.format("seekpoint").options(**options).load().select("value").collect()
where = spark.range(2, numPartitions=2).rdd.map(lambda _: __import__("seekpoint").__file__).distinct().collect()
print(json.dumps([done.records, len(values), sorted(where)]))
spark.stop()
"""


@pytest.fixture
def without_checkout(spark_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts do not find its own import path."""
    for variable in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def archive(wheel: Path, tmp_path: Path) -> Path:
    """``env.tar.gz`` of an environment with the wheel, pyarrow and the Python part of Spark."""
    python = environment(tmp_path, f"{wheel}[arrow]", "pandas")  # of mapInArrow
    home = python.parents[1]
    libraries = next(home.glob("lib/python*/site-packages"))
    for package in (HOME, HOME.parent / "py4j"):
        shutil.copytree(
            package,
            libraries / package.name,
            ignore=lambda path, names: JAVAS & set(names) if Path(path) == HOME else {"__pycache__"} & set(names),
        )
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(home, ".", filter=lambda entry: None if any(part in entry.name for part in UNUSED) else entry)
    return archive


@pytest.mark.usefixtures("without_checkout")
@pytest.mark.long("an environment is installed, packed, and unpacked by each executor")
def test_executors_have_the_code_from_the_archive_alone(
    frames_group: OrdersGroup,
    frames_pipeline: Callable[..., str],
    modules: Path,
    archive: Path,
    tmp_path: Path,
) -> None:
    """The driver's machine has it unpacked under the same name, as the page on options says."""
    orders_group = frames_group
    produced(orders_group, 100)
    name = frames_pipeline()
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as shop:
        shop.write(modules / f"{name.partition(':')[0]}.py", f"{name.partition(':')[0]}.py")
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "job.py").write_text(JOB, encoding="utf-8")
    (driver / "environment").mkdir()
    run(["tar", "-xzf", archive, "-C", driver / "environment"], tmp_path)
    order = {
        "sales": name,
        "brokers": orders_group.brokers,
        "database": DATABASE.name,
        "schema": orders_group.schema,
        "group": orders_group.group,
    }
    with start_cluster() as master:
        done = subprocess.run(
            [
                HOME / "bin" / "spark-submit",
                *("--master", master, "--archives", f"{archive}#environment", "--py-files", tmp_path / "shop.zip"),
                *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"),
                *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR", "job.py"),
            ],
            cwd=driver,
            env={
                **os.environ,
                "JAVA_HOME": str(java_home(tmp_path)),
                "SPARK_HOME": str(HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": "./environment/bin/python",
                "ORDER": json.dumps(order),
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=ENDLESS,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    records, read, files = json.loads(done.stdout.splitlines()[-1])
    assert (records, read) == (200, 200)
    assert len(files) == 2, "one of each executor"
    assert all("/environment/lib/" in file and not Path(file).is_relative_to(driver) for file in files), files
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(100), doubled(100))
