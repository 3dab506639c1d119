"""An export's files, written by Spark's tasks and committed by the driver in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from seekpoint.errors import required
from seekpoint.jobs.export import Written
from seekpoint.jobs.spark.session import context_of, require_this_python
from seekpoint.jobs.spark.settings import carried_range, portable, range_of, require_no_secret
from seekpoint.jobs.staging.task_errors import missing_module
from seekpoint.kafka.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_PER_SLOT = 4  # ranges per slot of the cluster and wave


class SparkWriter:
    """Writes an export's ranges in the tasks of a Spark session: ``Export(…, writer=SparkWriter(spark, kafka))``.

    ``kafka`` is the workers' configuration, with :class:`Env` for passwords. Each range is a task that reads Kafka and
    writes to the archive's root: a folder that all executors share, or a bucket for which they have credentials.
    Executors do not need the database.
    """

    def __init__(self, spark: SparkSession, kafka: Mapping[str, Any]) -> None:
        self._spark, self._kafka = spark, portable(kafka)
        require_no_secret(spark, None, self._kafka)

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        """Write the ranges in waves, so that the files of one wave can be committed before the next begins.

        Raises the errors of reading a range, and Spark's exception if a task failed too often.
        """
        require_this_python(self._spark)
        context = context_of(self._spark)
        wave = WAVE_PER_SLOT * (4 if context is None else context.defaultParallelism)
        for begin in range(0, len(ranges), wave):
            yield from self._write(root, run, ranges[begin : begin + wave])

    def _write(self, root: str, run: UUID, ranges: Sequence[Range]) -> list[Written]:
        with required("Spark needs pyspark", "spark"):
            from seekpoint.jobs.spark.data_sources import ExportSource, messages_of  # noqa: PLC0415 -- pyspark
        tasks = [[carried_range(range_)] for range_ in ranges]
        frame = ExportSource.frame(self._spark, {"kafka": self._kafka, "root": root, "run": str(run), "tasks": tasks})
        try:
            rows = frame.collect()
        except Exception as error:
            raise missing_module(error) or error from error
        return [Written(range_of(carried), *written) for carried, *written in messages_of(rows)]
