"""Runs a SparkPipeline: as a batch over the present log, or as a stream of micro-batches until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from seekpoint.backoff import Backoff
from seekpoint.errors import ConfigError, Fenced, GroupPaused, required
from seekpoint.jobs.spark.settings import Env
from seekpoint.kafka.first_records import require_max_bytes, require_max_records
from seekpoint.kafka.ranges import MOST_OFFSETS
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.pipeline.frames import SparkPipeline
from seekpoint.pipeline.policy import Limits
from seekpoint.records import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seekpoint.jobs.batch.steps import BatchDone
    from seekpoint.jobs.frames.driver import FrameDriver

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FramesDone:
    """The result of a run of a SparkPipeline, over all its micro-batches.

    ``records`` is how many records the positions moved past, ``dead_letters`` how many of them were dead-lettered.
    ``rows`` has the number of rows that frames made, by table, before an Upsert dedupes them by key. ``offsets`` maps
    ``topic/partition`` to its position.
    """

    micro_batches: int
    records: int
    rows: Mapping[str, int]
    offsets: Mapping[str, int]
    dead_letters: int

    def plus(self, batch: BatchDone) -> FramesDone:
        """The result with one more micro-batch."""
        rows = {table: self.rows.get(table, 0) + count for table, count in batch.rows.items()}
        return FramesDone(
            self.micro_batches + 1,
            self.records + batch.records,
            {**self.rows, **rows},
            {**self.offsets, **batch.offsets},
            self.dead_letters + batch.dead_letters,
        )


NOTHING = FramesDone(0, 0, {}, {}, 0)


def run(
    spark: SparkSession,
    pipeline: SparkPipeline | str,
    *,
    kafka: Mapping[str, Any],
    available_now: bool = False,
    trigger: float = 10.0,
    stop: threading.Event | None = None,
    database: Env | str = Env("SEEKPOINT_DATABASE_URL"),  # noqa: B008 -- frozen
    schema: str = DEFAULT_SCHEMA,
    max_records: int | None = None,
    max_bytes: int | None = None,
    range_records: int = MOST_OFFSETS,
    limits: Limits | None = None,
) -> FramesDone:
    """Apply the new records of a SparkPipeline's topics, exactly once: each micro-batch is one transaction.

    A stream begins a micro-batch ``trigger`` seconds after the previous one began, or at once if more records wait. It
    ends after the running micro-batch once ``stop`` is set. ``available_now=True`` applies the records that can be read
    at its start, and returns. A micro-batch has at most ``max_records`` offsets, and about ``max_bytes``, estimated
    from a sample of each topic's next records. Each of its tasks reads at most ``range_records`` offsets, and fewer if
    Spark would otherwise have idle slots. There is no checkpoint: each micro-batch begins at the ledger's positions.
    ``pipeline`` is an object or ``module:name``; ``kafka`` is the workers' configuration, with :class:`Env` for
    passwords; ``database`` names the environment variable with the ledger's URL.

    Drivers may crash, and several may run at once: the newest owns the partitions, the others raise Fenced. A stream
    waits while database or brokers do not answer, and while its group is paused; after a reset it continues at the new
    positions.

    Raises ConfigError, before anything is read, if a frame does not merge or its columns do not match its table;
    FrameFailed, which names the ranges, if a frame raises or makes rows that cannot be written: nothing of that
    micro-batch is written, and its partitions are stopped. Raises BatchRefused for a record that cannot be decoded if
    ``on_poison`` is "stop"; TooManyDeadLetters if more records fail than the pipeline allows; RangeLost if the log no
    longer has a position; TopicRecreated if a topic was created again; HandlerOutdated if the group is at a newer
    handler version; with ``available_now`` also GroupPaused if the group is paused, and errors of brokers and database.
    """
    require_max_records(max_records)
    require_max_bytes(max_bytes)
    if trigger < 0:
        raise ConfigError(f"trigger= must be a number of seconds, 0 or more, got {trigger}")
    with required("Spark needs pyspark", "spark"):
        from seekpoint.jobs.frames.driver import FrameDriver  # noqa: PLC0415 -- pyspark
    driver = FrameDriver(
        spark,
        pipeline,
        kafka,
        database=database,
        schema=schema,
        limits=limits,
        max_records=max_records,
        max_bytes=max_bytes,
        range_records=range_records,
    )
    driver.stopping = stop or driver.stopping
    try:
        driver.start()
        return _available_now(driver) if available_now else _stream(driver, trigger)
    finally:
        driver.end()


def _available_now(driver: FrameDriver) -> FramesDone:
    """Run micro-batches up to the present ends of the log."""
    ends, total = driver.ends(), NOTHING
    while not driver.stopping.is_set() and (batch := driver.step(ends)) is not None:
        total = _add(driver, total, batch)
    return replace(total, offsets=driver.offsets())


def _add(driver: FrameDriver, total: FramesDone, batch: BatchDone) -> FramesDone:
    logger.info("group %s: micro-batch of %d records, now at %s", driver.group, batch.records, dict(batch.offsets))
    return total.plus(batch)


def _stream(driver: FrameDriver, trigger: float) -> FramesDone:
    """Run micro-batches until the driver is stopped. Raises Fenced if another driver or worker has replaced it."""
    total, attempt = NOTHING, 0
    fenced: Fenced | None = None
    while not driver.stopping.is_set():
        began, state, trouble = monotonic(), "running", None
        try:
            if fenced is not None and driver.is_owned_elsewhere():  # this driver's claim would fence that owner
                raise fenced
            fenced = None
            if (batch := driver.step()) is not None:
                total = _add(driver, total, batch)
        except GroupPaused as paused:
            state, trouble = "paused", str(paused)
        except Fenced as error:
            if error is fenced:
                raise
            fenced, trouble = error, str(error)
            logger.info("group %s: %s; the stream continues at the ledger's positions", driver.group, trouble)
        except Exception as error:
            if not driver.may_pass(error):
                raise
            state, trouble = "trouble", one_line(error)
            logger.warning("group %s: %s; it will be tried again", driver.group, trouble)
        attempt = 0 if trouble is None else attempt + 1
        if trouble is not None:
            wait = min(Backoff().wait(attempt), max(trigger, 1.0))
        else:
            wait = 0.0 if driver.has_more else trigger - (monotonic() - began)
        driver.wait(wait, state, trouble)
    return total
