"""A whole reload by a Spark session of its own, in a process of its own: one process has one session at a time."""

from __future__ import annotations

import json
import os
from typing import Any

from seekpoint.dev.spark import start_spark
from seekpoint.reload import Reload
from seekpoint.spark import SparkStager
from spark.orders import DATABASE

ORDER: dict[str, Any] = json.loads(os.environ.get("ORDER", "{}"))


def main() -> None:
    """Reload ``ORDER["pipeline"]`` on ``ORDER["master"]``; says which ranges were staged, and what the table gained."""
    kafka, schema = {"bootstrap.servers": ORDER["brokers"]}, ORDER["schema"]
    with start_spark(ORDER["master"], ORDER["config"]) as spark:
        stager = SparkStager(spark, kafka, database=DATABASE, schema=schema, smallest=1)
        reload = Reload([ORDER["pipeline"]], DATABASE.value(), kafka, schema=schema, stager=stager, range_records=40)
        outcome = reload.run(reload.open())
    print(json.dumps({"outcome": type(outcome).__name__}))


if __name__ == "__main__":
    main()
