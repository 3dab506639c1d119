"""Writes from Kafka to a table without readers: the first step of a reload, or Spark's JDBC writer.

python benchmarks/staging.py local    this process reads, decodes and copies, one range after the other
python benchmarks/staging.py pool     BENCH_PARALLELISM processes of this machine do the same
python benchmarks/staging.py spark    Spark's tasks do the same (BENCH_PARALLELISM slots)
python benchmarks/staging.py jdbc     Spark reads by our source, decodes, and writes by JDBC in rewritten batches

Each is measured from the request to the last commit, the second time in its session. ``local``, ``pool`` and
``spark`` then complete the reload, so that the checked table has the staged rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Engine, make_url

import rebuild
from demo.reload.show import Timed
from peers import jars, kinds
from peers.spark import TYPES
from rebuild import KAFKA
from seekpoint.jobs.reload import LocalStager, Reload, Stager
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.spark import Env, SparkStager, read
from seekpoint.testing.servers.spark import start_spark
from setting import BATCH, DSN, PARALLELISM, RECORDS, URL, cpu
from subject import KIND, fresh_table, row

DATABASE = Env("BENCH_URL")
PIPELINE = "rebuild:pipeline"
SHARE = -(-RECORDS // PARALLELISM)  # records of one task: one for each slot, because a small one is mostly start-up
SAID = {
    "local": "LocalStager, this process",
    "pool": "LocalStager, processes",
    "spark": "SparkStager, COPY in tasks",
    "jdbc": "Spark's JDBC writer",
}


def stage(engine: Engine, stager: Stager) -> tuple[float, float]:
    """Reload the empty table by swap; returns the seconds of its staging, and of all later steps."""
    timed = Timed(stager)
    reload = Reload([PIPELINE], engine, KAFKA, stager=timed, range_records=SHARE)
    driver = reload.open(strategy="swap", reason="benchmark")
    began = time.monotonic()
    reload.run(driver)
    return timed.seconds, time.monotonic() - began - timed.seconds


def stager_of(mode: str, engine: Engine, spark: Any) -> Stager:
    """The stager of a mode."""
    if mode == "spark":
        return SparkStager(spark, KAFKA, database=DATABASE, range_records=SHARE)
    processes = PARALLELISM if mode == "pool" else 0
    return LocalStager(engine, DEFAULT_SCHEMA, KAFKA, Reload([PIPELINE], engine, KAFKA).sources, processes=processes)


def write(engine: Engine, spark: Any) -> float:
    """Write the records by Spark's JDBC writer, as its guide shows; returns the seconds."""
    from pyspark.sql import functions as f  # noqa: PLC0415 -- an extra

    fields = ", ".join(f"`{column}` {TYPES.get(type_, type_)}" for column, type_ in KIND.columns.items())
    server = make_url(URL)
    url = f"jdbc:postgresql://{server.host}:{server.port}/{server.database}?reWriteBatchedInserts=true&stringtype=unspecified"
    properties = {"user": server.username or "", "password": server.password or "", "batchsize": str(BATCH)}
    records = read(spark, engine, os.environ[rebuild.GROUP], kafka=KAFKA, range_records=SHARE)
    began = time.monotonic()
    decoded = records.select(f.from_json(f.decode("value", "UTF-8"), fields).alias("v")).select("v.*")
    decoded.write.mode("append").jdbc(url, KIND.name, properties=properties | {"driver": "org.postgresql.Driver"})
    return time.monotonic() - began


def main() -> None:
    """Stage twice; the second time counts."""
    mode = sys.argv[1]
    os.environ.setdefault(DATABASE.name, URL)
    with rebuild.ledger() as engine, ExitStack() as stack:
        spark = None
        if mode in {"spark", "jdbc"}:
            classpath = os.pathsep.join(map(str, jars.classpath("spark"))) if mode == "jdbc" else ""
            config = {"spark.jars": classpath.replace(os.pathsep, ","), "spark.driver.extraClassPath": classpath}
            spark = stack.enter_context(start_spark(f"local[{PARALLELISM}]", config if classpath else {}))
        for _ in range(2):
            fresh_table()
            rebuild.apply_all(engine, KIND)
            used, after = cpu(), {}
            if mode == "jdbc":
                seconds = write(engine, spark)
            else:
                seconds, behind = stage(engine, stager_of(mode, engine, spark))
                after = {"consolidated_and_swapped_seconds": round(behind, 2)}
            used = cpu() - used
    kinds.verify(KIND, DSN, RECORDS)
    more: dict[str, Any] = {"parallelism": PARALLELISM, **after}
    print(json.dumps(row("staging", SAID[mode], RECORDS, seconds, used, **more)), flush=True)


if __name__ == "__main__":
    main()
