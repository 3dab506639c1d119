"""A reload's ranges, staged by Spark's tasks: each reads, decodes, makes rows and copies them by itself.

Spark only schedules. What a task commits is on record in the database, which counts; Spark's answer only ends the
wait. Attempts that are repeated, speculated on or late do no harm: each has tables of its own (see ``stage``).
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import Engine, make_url
from sqlalchemy.exc import ArgumentError

from seekpoint.errors import ConfigError, SeekpointError, required
from seekpoint.jobs.run import Run, transaction
from seekpoint.jobs.spark.read import context_of, require_this_python, slots_of
from seekpoint.jobs.spark.settings import Env, carried_range, portable, require_no_secret
from seekpoint.jobs.staging.stage import Staged, Task, all_staged
from seekpoint.jobs.staging.task_errors import missing_module, task_errors
from seekpoint.kafka.ranges import LEAST, SMALLEST, task_size
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.engine import postgres_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_EXECUTOR = 120.0  # seconds that a cluster may give no executor
LOOK = 1.0  # seconds between two looks at what has been staged
PATIENCE = 30.0  # seconds for a job to be cancelled; one that is not is left to Spark

_Place = tuple[str, str, int, int]  # a range's group, topic, partition and first offset


class SparkStager:
    """Stages a reload's or a batch's ranges in the tasks of a Spark session: ``stager=SparkStager(spark, kafka)``.

    ``kafka`` is the workers' own configuration, with :class:`Env` for passwords; ``database`` the URL of the ledger's
    database, by the name of an environment variable, and ``schema`` the ledger's. The job's pipelines must be given
    by name (``module:name``): tasks import them. The executors need this package, the pipelines' modules, and the
    variables. A task that fails is tried again as often as Spark is set to (``local[2]``: never; ``local[2,4]``). A
    task stages ``range_records`` offsets at most; fewer, down to 20,000, where there would be fewer tasks than slots.
    ``copy_sessions`` is how many tasks there are at most, each with one session at the database: a small server gains
    nothing from more sessions than it has cores. A cluster that gives no executor for ``patience`` seconds, because it
    has died or has no room, ends the staging.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Mapping[str, Any],
        *,
        database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
        schema: str = DEFAULT_SCHEMA,
        range_records: int = SMALLEST,
        copy_sessions: int | None = None,
        patience: float = NO_EXECUTOR,
    ) -> None:
        if not isinstance(database, Env) and _has_password(database):
            raise ConfigError(
                "the password in database= would be in the job's plan and logs: set an environment variable for the "
                "driver and the executors, and give its name, database=Env('SEEKPOINT_DATABASE_URL')"
            )
        if copy_sessions is not None and copy_sessions < 1:
            raise ConfigError(f"copy_sessions is a number of tasks, at least 1, and not {copy_sessions}")
        self._spark, self._schema, self._range_records = spark, schema, range_records
        self._copy_sessions = copy_sessions
        self._kafka, self._database, self._patience = portable(kafka), database, patience
        require_no_secret(spark, self._database, self._kafka)

    def stage(self, run: Run, tasks: Sequence[Task]) -> Generator[Staged, None, None]:
        """Stage each at least once; yields each once, soon after it was committed.

        Raises what ends the staging as a task raised it (ReloadRefused, ReloadOver, RangeLost, RangeStuck,
        TopicRecreated, ArchiveDamaged, ConfigError), ConnectionError where the cluster gives no executor, and Spark's
        own exception where a task failed too often. A caller that stops iterating cancels the rest.
        """
        if not tasks:
            return
        require_this_python(self._spark)
        width = sum(task.range.records_at_most for task in tasks)
        size = task_size(width, range_records=self._range_records, slots=slots_of(self._spark))
        parts = [Task(task.group, part) for task in tasks for part in task.range.cut(max(size, LEAST))]
        engine = postgres_engine(self._database.value() if isinstance(self._database, Env) else self._database)
        try:
            yield from self._stage(engine, run, packed(parts, size, self._copy_sessions))
        finally:
            engine.dispose()

    def _stage(self, engine: Engine, run: Run, packs: Sequence[Sequence[Task]]) -> Iterator[Staged]:
        tag = f"seekpoint-{uuid4().hex}"
        before, _ = self._look(engine, run, tag)
        awaited = {(task.group, *task.range.partition, task.range.start) for pack in packs for task in pack}
        job = _Job(self._spark, self._plan(run, packs, tag), tag)
        executors = _Executors(self._spark, self._patience)
        try:
            while True:
                is_over = job.wait(LOOK)
                committed, errors = self._look(engine, run, tag)
                for attempt, staged in committed.items():
                    place = (staged.group, *staged.partition, staged.start)
                    if attempt not in before and place in awaited:
                        awaited.discard(place)
                        yield staged
                if errors:
                    raise errors[0]
                if is_over:
                    break
                executors.check()
        finally:
            job.end()
        if missing := sorted(awaited & job.reported()):
            raise LookupError(f"tasks said that they staged {missing[0]}, and the database has no record of it")

    def _look(self, engine: Engine, run: Run, tag: str) -> tuple[dict[str, Staged], list[SeekpointError]]:
        """What the run's tasks have committed, by attempt, and what ended some of this job's."""
        with transaction(engine, self._schema) as tx:
            return {one.attempt: one for one in all_staged(tx, run.id)}, task_errors(tx, run.staging_schema, tag)

    def _plan(self, run: Run, packs: Sequence[Sequence[Task]], tag: str) -> dict[str, Any]:
        names = dict(zip(run.groups, run.pipelines, strict=True))
        if nameless := sorted({task.group for pack in packs for task in pack if not names.get(task.group)}):
            raise ConfigError(
                f"tasks cannot import the pipeline of group {nameless[0]!r}, which was given as an object: name it as "
                "'module:name'"
            )
        return {
            "kafka": self._kafka,
            "database": portable({"url": self._database}),
            "schema": self._schema,
            "run": str(run.id),
            "job": tag,
            "pipelines": names,
            "here": str(Path.cwd()),
            "tasks": [[(task.group, carried_range(task.range)) for task in pack] for pack in packs],
        }


class _Job:
    """One Spark job on a thread of its own, so that the caller can look about meanwhile."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any], tag: str) -> None:
        with required("Spark needs pyspark", "spark"):
            from seekpoint.jobs.spark.data_sources import StagingSource  # noqa: PLC0415 -- pyspark
        self._spark, self._tag = spark, tag
        self._answer: Future[list[Any]] = Future()
        self._frame = StagingSource.frame(spark, plan)
        self._thread = threading.Thread(target=self._run, name="seekpoint-spark", daemon=True)
        self._cancelled = False
        self._thread.start()

    def _run(self) -> None:
        try:
            self._name()
            self._answer.set_result([] if self._cancelled else self._frame.collect())
        except BaseException as error:  # noqa: BLE001 -- raised where the answer is asked for
            self._answer.set_exception(error)

    def _name(self) -> None:
        """Make it known by name; on this thread alone. Groups need a context, which Spark Connect has not."""
        if (context := context_of(self._spark)) is None:
            self._spark.addTag(self._tag)
        else:
            context.setJobGroup(self._tag, "seekpoint: staging", interruptOnCancel=True)

    def _cancel(self) -> None:
        if (context := context_of(self._spark)) is None:
            self._spark.interruptTag(self._tag)
        else:
            context.cancelJobGroup(self._tag)

    def wait(self, seconds: float) -> bool:
        """Whether it is over; waits so long for it. Raises what ended it, as the task raised it where that is known."""
        if not wait([self._answer], seconds).done:
            return False
        if (error := self._answer.exception()) is not None:
            raise missing_module(error) or error
        return True

    def reported(self) -> set[_Place]:
        """What the tasks report as staged. Raises what one of them reports as the run's end."""
        from seekpoint.jobs.spark.data_sources import messages_of  # noqa: PLC0415 -- pyspark

        return {tuple(place) for place in messages_of(self._answer.result())}

    def end(self) -> None:
        """Cancel it, unless it is over; a task in mid-transaction is killed, and leaves nothing."""
        self._cancelled = True
        deadline = monotonic() + PATIENCE
        while not self._answer.done() and monotonic() < deadline:
            self._cancel()  # again and again: what is not submitted yet does not hear it
            wait([self._answer], 0.2)


class _Executors:
    """Checks whether the cluster gives executors: without any, Spark waits in silence, without an end."""

    def __init__(self, spark: SparkSession, patience: float) -> None:
        context = context_of(spark)
        # A local session is its own executor; of Spark Connect's nothing is known here.
        self._context = None if context is None or str(context.master).startswith("local[") else context
        self._patience, self._since = patience, monotonic()

    def check(self) -> None:
        """Raise ConnectionError where there has been none for too long."""
        if self._context is None or self._count() > 0:
            self._since = monotonic()
        elif monotonic() - self._since > self._patience:
            raise ConnectionError(
                f"Spark's master {self._context.master} has given no executor for {self._patience:g} s: the cluster "
                "has died, or has no room. What was staged counts; resume the run when there is one, or stage without "
                "Spark (for a longer wait: `SparkStager(patience=...)`)"
            )

    def _count(self) -> int:
        java: Any = self._context and self._context._jsc  # noqa: SLF001 -- PySpark passes none of it on
        return int(java.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them


def packed(tasks: Sequence[Task], size: int, most: int | None = None) -> list[list[Task]]:
    """The tasks in packs of ``size`` offsets at most; in larger ones where there would be more than ``most`` packs.

    In their order, unless there would be more. A task larger than ``size`` is a pack by itself.
    """
    packs: list[list[Task]] = []
    room = 0
    for task in tasks:
        if task.range.records_at_most > room:
            packs.append([])
            room = size
        packs[-1].append(task)
        room -= task.range.records_at_most
    return packs if most is None or len(packs) <= most else _joined(packs, most)


def _joined(packs: Sequence[Sequence[Task]], most: int) -> list[list[Task]]:
    """The packs as ``most`` larger ones, about as many offsets in each."""
    joined: list[list[Task]] = [[] for _ in range(most)]
    widths = [0] * most
    for pack in packs:
        smallest = widths.index(min(widths))
        joined[smallest] += pack
        widths[smallest] += sum(task.range.records_at_most for task in pack)
    return joined


def _has_password(url: str) -> bool:
    try:
        read = make_url(url)
    except ArgumentError:
        raise ConfigError("database= is no URL: postgresql://user@host:5432/database") from None
    return bool(read.password or any("password" in key for key in read.query))  # libpq's sslpassword, too
