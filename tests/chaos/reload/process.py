"""A worker or a reload's driver in a process of its own; says what happens on stdout, in lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID

from chaos.reload.orders import NAME
from seekpoint import Limits, Worker, events
from seekpoint.errors import HandlerOutdated
from seekpoint.jobs.reload import Reload
from seekpoint.worker.target import load_pipeline

OUTDATED = 3  # how a worker ends that is too old
TOLD = (events.Started, events.Activated, events.OnStandby, events.StandbyEnded, events.Refused)
DATABASE = "SIEGE_DATABASE"  # the environment variable with the database's address


def say(word: str, **more: Any) -> None:
    """One line, written whole."""
    os.write(1, (json.dumps({"word": word, **more}, default=str) + "\n").encode())


def end_with_parent() -> None:
    """Nobody is to outlive the siege: its end closes the pipe."""
    sys.stdin.read()
    os._exit(1)


def worker(what: Mapping[str, Any]) -> None:
    """Work until SIGTERM, or until a newer version takes over."""

    def watch(event: events.Event) -> None:
        if isinstance(event, TOLD):
            say(type(event).__name__)

    threading.Thread(target=end_with_parent, daemon=True).start()
    limits = Limits(batch_records=200, idle_check=0.3)
    made = load_pipeline(NAME)
    schema = what["schema"]
    one = Worker(made, engine=what["url"], kafka=what["kafka"], schema=schema, limits=limits, observe=[watch])
    try:
        one.run()
    except HandlerOutdated:
        say("outdated")
        sys.exit(OUTDATED)


def driver(what: Mapping[str, Any]) -> None:
    """Open a run, or take one, and bring it to its end; begins when it is told to, by a line on stdin."""
    os.environ["SIEGE_DRIVER"] = str(os.getpid())  # its own rows are not a task's
    words: set[str] = set()

    def progress(word: str, _done: int, _total: int) -> None:
        if word not in words:
            words.add(word)
            say(word)

    with _reload(what, progress) as reload:
        taken = reload.take_over(UUID(what["run"])) if what["run"] else reload.open(strategy=what["strategy"])
        say("driving", run=taken.run.id)
        sys.stdin.readline()
        threading.Thread(target=end_with_parent, daemon=True).start()
        say("done", **asdict(reload.run(taken)))


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
        stager = SparkStager(spark, kafka, database=Env(DATABASE), schema=schema, smallest=1)
        yield Reload([NAME], what["url"], kafka, stager=stager, **options)


if __name__ == "__main__":
    {"worker": worker, "driver": driver}[sys.argv[1]](json.loads(sys.argv[2]))
