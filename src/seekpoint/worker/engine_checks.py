"""Refuses engines that would write rows differently from the pipeline's declaration."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import Sink
from seekpoint.postgres.engine import require_read_committed, schema_translation


def require_engine(pipeline: Pipeline, engine: Engine | URL | str) -> None:
    """Raise ConfigError for an engine with another isolation level, or one that translates the schema of a sink."""
    require_read_committed(engine)
    require_untranslated_sinks(pipeline.for_worker().sinks, engine)


def require_untranslated_sinks(sinks: Iterable[Sink], engine: Engine | URL | str) -> None:
    """Raise ConfigError if the engine translates a sink's schema: the sink would write the table without that."""
    translation = schema_translation(engine)
    for sink in sinks:
        for table in sink.tables:
            schema, _, name = table.rpartition(".")
            translated = translation.get(schema or None, schema or None)
            if translated != (schema or None):
                raise ConfigError(
                    f"{sink!r} writes {table}, but the engine's schema_translate_map, which sinks do not use, maps it "
                    f"to {translated}.{name}: name the sink's table with its schema, or pass "
                    "engine.execution_options(schema_translate_map={})"
                )
