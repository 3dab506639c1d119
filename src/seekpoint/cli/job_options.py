"""What jobs of pipelines have in common: which pipelines, on which database, with which brokers, and who reads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

from seekpoint.cli.errors import keep_secret
from seekpoint.errors import ConfigError
from seekpoint.pipeline.policy import Limits
from seekpoint.worker.import_by_name import load_function
from seekpoint.worker.worker import Worker

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:NAME...",
        help="Pipelines, Workers, or functions that return one: all that write the tables.",
    ),
]
ArchiveRoot = Annotated[
    str | None,
    typer.Option("--archive", metavar="URL", help="Exported records, for what the log has no more: a folder or a URL."),
]


def key_value(text: str, usage: str) -> tuple[str, str]:
    """``key=value``, both without blanks around them. Raises ConfigError with the usage for a text that is none."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(usage)
    return key.strip(), value.strip()


@dataclass(frozen=True, slots=True)
class Job:
    """Pipelines by name, and their servers. ``kafka`` may hold passwords."""

    names: tuple[str, ...]
    engine: Engine
    kafka: dict[str, Any]
    schema: str
    limits: Limits | None


def job_of_workers(names: tuple[str, ...], workers: dict[str, Worker]) -> Job:
    (first, one), *others = workers.items()
    for target, other in others:
        if (other.engine.url, other.schema, other.kafka) != (one.engine.url, one.schema, one.kafka):
            raise ConfigError(
                f"{first} and {target} are Workers with different databases, schemas or brokers: one job has one of "
                "each; name their pipelines, and the servers by options"
            )
    keep_secret(one.engine.url, dict(one.kafka))
    return Job(names, one.engine, dict(one.kafka), one.schema, one.limits)


def frames_of(given: Sequence[str] | None) -> dict[str, Callable[..., Any]]:
    """``TABLE=MODULE:FUNCTION`` as tables and functions. Raises ConfigError."""
    found = {}
    for one in given or ():
        usage = f"--frame takes TABLE=MODULE:FUNCTION, e.g. public.totals=billing.frames:totals, not {one!r}"
        name, function = key_value(one, usage)
        found[name] = load_function(function, from_here=True)
    return found


def refuse_extras(context: typer.Context, target: str) -> None:
    """A Worker brings its own database and brokers: saying otherwise on the command line is a contradiction."""
    required = {parameter.name for parameter in context.command.params if parameter.required}
    if "database_url" in required:  # what is asked for first is found by these
        required.add("schema")
    for name in ("database_url", "kafka", "kafka_config", "schema", "start_wait", "accept_declaration"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in required:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{target} is a Worker and brings its own database and brokers: remove {option}")


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the command says what it leaves open, and how to resume it."""

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
