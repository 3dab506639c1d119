"""What a handler would make of the records up to the snapshot offsets, computed by Spark: a DataFrame for each table.

For aggregates: Spark adds up in parallel what a handler adds up record by record. The handler continues from there, so
both must compute the same; :func:`seekpoint.testing.assert_reload_agrees` checks that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from sqlalchemy import select

from seekpoint.errors import ConfigError, Poison, ReloadOver, ReloadRefused, needs_extra
from seekpoint.jobs.run import Driver, StagedPosition, Tx, transaction
from seekpoint.jobs.spark.read import frame_of, require_this_python
from seekpoint.jobs.spark.settings import Env, portable, resolved
from seekpoint.jobs.staging.task_errors import ENDS_STAGING, SparkTaskError, task_error_of
from seekpoint.jobs.tables.create_like import Sequences, make_like
from seekpoint.jobs.tables.frame_targets import Frame, resolve_frames
from seekpoint.jobs.tables.sql_templates import Statements, names
from seekpoint.jobs.tables.staging_schema import Staging
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target, targets
from seekpoint.kafka.ranges import Range, check_ranges
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.postgres.engine import postgres_engine
from seekpoint.postgres.sqlstates import is_data_error
from seekpoint.records import one_line
from seekpoint.sinks.arrow import copy_into

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN = "attempt string, rows bigint"  # what a task reports: its table, and how many rows it has


def compute(
    driver: Driver,
    given: Sequence[PipelineSource],
    frames: Mapping[str, Frame],
    spark: SparkSession,
    *,
    kafka: Mapping[str, Any],
    database: Env | str,
    copy_sessions: int | None = None,
) -> None:
    """Fill the copies of a handler's tables from ``frames``, and move its position to the snapshot offsets.

    For each group whose tables have frames, as long as nothing of it is rebuilt; one transaction of the driver takes
    over what the tasks wrote, also where tasks were repeated or speculated on. ``kafka`` is portable, ``database`` the
    URL for the tasks, or its name; ``copy_sessions`` is how many tasks write a frame at most. Raises ConfigError,
    ReloadRefused, ReloadOver, what reading raises, and Spark's own error.
    """
    require_this_python(spark)
    with driver.step("staged") as tx:
        found = targets(tx.connection, given)
        positions = tx.positions()
        wanted = resolve_frames(tx.connection, given, found, frames)
    for n, source in enumerate(given):
        mine = [at for at in positions if at.group == source.group]
        tables = {target: frame for of, target, frame in wanted if of == n}
        if not tables or any(at.next_offset > at.first_offset for at in mine):
            continue  # it has none, or frames have filled its tables already
        if any(at.end_offset > at.first_offset for at in mine):
            work = _Work(driver, spark, dict(kafka), database, copy_sessions)
            made = {target: work.write(target, frame(work.records(mine))) for target, frame in tables.items()}
            _take_over(driver, made, mine)


class _Work:
    """One run's frames."""

    def __init__(
        self, driver: Driver, spark: SparkSession, kafka: dict[str, Any], database: Env | str, copy_sessions: int | None
    ) -> None:
        self._driver, self._spark, self._kafka, self._copy_sessions = driver, spark, kafka, copy_sessions
        self._staging = Staging(driver.run.staging_schema)
        self._url = portable({"url": database})

    def records(self, mine: Sequence[StagedPosition]) -> DataFrame:
        """The group's records up to the snapshot offsets, without those that have no rows."""
        ranges = [Range(at.partition, at.topic_id, at.first_offset, at.end_offset) for at in mine]
        spec = self._driver.run.archive
        if spec is None:
            check_ranges(resolved(self._kafka), ranges)
        archive = None if spec is None else {**self._url, "spec": spec}
        frame = frame_of(self._spark, self._kafka, ranges, archive=archive)
        out, lost = self._staging.left_out.c, self._staging.lost
        group = mine[0].group
        with self._driver.step("staged") as tx:
            records = select(out.topic, out.partition, out.record_offset).where(out.consumer_group == group)
            left_out = [tuple(row) for row in tx.connection.execute(records)]
            gaps = tx.connection.execute(select(lost).where(lost.c.consumer_group == group)).all()
        for gap in gaps:
            is_in = (F.col("topic") == gap.topic) & (F.col("partition") == gap.partition)
            is_in &= F.col("offset").between(gap.from_offset, gap.to_offset - 1)
            frame = frame.where(~is_in)
        if left_out:
            letters = self._spark.createDataFrame(left_out, "topic string, partition int, offset bigint")
            frame = frame.join(F.broadcast(letters), ["topic", "partition", "offset"], "left_anti")
        return frame

    def write(self, target: Target, frame: DataFrame) -> tuple[Sequence[str], dict[str, int]]:
        """Have the tasks write the rows, each into a table of its own; the columns, and how many rows each has."""
        if strange := sorted(set(frame.columns) - set(target.all_columns)):
            raise ConfigError(
                f"the frame of {target.name} has columns that the table has not: {', '.join(strange)}; it has "
                f"{', '.join(target.all_columns)}"
            )
        run, staging = self._driver.run.id, (self._staging.schema, target.staged)
        part = Part(self._url, self._driver.schema, run, staging, target.path)
        tasks = frame if self._copy_sessions is None else frame.coalesce(self._copy_sessions)
        try:
            written = _in_arrow(tasks, part.write).collect()
        except Exception as error:
            raise task_error_of(error) or error from error
        return frame.columns, {row.attempt: row.rows for row in written if row.rows}


def _in_arrow(frame: DataFrame, write: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """Spark passes columns to Python so; it requires pandas, and does not use it here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a pandas that is newer than Spark
        try:
            return frame.mapInArrow(write, WRITTEN)
        except ImportError as error:  # its pandas is missing, or older than it takes
            raise needs_extra("frames need pyspark", "spark", error) from error


@dataclass(frozen=True, slots=True)
class Part:
    """What a task needs to write a part of a frame for the table ``live``; ``staging``: schema and name."""

    database: Mapping[str, Any]  # portable
    schema: str
    run: UUID
    staging: Path
    live: Path

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One attempt at the part, in a task: its rows in a table of its own, in one transaction."""
        schema, table = self.staging
        path, rows_ = (schema, f"frame_{table}_{uuid4().hex[:16]}"), 0
        engine = postgres_engine(resolved(self.database)["url"])
        try:
            with transaction(engine, self.schema) as tx:
                for batch in batches:
                    if not rows_ and batch.num_rows:
                        self._require_wanted(tx)
                        make_like(tx.connection, path, self.live, Sequences.IGNORED, prefix=path[1])
                    if batch.num_rows:
                        rows_ += copy_into(tx.connection, path, batch)
                if rows_:
                    self._require_wanted(tx)
        except ENDS_STAGING as error:
            raise SparkTaskError(error) from error
        except Exception as error:
            if not (isinstance(error, Poison) or is_data_error(error)):
                raise
            why = f"a row of the frame of {'.'.join(self.live)} cannot be written: {one_line(error)}"
            raise SparkTaskError(ReloadRefused([why])) from error
        finally:
            engine.dispose()
        yield pa.RecordBatch.from_pydict({"attempt": [path[1]], "rows": [rows_]})

    def _require_wanted(self, tx: Tx) -> None:
        """First and last in each transaction of a task: a run that is further on takes nothing more."""
        if tx.execute(RELOAD_RUN["guard"], run=self.run, state="staged").one_or_none() is None:
            raise ReloadOver(f"reload {self.run} continued without this part of a frame: nothing of it is kept")


def _take_over(
    driver: Driver, made: Mapping[Target, tuple[Sequence[str], dict[str, int]]], mine: Sequence[StagedPosition]
) -> None:
    """The rows of the attempts that Spark names into the copies, with the position: one transaction."""
    staging = Staging(driver.run.staging_schema)
    with driver.step("staged") as tx:
        for target, (columns, attempts) in made.items():
            for attempt, expected in sorted(attempts.items()):
                path = (staging.schema, attempt)
                its = Statements(tx.connection, copy=staging.table(target), columns=names(columns), table=path)
                if (counted := its.value("SELECT count(*) FROM {table}")) != expected:
                    raise ReloadRefused([f"{'.'.join(path)} has {counted} rows, and its task reported {expected}"])
                its.run("INSERT INTO {copy} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {table}")
                its.run("DROP TABLE {table}")
        tx.advance({(at.group, at.partition): at.end_offset for at in mine})
