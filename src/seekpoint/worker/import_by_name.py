"""Imports the pipeline or worker that ``module:name`` names, for commands, jobs and the tasks of a cluster."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from seekpoint.errors import ConfigError
from seekpoint.pipeline.frames import SparkPipeline, require_no_frames
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.worker.worker import Worker

_OURS = str(Path(__file__).parents[1])
_EXPECTED = "a Pipeline, a Worker, or a function without arguments that returns one"


def load(target: str, *, from_here: bool = False) -> Pipeline | Worker:
    """Import the pipeline or worker that ``module:name`` names; ``from_here``: from the current directory first.

    Commands use ``from_here``; tasks import from their process's path. Raises ConfigError if there is no such pipeline
    or worker, and any error of the module itself.
    """
    attribute = imported(target, from_here=from_here)
    if isinstance(attribute, Pipeline | Worker):
        return _taken(attribute)
    require_no_frames(attribute, target)
    if inspect.isclass(attribute) or not callable(attribute):
        raise ConfigError(f"{target} is {_kind(attribute)}; expected {_EXPECTED}")
    if inspect.iscoroutinefunction(attribute):
        raise ConfigError(f"{target} is an async function; expected {_EXPECTED}")
    try:
        inspect.signature(attribute).bind()
    except TypeError as error:
        raise ConfigError(f"{target} is a function that cannot be called without arguments ({error})") from None
    with _naming_its_line():
        returned = attribute()
    require_no_frames(returned, target)
    if not isinstance(returned, Pipeline | Worker):
        raise ConfigError(f"{target} returned {_kind(returned)}; expected {_EXPECTED}")
    return _taken(returned)


def _taken(declared: Pipeline | Worker) -> Pipeline | Worker:
    return declared.taken() if isinstance(declared, Pipeline) else declared


def load_pipeline(target: str, *, from_here: bool = False) -> Pipeline:
    """Import a Pipeline, or a Worker's pipeline, for callers that have their own engine and brokers.

    ``module:name@TOPIC,TOPIC`` restricts the pipeline to these topics (:func:`name_with_topics`).
    """
    name, _, topics = target.partition("@")
    loaded = load(name, from_here=from_here)
    pipeline = loaded.pipeline if isinstance(loaded, Worker) else loaded
    if topics:
        return pipeline.with_topics(*topics.split(","))
    return pipeline.require_names("this command")


def name_with_topics(target: str, topics: Sequence[str]) -> str:
    """The name of the pipeline restricted to these topics, whose names have neither ``@`` nor a comma."""
    return f"{target}@{','.join(topics)}" if topics else target


def imported(target: str, *, from_here: bool = False) -> Any:
    """Import the attribute that ``module:name`` names, of any type. Raises ConfigError if there is none."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{target!r} is not module:name, e.g. billing.ingest:orders")
    if module_name.endswith(".py"):
        module = ".".join(Path(module_name).with_suffix("").parts)
        raise ConfigError(f"{target!r} names a file: write {module}:{name}")
    return _attribute(_import(module_name, from_here=from_here), name)


def _import(name: str, *, from_here: bool) -> ModuleType:
    folder = str(Path.cwd())
    if from_here and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with _naming_its_line():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        where = f"neither in {folder} nor installed" if from_here else "on this process's path (sys.path)"
        raise ConfigError(f"there is no module {error.name!r}, {where}") from None


@contextmanager
def _naming_its_line() -> Iterator[None]:
    """Prefix a ConfigError with the file and line of the declaration that raised it."""
    try:
        yield
    except ConfigError as error:
        frames = traceback.extract_tb(error.__traceback__)
        user_frames = [frame for frame in frames if not frame.filename.startswith((_OURS, "<"))]
        if user_frames:
            error.args = (f"{user_frames[-1].filename}:{user_frames[-1].lineno}: {error.text}",)
        raise


def _attribute(module: ModuleType, name: str) -> Any:
    attribute: Any = module
    for part in name.split("."):
        if not hasattr(attribute, part):
            declared = Pipeline | SparkPipeline | Worker
            names = [candidate for candidate, value in vars(module).items() if isinstance(value, declared)]
            hint = f"; it has {', '.join(names)}" if names else ""
            raise ConfigError(f"module {module.__name__!r} has no {name!r}{hint}")
        attribute = getattr(attribute, part)
    return attribute


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if inspect.isclass(value) else f"of type {type(value).__name__}"
