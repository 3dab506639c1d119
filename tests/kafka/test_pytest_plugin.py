"""The opt-in plugin: one set of servers for all workers, started only when asked for, never missed in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from seekpoint.testing.servers.process import free_port

SUITE = """
import os
from pathlib import Path

import pytest
from sqlalchemy import text

@pytest.mark.parametrize("n", range(4))
def test_ledger(seekpoint_engine, seekpoint_schema, n):
    with seekpoint_engine.connect() as tx:
        count = text("SELECT count(*) FROM pg_tables WHERE schemaname = :s")
        tables = tx.execute(count, {"s": seekpoint_schema}).scalar()
        others = tx.execute(text("SELECT pg_postmaster_start_time()::text")).scalar()
    assert tables > 0
    Path(f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{n}.seen").write_text(f"{seekpoint_engine.url} {others}")

def test_pure():
    pass
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The suite above, run by a pytest of its own, without this run's variables."""
    (folder / "conftest.py").write_text('pytest_plugins = ["seekpoint.testing.pytest_plugin"]\n')
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ours = ("PYTEST_", "SEEKPOINT_REQUIRE", "SEEKPOINT_TEST", "CI")
    env: Mapping[str, str] = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**env, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.long
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_one_postgres_serves_all_workers_and_no_broker_is_started(tmp_path: Path, workers: list[str]) -> None:
    done = run(tmp_path, *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "servers: PostgreSQL (embedded) on first use, Apache Kafka" in done.stdout or "Docker" in done.stdout
    seen = {path.name.split("-")[0]: path.read_text() for path in tmp_path.glob("*.seen")}
    assert set(seen) == ({"gw0", "gw1"} if workers else {"alone"})
    assert len(set(seen.values())) == 1


@pytest.mark.long
def test_pure_tests_start_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "pure", SEEKPOINT_TEST_DSN=f"postgresql://127.0.0.1:{free_port()}/none")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "environment", "code", "message"),
    [
        ([], {}, 0, "4 skipped"),
        (["-n", "2"], {}, 0, "4 skipped"),
        (["-n", "2"], {"CI": "true"}, 1, "4 errors"),
        (["-n", "2"], {"SEEKPOINT_REQUIRE_SERVERS": "1"}, 1, "=1, and a server could not be started"),
    ],
)
def test_missing_servers_skip_on_a_desk_and_fail_where_they_are_required(
    tmp_path: Path, workers: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    done = run(
        tmp_path,
        "-rs",
        *workers,
        SEEKPOINT_TEST_DSN=f"postgresql://ann:secret@{dead}/none",
        SEEKPOINT_TEST_BROKERS=dead,
        **environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    assert "unset SEEKPOINT_TEST_DSN" in done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.long
def test_required_servers_are_named_in_the_header(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "1", SEEKPOINT_REQUIRE_SERVERS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    header = next(line for line in done.stdout.splitlines() if line.startswith("servers: "))
    assert "PostgreSQL 1" in header
    assert "Apache Kafka 4" in header
    assert "first use" not in header
