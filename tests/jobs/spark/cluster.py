"""Whole reloads and batches by a Spark session in a process of its own: one process has one session at a time."""

from __future__ import annotations

import json
import os
from typing import Any

from jobs.spark.orders import DATABASE
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Reload
from seekpoint.spark import SparkStager, run
from seekpoint.testing.servers.spark import start_spark


def main(order: dict[str, Any]) -> None:
    """Run the jobs of ``order`` one after the other on its master; print the type of each outcome, or what was read."""
    kafka, schema = {"bootstrap.servers": order["brokers"]}, order["schema"]
    with start_spark(order["master"], order["config"]) as spark:
        spark.range(1).count()  # its executors are there: the stager waits for those that it had
        stager = SparkStager(spark, kafka, database=DATABASE, schema=schema, range_records=1, **order["stager"])
        common: dict[str, Any] = {"schema": schema, "stager": stager, "range_records": 40}
        for job, pipeline in order["jobs"]:
            outcome: object
            if job == "read":
                options = {
                    "kafka.bootstrap.servers": order["brokers"],
                    "subscribe": order["topic"],
                    "minPartitions": "4",
                }
                print(spark.read.format("seekpoint").options(**options).load().count(), flush=True)
                continue
            if job == "run":
                outcome = run(spark, pipeline, kafka=kafka, database=DATABASE, schema=schema, available_now=True)
            elif job == "batch":
                outcome = BatchJob(pipeline, DATABASE.value(), kafka, **common).run()
            else:
                reload = Reload([pipeline], DATABASE.value(), kafka, **common)
                outcome = reload.run(reload.open())
            print(type(outcome).__name__, flush=True)


if __name__ == "__main__":
    main(json.loads(os.environ["ORDER"]))
