"""Shows a Spark driver to operators like a worker: host, pid and application id, positions and lag."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from pyspark.sql import SparkSession

from seekpoint.events import Announcer
from seekpoint.jobs.spark.session import context_of
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.range_checks import bounded_config
from seekpoint.kafka.watermarks import Watermarks
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.declared import declared
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Partition
from seekpoint.worker.status_writer import StatusWriter


class DriverStatus:
    """Stores the state of one driver. While a micro-batch runs, the code that waits for Spark calls :meth:`show`."""

    def __init__(self, spark: SparkSession, ledger: GroupLedger, pipeline: Pipeline, kafka: Mapping[str, Any]) -> None:
        config = bounded_config(kafka)
        reads_all = config["isolation.level"] == "read_uncommitted"
        watermarks = Watermarks(Identity(config, ledger.limits.kafka_timeout), committed=not reads_all)
        context = context_of(spark)
        self._writer = StatusWriter(
            ledger,
            watermarks,
            declared(pipeline, read_uncommitted=reads_all),
            Announcer(group=pipeline.group),
            client_id="spark" if context is None else f"spark {context.applicationId}",
        )

    def show(self, partitions: Collection[Partition], state: str = "running", trouble: str | None = None) -> None:
        """Store the driver's state, if due."""
        if self._writer.is_due(now := monotonic()):
            self._writer.show(state, partitions, now, trouble)

    def end(self) -> None:
        """Store that the driver has ended."""
        self._writer.end()
