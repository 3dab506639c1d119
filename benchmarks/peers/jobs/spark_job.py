"""Runs in Spark's environment: decode the cached records, write them through JDBC; then one line of JSON."""

from __future__ import annotations

import importlib
import json
import os
import time
from typing import Any

# By name, because the environment in which types are checked may have another pyspark, or none.
sql: Any = importlib.import_module("pyspark.sql")
f: Any = importlib.import_module("pyspark.sql.functions")
JOB: dict[str, Any] = json.loads(os.environ["JOB"])
KAFKA = "key string, value string, topic string, partition int, offset bigint, timestamp bigint"


def session() -> Any:
    """One JVM with ``parallelism`` slots."""
    return (
        sql.SparkSession.builder.master(f"local[{JOB['parallelism']}]")
        .appName("peer")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", JOB["folder"])
        .config("spark.sql.warehouse.dir", JOB["folder"])
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", ",".join(JOB["jars"]))
        .config("spark.driver.extraClassPath", os.pathsep.join(JOB["jars"]))
        .getOrCreate()
    )


def write(records: Any, table: str) -> None:
    """Decode and write; an upsert goes through a staging table, as documented for foreachBatch."""
    schema = ", ".join(f"`{column}` {type_}" for column, type_ in JOB["fields"].items())
    decoded = records.select(f.from_json(f.decode("value", "UTF-8"), schema).alias("v")).select("v.*")
    database = JOB["database"]
    properties = {"user": database["user"], "password": database["password"], "driver": "org.postgresql.Driver"}
    properties["batchsize"] = str(JOB["batch"])
    target = f"{table}_stage" if JOB["upsert"] else table
    decoded.write.mode("append").jdbc(JOB["url"], target, properties=properties)
    if JOB["upsert"]:
        columns = ", ".join(JOB["fields"])
        changes = ", ".join(f"{c} = excluded.{c}" for c in JOB["fields"] if c != "id")
        merge = (
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {target} ON CONFLICT (id) DO UPDATE SET {changes}"
        )
        execute(merge)


def execute(*statements: str) -> None:
    """Run the statements through Spark's driver: this environment has no other."""
    jvm = sql.SparkSession.getActiveSession()._jvm  # noqa: SLF001 -- the only way to the driver from here
    database = JOB["database"]
    login = jvm.java.util.Properties()
    login.setProperty("user", database["user"])
    login.setProperty("password", database["password"])
    connection = jvm.org.postgresql.Driver().connect(JOB["url"], login)
    for statement in statements:
        connection.createStatement().execute(statement)
    connection.close()


def main() -> None:
    """Cache, warm up, measure."""
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    lines = spark.read.schema(KAFKA).json(JOB["path"])
    binary = lines.withColumn("key", f.unbase64("key")).withColumn("value", f.unbase64("value"))
    records = binary.repartition(JOB["parallelism"]).cache()
    records.count()
    table = JOB["table"]
    if JOB["upsert"]:
        execute(
            *(f"CREATE UNLOGGED TABLE {name}_stage (LIKE {name})" for name in (table, f"{table}_warm")),
        )
    write(records, f"{table}_warm")
    began = time.monotonic()
    write(records, table)
    seconds = time.monotonic() - began
    if JOB["upsert"]:
        execute(f"DROP TABLE {table}_stage, {table}_warm_stage")
    spark.stop()
    print(json.dumps({"seconds": seconds}), flush=True)


main()
