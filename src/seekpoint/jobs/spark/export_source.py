"""The tasks of an export, as a data source whose rows are messages: one for each range that was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from seekpoint.jobs.export.storage import Storage
from seekpoint.jobs.export.writer import write_range
from seekpoint.jobs.spark.settings import carried_range, range_of, resolved
from seekpoint.jobs.staging.task_errors import ENDS, error_as_text
from seekpoint.kafka.ranges import Range

MESSAGE = StructType(
    [
        StructField("range", StringType(), nullable=False),
        StructField("file", StringType(), nullable=False),
        StructField("records", LongType(), nullable=False),
        StructField("bytes", LongType(), nullable=False),
        StructField("sha256", StringType()),
        StructField("ending", StringType()),  # of the export: an error would be tried again by Spark, as it was
    ]
)


class ExportSource(DataSource):
    """Spark's ``seekpoint-export``; made by :func:`seekpoint.spark.export`, which writes its only option, the plan."""

    @classmethod
    def name(cls) -> str:
        return "seekpoint-export"

    def schema(self) -> StructType:
        return MESSAGE

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark's; ours is the only one
        return ExportReader(json.loads(self.options["plan"]))


class Piece(InputPartition):
    """One range, which becomes one file."""

    def __init__(self, range_: Range) -> None:
        super().__init__(None)
        self.range = range_


class ExportReader(DataSourceReader):
    """Plans in a process beside the driver; writes where other sources read."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._ranges: Sequence[Any] = plan["ranges"]
        self._plan = {key: value for key, value in plan.items() if key != "ranges"}

    def partitions(self) -> Sequence[InputPartition]:
        ranges, self._ranges = self._ranges, []  # each task gets its own alone
        return [Piece(range_of(carried)) for carried in ranges]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Piece):
            raise TypeError(f"a Piece was planned, and not {partition!r}")
        carried = json.dumps(carried_range(partition.range))
        plan = self._plan
        try:
            written = write_range(resolved(plan["kafka"]), Storage(plan["root"]), UUID(plan["run"]), partition.range)
        except ENDS as error:
            yield carried, "", 0, 0, None, error_as_text(error)
        else:
            yield carried, written.file, written.records, written.bytes, written.sha256, None
