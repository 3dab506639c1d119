"""One loader of ``module:name``: for a person in a directory, and for a task that has only its path."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seekpoint import Pipeline, Worker
from seekpoint.errors import ConfigError
from seekpoint.jobs.tables.targets import sources
from seekpoint.worker.import_by_name import load, load_pipeline

MODULE = """\
from seekpoint import Append, Bytes, Pipeline, Worker

class Things:
    pipe = Pipeline("g", topics="t", value=Bytes(), sinks=[Append("entries", columns=["v"], row=lambda r: (r.value,))])

pipe = Things.pipe
kafka = {"bootstrap.servers": "localhost:9"}
worker = Worker(pipe, engine="postgresql://localhost/none", kafka=kafka, schema="mine")

def make():
    return worker
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, which is not on the path."""
    name = f"loaded_{secrets.token_hex(6)}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    sys.path[:] = [path for path in sys.path if path]
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "kind"), [("pipe", Pipeline), ("Things.pipe", Pipeline), ("worker", Worker),
                                            ("make", Worker)])  # fmt: skip
def test_a_command_finds_what_lies_in_its_directory(module: str, name: str, kind: type) -> None:
    assert isinstance(load(f"{module}:{name}", from_here=True), kind)
    assert load_pipeline(f"{module}:{name}", from_here=True).group == "g"


def test_a_task_does_not_look_into_its_directory(module: str) -> None:
    before = list(sys.path)
    with pytest.raises(ConfigError, match=r"there is no module 'loaded_\w+', on this process's path \(sys.path\)"):
        load(f"{module}:pipe")
    assert sys.path == before


def test_a_task_finds_what_its_path_has(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (source,) = sources([f"{module}:make"])
    assert (source.name, source.group) == (f"{module}:make", "g")


def test_a_worker_says_what_it_was_made_of(module: str) -> None:
    worker = load(f"{module}:worker", from_here=True)
    assert isinstance(worker, Worker)
    assert (worker.engine.url.database, worker.schema) == ("none", "mine")
    assert worker.kafka == {"bootstrap.servers": "localhost:9"}
    assert worker.limits.batch_records > 0


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('from seekpoint import Pipeline\n\npipe = Pipeline("", topics="t")\n', 3),
        ('from seekpoint import Pipeline\n\n\ndef pipe():\n    return Pipeline("", topics="t")\n', 5),
    ],
    ids=["imported", "returned"],
)
def test_an_error_of_a_declaration_names_its_line(module: str, tmp_path: Path, source: str, line: int) -> None:
    path = tmp_path / f"{module}.py"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load(f"{module}:pipe", from_here=True)
    assert str(raised.value).startswith(f"{path}:{line}: a group needs a name")


def test_a_mistyped_name_lists_what_the_module_declares(module: str, tmp_path: Path) -> None:
    frames = 'SparkPipeline("g", topics="t", frames={"all": Frame(lambda orders: orders, Append("entries"))})'
    source = f"from seekpoint.pipeline.frames import Frame, SparkPipeline\n{MODULE}\nsales = {frames}\n"
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"module '{module}' has no 'sale'; it has pipe, worker, sales \["):
        load(f"{module}:sale", from_here=True)
