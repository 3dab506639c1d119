"""Calls the sink's writer as Spark does, without Spark: pickled for tasks, and made again for the commit.

``SinkProcess`` does that in a separate process that tests kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from seekpoint.jobs.batch import steps
from seekpoint.jobs.frames import stream_writer, under_claims
from seekpoint.jobs.frames.stream_writer import RowsWriter, StreamWriter
from seekpoint.jobs.spark.micro_batch import STREAM, MicroBatch, MicroBatches, new_path
from seekpoint.kafka.ranges import Range, topic_ids
from seekpoint.records import Partition
from seekpoint.testing.child_process import report
from support.job_process import HaltedDriver, JobProcess, halt
from support.reload_orders import OrdersGroup

DATABASE = "SEEKPOINT_TEST_SPARK_DATABASE"


class SinkCalls:
    """Micro-batches of one query, whose source has planned ``[start, end)`` of each of two partitions.

    Only records of partition 0 have rows; all columns of a row are its offset.
    """

    def __init__(self, brokers: str, schema: str, group: str, topic: str) -> None:
        self.topic, self.path = topic, new_path()
        self.source = MicroBatches(self.path)
        self.kafka = {"bootstrap.servers": brokers}
        self.options = {"group": group, "table": f"{schema}.entries", "database": DATABASE, "ledgerschema": schema,
                        "checkpointlocation": "/checkpoints/sales"}  # fmt: skip

    @property
    def columns(self) -> StructType:
        """The rows' columns."""
        columns = StructType().add("topic", StringType()).add("partition", IntegerType())
        columns = columns.add("offset", LongType(), metadata={STREAM: self.path})
        for name in ("id", "amount", "at", "topic_offset"):
            columns = columns.add(name, LongType())
        return columns

    def writer(self, columns: StructType | None = None) -> StreamWriter:
        """A writer as Spark makes it from the options and columns."""
        return stream_writer.stream_writer(self.options, columns or self.columns, overwrite=False)

    def plan(self, start: int, end: int, *, whole: bool = True) -> None:
        """Store a micro-batch's plan, as the source does."""
        topic_id = topic_ids(self.kafka, [self.topic])[self.topic]
        assert topic_id is not None
        ranges = [Range(Partition(self.topic, number), topic_id, start, end) for number in (0, 1)]
        self.source.store(MicroBatch(ranges, whole=whole, kafka=self.kafka))

    def pickled(self, columns: StructType | None = None) -> RowsWriter:
        """The tasks' copy of a writer, pickled twice, as Spark does."""
        writer = self.writer(columns)
        dumps(writer)  # type: ignore[no-untyped-call]
        tasks: RowsWriter = loads(dumps(writer))  # type: ignore[no-untyped-call]
        return tasks

    def tasks(self, start: int, end: int) -> RowsWriter:
        """Plan a micro-batch; returns its tasks' writer."""
        self.plan(start, end)
        return self.pickled()

    def rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """A row for each record in ``[start, end)``."""
        offset = pa.array(range(start, end), pa.int64())
        topic = pa.array([self.topic] * len(offset))
        columns = {"topic": topic, "partition": pa.array([0] * len(offset), pa.int32()), "offset": offset}
        yield pa.record_batch(columns | dict.fromkeys(("id", "amount", "at", "topic_offset"), offset))

    def apply(self, start: int, end: int) -> None:
        """Apply a micro-batch; one task has no rows, and one runs twice."""
        tasks = self.tasks(start, end)
        tasks.write(self.rows(start, end))
        self.commit([tasks.write(self.rows(start, end)), tasks.write(iter(()))])

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit as Spark does when all tasks have ended."""
        sent = [loads(dumps(message)) for message in messages]  # type: ignore[no-untyped-call]
        self.writer().commit(sent, 0)


class SinkProcess(JobProcess):
    """A process that applies a micro-batch of ``[start, end)``, and halts at ``step``.

    ``step`` is a place of ``HaltedDriver``, ``called`` (before it claims), ``written`` or ``applied`` (after COMMIT).
    """

    def __init__(self, orders_group: OrdersGroup, start: int, end: int, step: str) -> None:
        super().__init__("support.sink_calls", orders_group, topic=orders_group.topic, start=start, end=end, step=step)


def main(what: dict[str, Any]) -> None:
    """Apply the micro-batch, up to where it halts."""
    os.environ[DATABASE] = what["url"]
    HaltedDriver.halts_at = what["step"]
    for module in (stream_writer, under_claims):
        vars(module)["Driver"] = HaltedDriver
    if HaltedDriver.halts_at == "called":
        vars(stream_writer)["take_plan"] = lambda _: halt()
    if HaltedDriver.halts_at == "applied":
        vars(steps)["totals"] = lambda *_: halt()
    calls = SinkCalls(what["brokers"], what["schema"], what["group"], what["topic"])
    if HaltedDriver.halts_at == "written":
        vars(calls)["commit"] = lambda _: halt()
    calls.apply(what["start"], what["end"])
    report("done")
