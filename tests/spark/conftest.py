"""One Spark session for all tests here; and one worker of pytest-xdist that runs them, under ``--dist loadgroup``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seekpoint.dev.child import ServerFailed
from seekpoint.dev.spark import start_spark

HERE, TESTS = Path(__file__).parent, Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two slots and four attempts for each task; its workers find the modules of the tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([before] if before else [])])
    try:
        with start_spark("local[2,4]") as session:
            yield session
    except ServerFailed as error:
        if {os.environ.get("CI", "").lower(), os.environ.get("SEEKPOINT_REQUIRE_SERVERS")} & {"1", "true"}:
            pytest.fail(f"Spark could not be started: {error}", pytrace=False)
        pytest.skip(f"no Spark: {error}")
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
