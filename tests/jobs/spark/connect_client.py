"""A client of Spark Connect in a process of its own, where no classic session is: it prints what came of each call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import create_engine

import seekpoint.spark as seekpoint_spark
from jobs.spark.orders import DATABASE
from seekpoint.jobs.export import Archive, Export
from seekpoint.ledger import Ledger
from seekpoint.spark import SparkWriter


def calls(spark: SparkSession, order: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """The calls by name; each returns something for JSON."""
    kafka, schema, group = {"bootstrap.servers": order["brokers"]}, order["schema"], order["group"]
    engine = create_engine(DATABASE.value())
    ledger = {"kafka": kafka, "database": DATABASE, "schema": schema}
    source = {
        "kafka.bootstrap.servers": order["brokers"],
        "group": group,
        "database": DATABASE.name,
        "ledgerSchema": schema,
    }

    def load() -> Any:
        return spark.read.format("seekpoint").options(**source).load()

    def read() -> Any:
        return seekpoint_spark.read(spark, Ledger(engine, group, schema=schema), group, kafka=kafka).count()

    def export() -> int:
        archive = Archive(order["archive"], engine, schema=schema)
        return Export(engine, kafka, archive, group, writer=SparkWriter(spark, kafka)).run().records

    def verify() -> list[int]:
        tables = seekpoint_spark.verify(spark, order["sales"], **ledger).report.tables
        return [table.missing + table.extra + table.different for table in tables]

    return {
        "run": lambda: seekpoint_spark.run(spark, order["sales"], available_now=True, **ledger).records,
        "load": lambda: load().count(),
        "read": read,
        "bounds": lambda: seekpoint_spark.bounds(load()),
        "ledger": lambda: seekpoint_spark.ledger(spark, database=DATABASE.name, schema=schema).count(),
        "export": export,
        "verify": verify,
        "reload": lambda: bool(seekpoint_spark.reload(spark, order["next"], **ledger).cut_over),
        "foreach_batch": lambda: str(seekpoint_spark.foreach_batch(order["sales"], spark=spark)),
    }


def main(order: dict[str, Any]) -> None:
    """Call one after the other, and print a line of JSON for each: its name, and its result or its error."""
    spark = SparkSession.builder.remote(order["remote"]).getOrCreate()
    try:
        for name, call in calls(spark, order).items():
            try:
                print(json.dumps([name, call()]), flush=True)
            except Exception as error:  # noqa: BLE001 -- the test compares it
                print(json.dumps([name, f"{type(error).__name__}: {error}"]), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(os.environ["ORDER"]))
