"""How a task of a SparkPipeline imports the pipeline that decodes its records."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

import pytest

from seekpoint.errors import ConfigError
from seekpoint.jobs.frames.records import RecordsSource
from seekpoint.jobs.spark import task
from seekpoint.jobs.spark.settings import carried_range
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition

MODULE = """\
import msgspec
from seekpoint import Append, Json
from seekpoint.pipeline.frames import Frame, SparkPipeline

class Order(msgspec.Struct):
    id: int

sales = SparkPipeline("g", topics="t", value=Json(Order), frames={"all": Frame(lambda orders: orders, Append("sales"))})
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the driver's working directory, which is not on the path of this process."""
    name = f"loaded_{secrets.token_hex(6)}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that the task has reported to its driver."""
    errors: list[str] = []
    monkeypatch.setattr(task, "report_task_error", lambda *arguments: errors.append(arguments[-1].text))
    return errors


def run_task(pipeline: str) -> list[Any]:
    """Run a task that reads one range, without a database."""
    plan = {
        "here": str(Path.cwd()),
        "database": {"url": "postgresql://127.0.0.1:1/none?connect_timeout=1"},
        "schema": "seekpoint",
        "run": str(uuid4()),
        "job": "job",
        "group": "g",
        "pipeline": pipeline,
    }
    return list(RecordsSource.run(plan, [carried_range(Range(Partition("t", 0), uuid4(), 0, 1))]))


def test_a_task_imports_from_the_drivers_working_directory(module: str, reported: list[str]) -> None:
    with pytest.raises(task.TaskTrouble, match=r"127\.0\.0\.1"):  # after the import
        run_task(f"{module}:sales")
    assert reported == []


def test_an_import_error_is_reported_to_the_driver_with_host_and_remedy(module: str, reported: list[str]) -> None:
    missing = f"{module}_missing:sales"
    with pytest.raises(ConfigError):
        run_task(missing)
    (message,) = reported
    assert message.startswith(
        f"on the executor {gethostname()}: there is no module '{module}_missing', on this process"
    )
    assert f"Executors need the modules that {missing} imports: add them to the session" in message
