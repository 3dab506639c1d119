"""Support for tests of batch jobs: a job of the group, and one in a separate process that tests kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from seekpoint import Pipeline
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.batch import batch as job
from seekpoint.jobs.reload import LocalStager, Run, Staged, Task
from seekpoint.jobs.tables.targets import sources
from seekpoint.testing.child_process import report
from support.job_process import HaltedDriver, JobProcess
from support.reload_orders import OrdersGroup, pipeline


def batch(orders_group: OrdersGroup, pipelines: Pipeline | str | None = None, **options: Any) -> BatchJob:
    """A batch job of ``pipelines``, by default the group's in version 1."""
    declared = pipelines or orders_group.pipeline(**options.pop("pipeline", {}))
    options.setdefault("engine", orders_group.engine)
    engine = options.pop("engine")
    return BatchJob(
        declared, engine, {"bootstrap.servers": orders_group.brokers}, schema=orders_group.schema, **options
    )


def offsets(orders_group: OrdersGroup) -> dict[str, int]:
    """The group's positions."""
    return {str(position.partition): position.next_offset for position in orders_group.ledger().read()}


def paused(orders_group: OrdersGroup) -> str | None:
    """Who has paused the group; None if it is not paused."""
    rows = orders_group.execute(
        "SELECT paused_by FROM {schema}.consumer_group WHERE name = :g AND paused", g=orders_group.group
    )
    return rows[0][0] if rows else None


class PausingStager:
    """A stager that calls a function before it returns the result of a task."""

    def __init__(self, orders_group: OrdersGroup, then: Any, **options: Any) -> None:
        pipeline_sources = sources([orders_group.pipeline(**options)])
        self._stager = LocalStager(
            orders_group.engine, orders_group.schema, {"bootstrap.servers": orders_group.brokers}, pipeline_sources
        )
        self._then = then

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterator[Staged]:
        yield from self._stager.stage(run, tasks)
        self._then(run)


class Batcher(JobProcess):
    """A process with a batch job; it halts at ``step``, a place of ``HaltedDriver``: ``staging``, ``turn cut_over``."""

    def __init__(self, orders_group: OrdersGroup, **options: Any) -> None:
        super().__init__("support.batch_process", orders_group, topic=orders_group.topic, **options)


def main(what: dict[str, Any]) -> None:
    """Run a batch job to its end, or to the step at which it halts."""
    engine = create_engine(what["url"])
    HaltedDriver.halts_at = what.get("step", "")
    vars(job)["Driver"] = HaltedDriver
    options = {"version": what.get("version", 1), "kind": what.get("kind", "upsert")}
    declared = pipeline(what["group"], what["topic"], what["schema"], **options)
    batch_job = BatchJob(
        declared, engine, {"bootstrap.servers": what["brokers"]}, schema=what["schema"], range_records=50
    )
    if "run" in what:
        batch_job.take_over(UUID(what["run"]))
    elif "range" in what:
        batch_job.reprocess((what["topic"], 0), *what["range"], reason="a test", accept_repeats=True)
    else:
        batch_job.run()
    engine.dispose()
    report("done")
