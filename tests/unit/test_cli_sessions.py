"""``--spark``: which masters there are is known before Java starts."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from seekpoint.cli import spark_session
from seekpoint.cli.app import every_command
from seekpoint.cli.options import StagingOptions
from seekpoint.cli.spark_session import require_master
from seekpoint.errors import ConfigError
from support.every_row import for_each


@for_each(
    [
        *["local", "local[2]", "local[*]", "local[4,2]", "local[*, 3]", "local-cluster[2,1,1024]"],
        *["spark://host:7077", "spark://one:7077,two:7077", "yarn", "k8s://https://host:6443"],
    ],
)
def test_masters_that_spark_takes(master: str) -> None:
    require_master(master)


@for_each(["", "lokal[2]", "local[]", "local[0]", "local[two]", "local[2", "spark://", "host:7077", "k8s://"])
def test_masters_that_it_does_not(master: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"{master!r} is not a Spark master: use local, local[4], local[*]")
    ):
        require_master(master)


READERS = {
    ("batch",): {"--range-records", "--copy-sessions", "--max-records"},
    ("reload", "run"): {"--range-records", "--copy-sessions"},
    ("reload", "resume"): {"--range-records", "--copy-sessions"},
    ("verify",): {"--range-records", "--copy-sessions"},
    ("export",): {"--range-records", "--max-records"},  # its tasks write files, and no rows
    ("spark", "run"): {"--max-records"},
    ("offsets", "reset"): {"--range-records"},
}


def test_each_command_that_reads_the_log_takes_the_size_of_its_tasks() -> None:
    for words, options in READERS.items():
        command: Any = every_command()
        for word in words:
            command = command.commands[word]
        assert {option for parameter in command.params for option in parameter.opts} >= options, words


def test_the_size_and_the_number_of_sparks_tasks_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    stagers: list[dict[str, Any]] = []
    stager = SimpleNamespace(SparkStager=lambda session, kafka, **options: stagers.append(options))
    monkeypatch.setitem(sys.modules, "seekpoint.spark", stager)
    started = spark_session.Started("session", {}, "database")  # type: ignore[arg-type]
    monkeypatch.setattr(spark_session, "_started", lambda *_: started)
    job: Any = SimpleNamespace(schema="s")
    tasks = StagingOptions(spark="local", range_records=20_000, copy_sessions=3)
    spark_session.stager(ExitStack(), job, tasks, print)
    spark_session.stager(ExitStack(), job, StagingOptions(spark="local"), print)
    common = {"database": "database", "schema": "s"}
    assert stagers == [{**common, "range_records": 20_000, "copy_sessions": 3}, {**common, "copy_sessions": None}]
