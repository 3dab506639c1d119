"""A whole reload or batch by a Spark session in a process of its own: one process has one session at a time."""

from __future__ import annotations

import json
import os
from typing import Any

from jobs.spark.orders import DATABASE
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Reload
from seekpoint.spark import SparkStager
from seekpoint.testing.servers.spark import start_spark

ORDER: dict[str, Any] = json.loads(os.environ.get("ORDER", "{}"))


def main() -> None:
    """Reload ``ORDER["pipeline"]`` on ``ORDER["master"]``, or apply what is new by a batch; says what came of it."""
    kafka, schema = {"bootstrap.servers": ORDER["brokers"]}, ORDER["schema"]
    with start_spark(ORDER["master"], ORDER["config"]) as spark:
        stager = SparkStager(spark, kafka, database=DATABASE, schema=schema, smallest=1, **ORDER.get("stager", {}))
        common: dict[str, Any] = {"schema": schema, "stager": stager, "range_records": 40}
        outcome: object
        if ORDER.get("job") == "batch":
            outcome = BatchJob(ORDER["pipeline"], DATABASE.value(), kafka, **common).run()
        else:
            reload = Reload([ORDER["pipeline"]], DATABASE.value(), kafka, **common)
            outcome = reload.run(reload.open())
    print(json.dumps({"outcome": type(outcome).__name__}))


if __name__ == "__main__":
    main()
