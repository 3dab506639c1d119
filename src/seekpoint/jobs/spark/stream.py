"""Spark's source ``seekpoint`` as a stream, with admission control. Imports pyspark.

The reader lives in one process on the driver's machine until the query ends; tasks read ranges as in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.micro_batch import STREAM, MicroBatch, MicroBatches
from seekpoint.jobs.spark.read_plan import Part, ReadPlan, divided, read_part
from seekpoint.jobs.spark.source_options import StreamOptions, stream_options
from seekpoint.jobs.spark.stream_positions import StreamPosition, StreamPositions, limited

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError as error:
    raise ConfigError(
        "readStream needs PySpark 4.2 or newer: older versions cannot limit the micro-batches of a Python source"
    ) from error


def stream_reader(options: Mapping[str, str], schema: StructType) -> RecordStream:
    """The reader of a stream. Raises ConfigError for options that a stream does not take."""
    path = next(field.metadata[STREAM] for field in schema if STREAM in field.metadata)
    return RecordStream(stream_options(options), path)


class RecordStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the source's process, and reads their tasks in executors. The constructor does no I/O."""

    def __init__(self, options: StreamOptions, path: str) -> None:
        self._options = options
        self._positions = StreamPositions(options.source)
        self._batches = MicroBatches(path)
        self._first: StreamPosition | None = None
        self._last: StreamPosition | None = None  # where a query with Trigger.AvailableNow ends
        self._ended: StreamPosition | None = None
        self._waits_since = monotonic()

    # -- in the source's process --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """The start of the first micro-batch; always the same answer, because Spark asks more than once."""
        self._first = self._first or self._positions.first()
        return self._first.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """The limit that the options set."""
        return ReadAllAvailable() if self._options.most is None else ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Make the query end at the present ends of the logs."""
        self._last = self._positions.ends(self._first or StreamPosition({}, {}))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 -- Spark's name
        """The end of the next micro-batch; ``start`` if nothing is new, or the minimum is not reached."""
        position = StreamPosition.from_json(start)
        self._ended = ends = self._ends(position)
        added = self._positions.added(position, ends.offsets)
        begin = {**position.offsets, **added}
        lag = sum(offset - begin[partition] for partition, offset in ends.offsets.items())
        if not lag and not added:
            self._waits_since = monotonic()  # the delay counts from the first waiting record
            return start  # return it unchanged: Spark would run an empty micro-batch if its JSON differed
        if self._may_wait(lag):
            return start
        self._waits_since = monotonic()
        if isinstance(limit, ReadMaxRows):
            ends = ends._replace(offsets=limited(begin, ends.offsets, limit.max_rows))
        return ends._replace(first_offsets=added).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 -- Spark's name
        """The ends of the logs when the last micro-batch was planned, for the query's progress."""
        return None if self._ended is None else self._ended.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch; stores its ranges for the function of ``foreachBatch``."""
        source = self._options.source
        ranges = self._positions.ranges(StreamPosition.from_json(start), StreamPosition.from_json(end))
        self._batches.store(MicroBatch(ranges, whole=source.assigned is None, kafka=dict(source.kafka)))
        return [InputPartition(task) for task in divided([Part(range_, ()) for range_ in ranges], source)]

    def stop(self) -> None:
        """Called by Spark when the query has ended; removes the stored ranges."""
        self._batches.end()

    def _ends(self, position: StreamPosition) -> StreamPosition:
        ends = self._positions.ends(position)
        if self._last is None:
            return ends
        offsets = {
            partition: max(min(offset, ends.offsets.get(partition, offset)), position.offsets.get(partition, 0))
            for partition, offset in self._last.offsets.items()
        }
        return ends._replace(offsets={**position.offsets, **offsets})

    def _may_wait(self, lag: int) -> bool:
        least = self._options.least
        if least is None or lag >= least or self._last is not None:
            return False
        return monotonic() - self._waits_since < self._options.delay

    # -- in an executor -----------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of one task."""
        source = self._options.source
        plan = ReadPlan(dict(source.kafka), (), (), source.headers, "include", source.decode)
        parts: Sequence[Part] = partition.value
        for part in parts:
            yield from read_part(plan, part)
