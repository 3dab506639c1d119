"""The project in which the command is called."""

from __future__ import annotations

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
    working_folder: Path,
    knobs: Knobs,
) -> Iterator[Project]:
    project = Project(
        working_folder, seekpoint_dsn, seekpoint_broker, seekpoint_schema, topic(), group, seekpoint_engine, produce
    )
    yield project
    for process in project.started:
        process.close()


@pytest.fixture
def lines(project: Project) -> None:
    """A table for the records."""
    project.sql("CREATE TABLE {schema}.lines (line text)")
