"""A server of Spark Connect, and a client without Java: what works through it, and what is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from jobs.spark.frames import SALES, doubled, entries, produced
from seekpoint.testing.servers.process import Child, Folder, free_port
from seekpoint.testing.servers.spark import java_home
from support.reload_orders import OrdersGroup
from support.waiting import until

CLIENT = Path(__file__).parent / "connect_client.py"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ENDLESS = 500.0  # seconds


@pytest.fixture
def remote(spark_environment: None, tmp_path: Path) -> Iterator[str]:
    """The URL of a server whose Python has this package, the pipelines' modules and the database's variable."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    java = {
        "JAVA_HOME": str(java_home(tmp_path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    pairs = (word for setting in settings.items() for word in ("--conf", "=".join(setting)))
    command = [str(SUBMIT), "--master", "local[2]", "--class", SERVER, *pairs, "spark-internal"]
    server = Child(command, Folder("spark-connect"), env={**os.environ, **java})
    server.start()
    try:
        until(lambda: not server.running or _listens(port), "the server to listen", ENDLESS)
        assert server.running, server.log_tail()
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_what_works_through_spark_connect_and_what_is_refused(
    frames_group: OrdersGroup, frames_pipeline: Callable[..., str], remote: str, tmp_path: Path
) -> None:
    """The client plans, claims and commits; the server's Python reads Kafka, decodes and copies the rows."""
    orders_group = frames_group
    orders_group.execute("CREATE UNIQUE INDEX ON {schema}.entries (id)")  # verify compares by a key
    produced(orders_group, 100)
    order = {
        "remote": remote,
        "brokers": orders_group.brokers,
        "schema": orders_group.schema,
        "group": orders_group.group,
        "sales": frames_pipeline(),
        "next": frames_pipeline(SALES.replace('on_poison="dead_letter"', 'on_poison="dead_letter", version=2')),
        "archive": str(tmp_path / "archive"),
    }
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", CLIENT],
        env={**os.environ, "ORDER": json.dumps(order)},
        check=False,
        capture_output=True,
        text=True,
        timeout=ENDLESS,
    )
    results: dict[str, Any] = dict(map(json.loads, done.stdout.splitlines()))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    offsets = json.dumps({orders_group.topic: {"0": 100, "1": 100}}, separators=(",", ":"))
    assert results == {
        "run": 200,
        "load": 200,
        "read": 200,
        "bounds": {"startingOffsets": offsets.replace("100", "0"), "endingOffsets": offsets},
        "ledger": 2,
        "export": 200,
        "verify": [0, 0],
        "reload": True,
        "foreach_batch": (
            "ConfigError: foreach_batch must be called in Spark's driver, and Spark Connect would send the "
            "function to the server: use seekpoint.spark.run, which needs no checkpoint [SP1001]"
        ),
    }
    assert (orders_group.rows("entries"), orders_group.rows()) == (entries(100), doubled(100))
