"""Staging on this machine without Spark: in this process, one range after the other, or in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from seekpoint.errors import ConfigError
from seekpoint.jobs.run import Run
from seekpoint.jobs.staging.processes import Plan, Pool
from seekpoint.jobs.staging.stage import Staged, Task, stage_range
from seekpoint.jobs.tables.targets import PipelineSource


class LocalStager:
    """Stages each range here, in turn, or in so many ``processes`` of this machine; ``sources`` are the run's.

    Processes import the pipelines by their names (``module:name``) and connect by the engine's URL, which they get
    through a pipe: what an engine has beside it (``creator=``, ``connect_args=``, events) is not theirs.
    """

    def __init__(
        self,
        engine: Engine,
        schema: str,
        kafka: Mapping[str, Any],
        sources: Sequence[PipelineSource],
        *,
        processes: int = 0,
    ) -> None:
        if processes < 0:
            raise ConfigError(f"processes must be 0 (stage in this one) or more, got {processes}")
        self._engine, self._schema, self._kafka = engine, schema, kafka
        self._pipelines = {source.group: source.pipeline for source in sources}
        self._names, self._processes = {source.group: source.name for source in sources}, processes

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        """Stage each; yields each when it is committed: here in the order given, by processes as they are done.

        A process that is killed is replaced, and its range is staged again; ChildProcessError where they die again and
        again. A caller that stops iterating ends them: what they have in hand is rolled back.
        """
        if self._processes:
            with Pool(self._plan(run, tasks), self._processes) as pool:
                yield from pool.stage(tasks)
            return
        for task in tasks:
            yield stage_range(
                self._engine,
                self._schema,
                self._kafka,
                run.id,
                pipeline=self._pipelines[task.group],
                range_=task.range,
            )

    def _plan(self, run: Run, tasks: Sequence[Task]) -> Plan:
        if nameless := sorted({task.group for task in tasks if not self._names[task.group]}):
            raise ConfigError(
                f"processes cannot import the pipeline of group {nameless[0]!r}, which was given as an object: name it "
                "as 'module:name'"
            )
        url = self._engine.url.render_as_string(hide_password=False)
        return Plan(url, self._schema, self._kafka, run.id, self._names)
