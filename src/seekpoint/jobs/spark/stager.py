"""Stages a reload's ranges in Spark's tasks: each task reads and decodes records, and copies their rows.

Spark only schedules the tasks. A range is staged if the database has an attempt at it; Spark's answer only ends the
wait. Repeated, speculative and late attempts do no harm: each writes separate tables (see ``stage``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import Engine

from seekpoint.errors import ConfigError, SeekpointError, required
from seekpoint.jobs.spark.job import EXECUTOR_TIMEOUT, Executors, SparkJob
from seekpoint.jobs.spark.session import require_this_python, slots_of
from seekpoint.jobs.spark.settings import Env, carried_range, portable, require_no_secret
from seekpoint.jobs.spark.task import task_plan
from seekpoint.jobs.staging.stage import Staged, Task, all_staged
from seekpoint.jobs.staging.task_errors import task_errors
from seekpoint.kafka.ranges import LEAST_OFFSETS, MOST_OFFSETS, task_size
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.engine import postgres_engine
from seekpoint.runs.run import Run, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK_SECONDS = 1.0  # seconds between two checks for staged ranges
_NO_EXECUTOR = (
    "Staged ranges are kept: resume the run when there is an executor, or stage without Spark (for a longer wait: "
    "`SparkStager(patience=...)`)"
)


class SparkStager:
    """Stages a reload's or a batch's ranges in the tasks of a Spark session: ``stager=SparkStager(spark, kafka)``.

    ``kafka`` is the workers' configuration, with :class:`Env` for passwords; ``database`` is the environment variable
    with the URL of the ledger's database, ``schema`` the ledger's schema. The job's pipelines must be given by name
    (``module:name``), because tasks import them. The executors need this package, the pipelines' modules, and the
    variables. Spark repeats a failed task as often as it is configured to (``local[2]``: never; ``local[2,4]``: up to 4
    attempts). A task stages at most ``range_records`` offsets; fewer, down to 20,000, if there would otherwise be fewer
    tasks than slots. At most ``copy_sessions`` tasks run, each with one database session: a small server gains nothing
    from more sessions than it has cores. Staging fails if the cluster provides no executor for ``patience`` seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Mapping[str, Any],
        *,
        database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
        schema: str = DEFAULT_SCHEMA,
        range_records: int = MOST_OFFSETS,
        copy_sessions: int | None = None,
        patience: float = EXECUTOR_TIMEOUT,
    ) -> None:
        if copy_sessions is not None and copy_sessions < 1:
            raise ConfigError(f"copy_sessions must be a number of tasks, at least 1, got {copy_sessions}")
        self._spark, self._schema, self._range_records = spark, schema, range_records
        self._copy_sessions = copy_sessions
        self._kafka, self._database, self._patience = portable(kafka), database, patience
        require_no_secret(spark, self._database, self._kafka)

    def stage(self, run: Run, tasks: Sequence[Task]) -> Generator[Staged, None, None]:
        """Stage each task at least once; yields each result once, soon after its commit.

        Raises the error of a task that ends the staging (ReloadRefused, ReloadOver, RangeLost, RangeStuck,
        TopicRecreated, ArchiveDamaged, ConfigError), ConnectionError if the cluster provides no executor, and Spark's
        exception if a task failed too often. If the caller stops iterating, the remaining tasks are cancelled.
        """
        if not tasks:
            return
        require_this_python(self._spark)
        width = sum(task.range.records_at_most for task in tasks)
        size = task_size(width, range_records=self._range_records, slots=slots_of(self._spark))
        parts = [Task(task.group, part) for task in tasks for part in task.range.cut(max(size, LEAST_OFFSETS))]
        engine = postgres_engine(self._database.value() if isinstance(self._database, Env) else self._database)
        try:
            yield from self._stage(engine, run, packed(parts, size, self._copy_sessions))
        finally:
            engine.dispose()

    def _stage(self, engine: Engine, run: Run, packs: Sequence[Sequence[Task]]) -> Iterator[Staged]:
        tag = f"seekpoint-{uuid4().hex}"
        previous, _ = self._poll(engine, run, tag)
        awaited = {(task.group, *task.range.partition, task.range.start) for pack in packs for task in pack}
        with required("Spark needs pyspark", "spark"):
            from seekpoint.jobs.spark.data_sources import StagingSource, messages_of  # noqa: PLC0415 -- pyspark
        name = f"{', '.join(run.groups)}: staging, run {run.id}"
        job = SparkJob(self._spark, StagingSource.frame(self._spark, self._plan(run, packs, tag)), tag, name)
        executors = Executors(self._spark, self._patience, _NO_EXECUTOR)
        try:
            while True:
                is_over = job.wait(CHECK_SECONDS)
                committed, errors = self._poll(engine, run, tag)
                for attempt, staged in committed.items():
                    place = (staged.group, *staged.partition, staged.start)
                    if attempt not in previous and place in awaited:
                        awaited.discard(place)
                        yield staged
                if errors:
                    raise errors[0]
                if is_over:
                    break
                executors.check()
        finally:
            job.end()
        if missing := sorted(awaited & {tuple(place) for place in messages_of(job.answers())}):
            raise LookupError(f"tasks reported that they staged {missing[0]}, but the database has no record of it")

    def _poll(self, engine: Engine, run: Run, tag: str) -> tuple[dict[str, Staged], list[SeekpointError]]:
        """The run's committed attempts by name, and the errors that this job's tasks have reported."""
        with transaction(engine, self._schema) as tx:
            committed = {staged.attempt: staged for staged in all_staged(tx, run.id)}
            return committed, task_errors(tx, run.staging_schema, tag)

    def _plan(self, run: Run, packs: Sequence[Sequence[Task]], tag: str) -> dict[str, Any]:
        names = dict(zip(run.groups, run.pipelines, strict=True))
        if nameless := sorted({task.group for pack in packs for task in pack if not names.get(task.group)}):
            raise ConfigError(
                f"tasks cannot import the pipeline of group {nameless[0]!r}, which was given as an object: name it as "
                "'module:name'"
            )
        return {
            **task_plan(self._database, self._schema),
            "kafka": self._kafka,
            "run": str(run.id),
            "job": tag,
            "pipelines": names,
            "tasks": [[(task.group, carried_range(task.range)) for task in pack] for pack in packs],
        }


def packed(tasks: Sequence[Task], size: int, most: int | None = None) -> list[list[Task]]:
    """Group the tasks in packs of at most ``size`` offsets, in order; a larger task is a pack by itself.

    If there would be more than ``most`` packs, they are larger and not in order.
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
    """Merge the packs into ``most`` larger ones, with about as many offsets each."""
    joined: list[list[Task]] = [[] for _ in range(most)]
    widths = [0] * most
    for pack in packs:
        smallest = widths.index(min(widths))
        joined[smallest] += pack
        widths[smallest] += sum(task.range.records_at_most for task in pack)
    return joined
