"""Spark's source ``seekpoint``: records between two positions, and the ledger's tables. Imports pyspark.

``pyspark_seekpoint`` registers it by name. A process on the driver's machine plans the ranges once, when a DataFrame is
made. They are stored in the DataFrame, so that each query reads the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.columns import spark_columns
from seekpoint.jobs.spark.decoded import TypedValue
from seekpoint.jobs.spark.ledger_tables import LedgerTable
from seekpoint.jobs.spark.micro_batch import STREAM, new_path
from seekpoint.jobs.spark.read_plan import PLAN, Part, ReadPlan, plan_of, read_part
from seekpoint.jobs.spark.source_options import OnlyForStreams, StreamOptions, stream_options, table_of


class Planned(Protocol):
    """The planned read of a DataFrame of the source; pickled with the DataFrame's plan."""

    def schema(self) -> StructType | str:
        """The columns, as a StructType or as SQL names and types."""

    def reader(self) -> DataSourceReader:
        """The reader, which gives Spark its tasks and reads them."""


def planned(options: Mapping[str, str]) -> Planned:
    """Plan a read with these options. Raises ConfigError, and the errors of ledger and brokers."""
    if (text := options.get(PLAN)) is not None and len(options) == 1:
        return PlannedRecords(ReadPlan.from_json(text))
    if (table := table_of(options)) is not None:
        return LedgerTable.of(table, options)
    try:
        return PlannedRecords(plan_of(options))
    except OnlyForStreams as refusal:  # Spark asks both batches and streams for their columns through this call
        try:
            return PlannedStream(stream_options(options), refusal)
        except ConfigError as error:
            raise ConfigError(
                f"as a batch (spark.read): {refusal.text}; as a stream (spark.readStream): {error.text}"
            ) from error


class PlannedRecords:
    """Records of a planned read."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def schema(self) -> StructType:
        plan = self._plan
        value = None if plan.decode is None else TypedValue(plan.decode, plan.topics).type
        metadata = {**plan.metadata, STREAM: new_path()}
        return spark_columns(headers=plan.headers, marks=plan.dead_letters == "mark", value=value, metadata=metadata)

    def reader(self) -> DataSourceReader:
        return RecordReader(self._plan)


class PlannedStream:
    """Records of a stream, with options that a batch refuses."""

    def __init__(self, options: StreamOptions, refusal: OnlyForStreams) -> None:
        self._options, self._refusal = options, refusal

    def schema(self) -> StructType:
        source = self._options.source
        if source.decode is not None and source.topics is None:
            raise self._refusal
        value = None if source.decode is None else TypedValue(source.decode, source.topics or ()).type
        return spark_columns(headers=source.headers, marks=False, value=value, metadata={STREAM: new_path()})

    def reader(self) -> DataSourceReader:
        raise self._refusal


class RecordReader(DataSourceReader):
    """Returns the plan's tasks as partitions, and reads one of them in an executor."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan, self._tasks = replace(plan, tasks=()), plan.tasks

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan}  # Spark sends it to every task: keep only that task's part

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per task; without tasks one empty task, because Spark would pass None."""
        return [InputPartition(task) for task in self._tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        parts: Sequence[Part] = partition.value
        for part in parts:
            yield from read_part(self._plan, part)
