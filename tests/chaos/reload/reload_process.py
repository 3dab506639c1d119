"""A worker or a reload's driver in a separate process, which reports its progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

from chaos.reload.orders import NAME
from seekpoint import Limits, Worker, events
from seekpoint.errors import HandlerOutdated
from seekpoint.jobs.reload import Reload
from seekpoint.testing.child_process import ChildProcess, obey, receive, report, start_python
from seekpoint.worker.import_by_name import load_pipeline

OUTDATED = 3  # the exit code of a worker that is too old
REPORTED = (events.Started, events.Activated, events.OnStandby, events.StandbyEnded, events.Refused)
DATABASE = "RELOAD_CHAOS_DATABASE"  # the environment variable with the database's address


def start(order: Mapping[str, Any], env: Mapping[str, str]) -> ChildProcess:
    """Start ``worker`` or ``driver``, as the order's ``kind`` says, in a process with these variables."""
    return ChildProcess(start_python("-m", "chaos.reload.reload_process", env=env), order)


def worker(what: Mapping[str, Any]) -> None:
    """Work until SIGTERM, or until a newer version takes over."""

    def watch(event: events.Event) -> None:
        if isinstance(event, REPORTED):
            report(type(event).__name__)

    obey()
    limits = Limits(batch_records=200, idle_check=0.3)
    pipeline = load_pipeline(NAME)
    schema = what["schema"]
    worker = Worker(pipeline, engine=what["url"], kafka=what["kafka"], schema=schema, limits=limits, observe=[watch])
    try:
        worker.run()
    except HandlerOutdated:
        report("outdated")
        sys.exit(OUTDATED)


def driver(what: Mapping[str, Any]) -> None:
    """Open a run, or take one over, and drive it to its end after the next order."""
    os.environ["RELOAD_CHAOS_DRIVER"] = str(os.getpid())  # its own rows are not a task's
    words: set[str] = set()

    def progress(word: str, _done: int, _total: int) -> None:
        if word not in words:
            words.add(word)
            report(word)

    with _reload(what, progress) as reload:
        taken = reload.take_over(UUID(what["run"])) if what["run"] else reload.open(strategy=what["strategy"])
        report("driving", run=taken.run.id)
        receive()
        obey()
        report("done", **asdict(reload.run(taken)))


@contextmanager
def _reload(what: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> Iterator[Reload]:
    kafka, schema = {"bootstrap.servers": what["kafka"]["bootstrap.servers"]}, what["schema"]
    options: dict[str, Any] = {"schema": schema, "range_records": what["width"], "progress": progress}
    options |= {"max_wait": 60.0, "max_deletes": 1.0}
    if what["stager"] == "local":
        yield Reload([NAME], what["url"], kafka, processes=2, **options)
        return
    from seekpoint.spark import Env, SparkStager
    from seekpoint.testing.servers.spark import start_spark

    with start_spark("local[2,4]", {"spark.driver.memory": "512m"}) as spark:
        stager = SparkStager(spark, kafka, database=Env(DATABASE), schema=schema, range_records=1)
        yield Reload([NAME], what["url"], kafka, stager=stager, **options)


if __name__ == "__main__":
    ORDER = receive()
    {"worker": worker, "driver": driver}[ORDER["kind"]](ORDER)
