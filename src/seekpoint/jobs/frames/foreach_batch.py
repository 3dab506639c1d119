"""Applies a SparkPipeline in a query's ``foreachBatch``, to records that the ledger's positions have not passed."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from seekpoint.errors import ConfigError, required
from seekpoint.jobs.spark.explained import analyzed_text
from seekpoint.jobs.spark.micro_batch import MicroBatch, planned
from seekpoint.jobs.spark.session import context_of
from seekpoint.jobs.spark.settings import Env
from seekpoint.kafka.first_records import require_max_records
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.pipeline.policy import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from seekpoint.jobs.frames.driver import FrameDriver

logger = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"  # a local property that Spark sets on the thread of a micro-batch
_SOURCE = "StreamingDataSourceV2ScanRelation"
_CHECK_SECONDS = 2  # seconds between two checks of whether the query has ended


def foreach_batch(
    pipeline: SparkPipeline | str,
    *,
    spark: SparkSession | None = None,
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    max_records: int | None = None,
    range_records: int = MOST_OFFSETS,
    limits: Limits | None = None,
) -> ForeachBatch:
    """A function for ``writeStream.foreachBatch`` that applies a SparkPipeline to a stream's records, exactly once.

    The stream must be ``spark.readStream.format("seekpoint")`` of the pipeline's topics without further operators:
    select and filter in the frames. Each micro-batch skips records that the ledger's positions have passed, and commits
    the others' rows and offsets in one transaction. So a checkpoint may be lost or old, and of two queries the newer
    one fences the older.

    ``pipeline``, ``database``, ``schema``, ``range_records`` and ``limits`` are as for :func:`run`. With
    ``max_records`` a micro-batch becomes several transactions of at most that many offsets. ``spark`` is the session
    that starts the query, by default the active one. The brokers are those of the stream.

    The query fails without moving positions: with ConfigError if the DataFrame has another source; with RangeLost if a
    micro-batch begins after the ledger's position, so that records would be lost; and with the errors of :func:`run`,
    including GroupPaused. A restarted query continues at the ledger's positions.
    """
    require_max_records(max_records)
    with required("Spark needs pyspark", "spark"):
        from pyspark.sql import SparkSession  # noqa: PLC0415 -- pyspark
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise ConfigError("no Spark session is active: give foreach_batch(spark=) the session that starts the query")
    if context_of(session) is None:
        raise ConfigError(
            "foreach_batch must be called in Spark's driver, and Spark Connect would send the function to the server: "
            "use seekpoint.spark.run, which needs no checkpoint"
        )
    options = {
        "database": database,
        "schema": schema,
        "limits": limits,
        "max_records": max_records,
        "range_records": range_records,
    }
    return ForeachBatch(pipeline, session, options)


class ForeachBatch:
    """The function that :func:`foreach_batch` returns, which Spark calls with each micro-batch."""

    def __init__(self, pipeline: SparkPipeline | str, spark: SparkSession, options: Mapping[str, Any]) -> None:
        self._pipeline, self._spark, self._options = pipeline, spark, options
        self._driver: FrameDriver | None = None
        self._lock = threading.Lock()  # held while the driver is used
        self._run: str | None = None  # run id of the last query whose plan was checked

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Apply the records of this micro-batch that the ledger's positions have not passed."""
        batch = planned(frame)
        if batch is None:
            raise ConfigError(
                f"foreach_batch({self._pipeline!r}) takes micro-batches of spark.readStream.format('seekpoint'), and "
                "this DataFrame is a batch read: pass the function to the stream's writeStream.foreachBatch"
            )
        query = self._query()
        if query.runId != self._run:
            _require_as_it_is(query)
            self._run = query.runId
        with self._lock:
            driver = self._driver = self._driver or self._started(query, batch)
            _require_same_topics(driver, batch)
            driver.catch_up(batch.ranges)
            logger.info("group %s: micro-batch %d is applied", driver.group, batch_id)

    def _query(self) -> StreamingQuery:
        context = self._spark.sparkContext
        query = self._spark.streams.get(str(context.getLocalProperty(_QUERY)))
        if query is None:
            raise ConfigError("another Spark session has started the query: give foreach_batch(spark=) that session")
        return query

    def _started(self, query: StreamingQuery, batch: MicroBatch) -> FrameDriver:
        from seekpoint.jobs.frames.driver import FrameDriver  # noqa: PLC0415 -- pyspark

        driver = FrameDriver(self._spark, self._pipeline, batch.kafka, **self._options)
        try:
            driver.start()
        except BaseException:
            driver.end()
            raise
        threading.Thread(
            target=self._until_end, args=(query, driver), name=f"{driver.group}-query", daemon=True
        ).start()
        return driver

    def _until_end(self, query: StreamingQuery, driver: FrameDriver) -> None:
        """Show the driver's state between micro-batches, and release its partitions when the query has ended."""
        while _is_running(query):
            if self._lock.acquire(blocking=False):
                try:
                    driver.show()
                finally:
                    self._lock.release()
        with self._lock:
            self._driver = None
            driver.end()


def _is_running(query: StreamingQuery) -> bool:
    """Whether the query still runs after a wait of a few seconds."""
    try:
        query.awaitTermination(_CHECK_SECONDS)
        return query.isActive
    except Exception:  # noqa: BLE001 -- the query has failed and reports that itself, or Spark's JVM is gone
        return False


def _require_same_topics(driver: FrameDriver, batch: MicroBatch) -> None:
    streamed, declared = {partition.topic for partition in batch.starts}, set(driver.topics)
    if not batch.whole or streamed != declared:
        raise ConfigError(
            f"the stream reads {'' if batch.whole else 'some partitions of '}{', '.join(sorted(streamed))}, but the "
            f"pipeline of group {driver.group!r} reads {', '.join(sorted(declared))}: subscribe to these topics"
        )


def _require_as_it_is(query: StreamingQuery) -> None:
    """Raise ConfigError for a query that selects or filters, because the driver reads the records itself."""
    with redirect_stdout(StringIO()) as printed:
        query.explain(extended=True)
    text, _ = analyzed_text(printed.getvalue())
    lines = [line.lstrip(" :+-") for line in text.splitlines()]
    operators = [re.split(r"[ \[]", line.removeprefix("~"))[0] for line in lines if line.startswith("~")]
    between = [operator for operator in operators[1:-1] if operator != "SubqueryAlias"]
    if operators[-1:] != [_SOURCE] or between:
        problem = f"the query has the operators {', '.join(between)}" if between else "the query's plan cannot be read"
        raise ConfigError(f"{problem}: give foreachBatch the stream as it is, and select and filter in the frames")
