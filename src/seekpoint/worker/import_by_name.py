"""Imports the pipeline or worker that ``module:name`` names, for commands, jobs and the tasks of a cluster."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.worker import Worker

_OURS = str(Path(__file__).parents[1])
_EXPECTED = "a Pipeline, a Worker, or a function without arguments that returns one"


def load(target: str, *, from_here: bool = False) -> Pipeline | Worker:
    """Import ``module`` and return what ``name`` stands for; ``from_here`` looks in the current directory first.

    A command is given a name by a person in a directory; a task finds what its process's path has.
    Raises ConfigError where there is nothing of the kind, and whatever the module itself raises.
    """
    found = _find(target, from_here=from_here)
    if isinstance(found, Pipeline | Worker):
        return found
    if inspect.isclass(found) or not callable(found):
        raise ConfigError(f"{target} is {_kind(found)}; expected {_EXPECTED}")
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{target} is an async function; expected {_EXPECTED}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError(f"{target} is a function that cannot be called without arguments ({error})") from None
    with _naming_its_line():
        made = found()
    if not isinstance(made, Pipeline | Worker):
        raise ConfigError(f"{target} returned {_kind(made)}; expected {_EXPECTED}")
    return made


def load_pipeline(target: str, *, from_here: bool = False) -> Pipeline:
    """Import a Pipeline, or a Worker's, for callers that have a database and brokers from elsewhere."""
    made = load(target, from_here=from_here)
    return made.pipeline if isinstance(made, Worker) else made


def _find(target: str, *, from_here: bool) -> Any:
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{target!r} is not module:name, e.g. billing.ingest:orders")
    if module_name.endswith(".py"):
        module = ".".join(Path(module_name).with_suffix("").parts)
        raise ConfigError(f"{target!r} names a file: write {module}:{name}")
    return _attribute(_import(module_name, from_here=from_here), name)


def _import(name: str, *, from_here: bool) -> ModuleType:
    here = str(Path.cwd())
    if from_here and here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _naming_its_line():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # not this one, but one that it imports
        where = f"neither in {here} nor among what is installed" if from_here else "on this process's path (sys.path)"
        raise ConfigError(f"there is no module {error.name!r}, {where}") from None


@contextmanager
def _naming_its_line() -> Iterator[None]:
    """Say in front of a ConfigError of a declaration where the declaration is."""
    try:
        yield
    except ConfigError as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith((_OURS, "<"))]
        if theirs:
            error.args = (f"{theirs[-1].filename}:{theirs[-1].lineno}: {error}",)
        raise


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, value in vars(module).items() if isinstance(value, Pipeline | Worker)]
            there = f"; it has {', '.join(known)}" if known else ""
            raise ConfigError(f"module {module.__name__!r} has no {name!r}{there}")
        found = getattr(found, part)
    return found


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if inspect.isclass(value) else f"of type {type(value).__name__}"
