"""Staging in this process, one range after the other: no cluster, no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from seekpoint.reload.run import Run
from seekpoint.reload.staging import Staged, Task, stage_range
from seekpoint.reload.targets import Source


class LocalStager:
    """Stages each range here, in turn. ``sources`` are the run's pipelines."""

    def __init__(self, engine: Engine, schema: str, kafka: Mapping[str, Any], sources: Sequence[Source]) -> None:
        self._engine, self._schema, self._kafka = engine, schema, kafka
        self._pipelines = {source.group: source.pipeline for source in sources}

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Stage them in the order given; each is told when it is committed."""
        for task in tasks:
            yield stage_range(
                self._engine,
                self._schema,
                self._kafka,
                run.id,
                pipeline=self._pipelines[task.group],
                range_=task.range,
            )
