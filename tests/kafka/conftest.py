"""The project in which the command is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from support.cli_project import Project
from support.knobs import Knobs


@pytest.fixture
def project(  # noqa: PLR0917 -- fixtures
    seekpoint_engine: Engine,
    seekpoint_schema: str,
    seekpoint_dsn: str,
    seekpoint_broker: str,
    topic: Callable[..., str],
    produce: Callable[..., object],
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    knobs: Knobs,
) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    for name in ("SEEKPOINT_DATABASE_URL", "SEEKPOINT_KAFKA_CONFIG", "SEEKPOINT_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    before = list(sys.path)
    project = Project(
        tmp_path, seekpoint_dsn, seekpoint_broker, seekpoint_schema, topic(), group, seekpoint_engine, produce
    )
    yield project
    sys.path[:] = before
    for process in project.started:
        process.close()


@pytest.fixture
def lines(project: Project) -> None:
    """A table for the records."""
    project.sql("CREATE TABLE {schema}.lines (line text)")
