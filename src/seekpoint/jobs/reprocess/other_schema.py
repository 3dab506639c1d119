"""A pipeline whose rows go to tables of another schema, which have the names of its own."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from sqlalchemy import Connection

from seekpoint.errors import ConfigError
from seekpoint.jobs.tables.handler_copies import Redirect
from seekpoint.jobs.tables.targets import Path, PipelineSource, aimed, aimed_pipeline, resolve, sources, targets
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.sinks.base import TableSink

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")  # what the redirection of a handler's statements leaves unquoted


@dataclass(frozen=True, slots=True)
class Aimed:
    """The pipeline of a run; ``redirect`` sends a handler's statements to the other schema, None: nowhere else."""

    pipeline: Pipeline
    redirect: Redirect | None = None


def aim(connection: Connection, pipeline: Pipeline, schema: str | None) -> Aimed:
    """The pipeline as a run applies it: what fails becomes a dead letter, and rows go to ``schema`` (None: its own).

    Raises ConfigError where a table is missing there, or is the pipeline's own.
    """
    if schema is None:
        own = copy.copy(pipeline)
        own.on_poison = OnPoison.DEAD_LETTER
        return Aimed(own)
    [source] = sources([pipeline])
    paths = [(schema, sink.path[-1]) for sink in pipeline.sinks if isinstance(sink, TableSink)]
    other = aimed_pipeline(pipeline, [aimed(s, p) for s, p in zip(pipeline.sinks, paths, strict=True)])  # type: ignore[arg-type]
    other.on_poison = OnPoison.DEAD_LETTER
    _require_apart(connection, source, schema)
    redirect = None
    if pipeline.handle is not None:
        if _PLAIN.fullmatch(schema) is None:
            raise ConfigError(f"a handler's statements are redirected to a schema of a plain name, not to {schema!r}")
        redirect = Redirect(pipeline.group, schema, targets(connection, [source]))
        other.handle = redirect.handler(pipeline.handle)
    for sink in other.sinks:
        sink.check(connection, other.codecs_of(sink))  # type: ignore[attr-defined]
    return Aimed(other, redirect)


def _require_apart(connection: Connection, source: PipelineSource, schema: str) -> None:
    """Raise ConfigError unless each table has one of its own in the schema."""
    pipeline, seen = source.pipeline, dict[Path, str]()
    for name in pipeline.tables:
        live, table = resolve(connection, name), name.split(".")[-1]
        found = resolve(connection, f"{schema}.{table}")
        if found is None:
            raise ConfigError(f"there is no table {schema}.{table}: make it with CREATE TABLE ... (LIKE {name} ...)")
        if found == live:
            raise ConfigError(f"{schema}.{table} is the live table of {pipeline!r}: name another schema, or none")
        if (other := seen.setdefault(found, name)) != name:
            raise ConfigError(f"rows of {other} and of {name} would both go to {schema}.{table}")
