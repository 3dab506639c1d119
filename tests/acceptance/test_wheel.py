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


def run(command: list[str | Path], cwd: Path) -> str:
    """What ``command`` prints, run without the checkout's own variables and import paths."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
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


def test_the_wheel_carries_migrations_types_and_the_jars_lock(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    scripts = {f"seekpoint/migrations/{path.relative_to(ROOT / 'migrations')}" for path in migrations()}
    assert scripts
    assert scripts <= carried
    assert {
        "seekpoint/py.typed",
        "seekpoint/testing/servers/kafka-jars.lock",
        "seekpoint/testing/servers/reaper.py",
    } <= carried
    assert not [name for name in carried if not name.startswith(("seekpoint/", "seekpoint-"))]


def migrations() -> list[Path]:
    return [path for path in (ROOT / "migrations").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_an_empty_environment_needs_nothing_but_the_wheel(
    wheel: Path, tmp_path: Path, seekpoint_dsn: str, seekpoint_schema: str
) -> None:
    home = tmp_path / "venv"
    run([UV, "venv", "--quiet", "--python", sys.executable, home], tmp_path)
    python = home / "bin" / "python"
    # Versions and hashes as locked, and only what the wheel itself asks for.
    lock = ROOT / "requirements.lock"
    run([UV, "pip", "install", "--quiet", "--python", python, "--constraint", lock, wheel], tmp_path)
    dsn = seekpoint_dsn.replace("postgresql+psycopg://", "postgresql://")
    try:
        revision, place = run([python, "-c", USE, seekpoint_dsn, seekpoint_schema], tmp_path).split()
        assert Path(place).is_relative_to(home)
        with psycopg.connect(dsn) as connection:
            version = sql.SQL("SELECT version_num FROM {}.alembic_version").format(sql.Identifier(seekpoint_schema))
            assert connection.execute(version).fetchall() == [(revision,)]
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(seekpoint_schema)))
