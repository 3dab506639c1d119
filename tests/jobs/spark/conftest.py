"""One Spark session for all tests here, which one worker of pytest-xdist runs (see the conftest above)."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.spark.frames import SALES
from jobs.spark.orders import DATABASE
from seekpoint.testing.servers.process import ServerFailed
from seekpoint.testing.servers.spark import start_spark
from support.reload_orders import OrdersGroup, of


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules that tasks can import, too."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="session")
def spark_environment(seekpoint_dsn: str, modules: Path) -> Iterator[None]:
    """What Spark's processes inherit: where modules are, and the database's address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
        patch.setenv(DATABASE.name, seekpoint_dsn)
        yield


@pytest.fixture(scope="session")
def spark(spark_environment: None) -> Iterator[SparkSession]:
    """A session with two slots and four attempts for each task; its workers find the modules of the tests.

    Where none can be started the test is skipped, and fails where servers are required.
    """
    with ExitStack() as stack:
        try:
            started = stack.enter_context(start_spark("local[2,4]", {"spark.ui.enabled": "true", "spark.ui.port": "0"}))
        except ServerFailed as error:
            if {os.environ.get("CI", "").lower(), os.environ.get("SEEKPOINT_REQUIRE_SERVERS")} & {"1", "true"}:
                pytest.fail(f"Spark could not be started: {error}", pytrace=False)
            pytest.skip(f"no Spark: {error}")
        yield started


@pytest.fixture
def module(modules: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """``module(source)`` writes a module that this process and Spark's tasks can import, and returns its name."""
    monkeypatch.syspath_prepend(str(modules))

    def write(source: str) -> str:
        name = f"made_{secrets.token_hex(6)}"
        (modules / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return name

    return write


@pytest.fixture
def unread_pipeline(orders_group: OrdersGroup, module: Callable[[str], str], tmp_path: Path) -> Callable[[str], str]:
    """``unread_pipeline(source)`` puts 100 records in each of two partitions, and returns the pipeline's name."""

    def make(source: str) -> str:
        for partition in (0, 1):
            orders_group.produce(
                orders_group.topic, [of(n + partition * 1000, n, n) for n in range(100)], partition=partition
            )
        marker = str(tmp_path / "marker")
        names = {"group": orders_group.group, "topic": orders_group.topic, "schema": orders_group.schema}
        return f"{module(source.format(**names, marker=marker))}:orders"

    return make


@pytest.fixture
def applied_pipeline(orders_group: OrdersGroup, unread_pipeline: Callable[[str], str]) -> Callable[[str], str]:
    """``applied_pipeline(source)`` has those records applied, too."""

    def make(source: str) -> str:
        name = unread_pipeline(source)
        worker = orders_group.worker()
        for partition in (0, 1):
            worker.reached(orders_group.topic, 100, partition)
        worker.stop()
        return name

    return make


@pytest.fixture
def frames_group(orders_group: OrdersGroup) -> OrdersGroup:
    """The group, with tables for DataFrames: entries of two partitions have the same offsets."""
    orders_group.execute("ALTER TABLE {schema}.orders ADD note_offset bigint")
    orders_group.execute("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey")
    return orders_group


@pytest.fixture
def frames_pipeline(frames_group: OrdersGroup, module: Callable[[str], str]) -> Callable[..., str]:
    """``frames_pipeline(source)`` writes the module of a pipeline named ``sales``, and returns the pipeline's name."""
    orders_group = frames_group

    def declare(source: str = SALES, **more: Any) -> str:
        names = {"group": orders_group.group, "topic": orders_group.topic, "schema": orders_group.schema, **more}
        return f"{module(source.format(**names))}:sales"

    return declare
