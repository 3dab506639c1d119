"""``writeStream.format("seekpoint")`` under faults: two queries at once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors.exceptions.base import StreamingQueryException

from jobs.spark import test_stream_writer
from jobs.spark.frames import entries, produced
from jobs.spark.test_frames_faults import open_runs
from jobs.spark.test_stream_writer import Sink
from support.batch_process import offsets
from support.reload_orders import OrdersGroup

pytestmark = pytest.mark.usefixtures("frames_group")
sink = test_stream_writer.sink


@pytest.mark.long("two queries at once, and another one")
def test_two_queries_at_once_write_each_row_once(sink: Sink, orders_group: OrdersGroup, tmp_path: Path) -> None:
    """I2: of two micro-batches, the one that has claimed first is refused, and ends its query."""
    produced(orders_group, 30)
    running = [
        sink.start(sink.orders(maxOffsetsPerTrigger=6), checkpointLocation=str(tmp_path / name))
        for name in ("first", "second")
    ]
    for query in running:
        with suppress(StreamingQueryException):
            query.awaitTermination()
    for query in running:
        if (error := query.exception()) is not None:
            assert "seekpoint.errors.Fenced: " in str(error)
    assert len(orders_group.rows("entries")) == sum(offsets(orders_group).values())
    sink.run(sink.orders())
    assert orders_group.rows("entries") == entries(30)
    assert (orders_group.schemas(), open_runs(orders_group)) == ([], 0)
