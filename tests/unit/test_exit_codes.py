"""Every command exits with 3 where its servers are away, and with 2 where it is used wrongly."""

from __future__ import annotations

import secrets
from pathlib import Path
from uuid import uuid4

import pytest

from seekpoint import Limits
from seekpoint.cli.app import every_command
from seekpoint.testing.servers import topics
from support.command import seekpoint
from support.every_row import for_each

DATABASE = ["--database-url", "postgresql://ada:secret@127.0.0.1:1/shop"]
BROKERS = ["--kafka", "bootstrap.servers=127.0.0.1:1"]
MODULE = """
from seekpoint import Append, Pipeline, Text
pipe = Pipeline("g", topics="t", value=Text(), sinks=[Append("lines", columns=["line"], row=lambda r: (r.value,))])
"""
RUN = str(uuid4())
# Arguments and options of each command; {module} and {folder} are the test's own.
WITH_DATABASE = {
    "batch": ["{module}:pipe", *BROKERS],
    "db check": [],
    "db downgrade": ["--to", "base"],
    "db upgrade": [],
    "dead-letters discard": ["1", "--reason", "x"],
    "dead-letters edit": ["1", "--undo", "--reason", "x"],
    "dead-letters export": ["g"],
    "dead-letters list": ["g"],
    "dead-letters purge": ["g", "--older-than", "1d"],
    "dead-letters replay": ["{module}:pipe", "1"],
    "dead-letters replay-request": ["g", "1"],
    "dead-letters show": ["1"],
    "dev sql": ["SELECT 1"],
    "doctor": [],
    "explain": ["g"],
    "export": ["{module}:pipe", "--to", "{folder}", *BROKERS],
    "exporter": ["--once"],
    "groups forget": ["g"],
    "groups list": [],
    "groups pause": ["g"],
    "groups replace": ["g", "--by", "h"],
    "groups resume": ["g"],
    "lost accept": ["g", "t:0", *BROKERS],
    "lost list": [],
    "offsets export": ["g"],
    "offsets history": ["g"],
    "offsets import": ["g", "--from-group", "old", *BROKERS],
    "offsets mirror": ["g", *BROKERS],
    "offsets reset": ["g", "--all-topics", "--to-offset", "3"],
    "reload abort": [RUN, "--reason", "x"],
    "reload resume": [RUN, *BROKERS],
    "reload run": ["{module}:pipe", *BROKERS],
    "reload status": [],
    "reload sweep": [],
    "run": ["{module}:pipe", "--start-wait", "0.1", *BROKERS],
    "status": [],
    "topics accept": ["g", "t", "--from-beginning", *BROKERS],
    "verify": ["{module}:pipe", *BROKERS],
}
WITH_BROKERS = {"dev produce": ["t"], "dev topic": ["t"]}
WITHOUT_SERVERS = {"db revision", "db roles", "db sql", "db table", "dev", "dev env", "ui"}

IN_SPARK = {"spark run", "spark reload", "spark verify"}  # test_cli_spark.py has its servers that are away


def commands(command: object, *path: str) -> set[str]:
    """Every command that does something, by its words."""
    below = getattr(command, "commands", {})
    names = {name for word, command_below in below.items() for name in commands(command_below, *path, word)}
    if path and (not below or getattr(command, "invoke_without_command", False)):
        names.add(" ".join(path))
    return names


ALL = commands(every_command())


def test_every_command_is_here() -> None:
    assert {*WITH_DATABASE, *WITH_BROKERS, *WITHOUT_SERVERS, *IN_SPARK} == ALL


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder with a module, in which the command is called."""
    name = f"pipes_{secrets.token_hex(6)}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(topics, "TIMEOUT", 0.5)  # brokers that are away are not waited for
    monkeypatch.setitem(Limits.__init__.__kwdefaults__ or {}, "kafka_timeout", 0.5)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"module": name, "folder": str(tmp_path / "archive")}


@pytest.mark.parametrize("command", sorted({*WITH_DATABASE, *WITH_BROKERS}))
def test_servers_that_are_away(command: str, names: dict[str, str]) -> None:
    servers = DATABASE if command in WITH_DATABASE else BROKERS
    words = [word.format(**names) for word in {**WITH_DATABASE, **WITH_BROKERS}[command]]
    result = seekpoint(*command.split(), *words, *servers, stdin="x", exits=3)
    assert "error: " in result.stderr
    assert "secret" not in result.output


@for_each(sorted(ALL))
def test_wrong_usage(command: str) -> None:
    assert "No such option" in seekpoint(*command.split(), "--no-such-option", exits=2).stderr


def test_a_property_that_librdkafka_does_not_know_is_not_left_out() -> None:
    misspelled = ["--kafka", "bootstrap.server=127.0.0.1:2"]
    stderr = seekpoint("exporter", "--once", *DATABASE, *BROKERS, *misspelled, exits=2).stderr
    assert "bootstrap.server" in stderr
    assert "error: " in stderr
