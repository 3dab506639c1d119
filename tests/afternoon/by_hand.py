"""What the steps are compared with: a consumer's loop, Spark's JDBC writer, Parquet and ``foreachBatch`` by hand."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
from confluent_kafka import Consumer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's own pages have it
from sqlalchemy import make_url

from afternoon.declared import TOPIC, tables
from afternoon.facts import COLUMNS
from afternoon.setting import DATABASE, Setting
from seekpoint.testing.servers.jars import locked_jars

LOCK = Path(__file__).parents[2] / "benchmarks/peers/locks/spark.jars"
#: Spark's source for Kafka needs a jar that not each registry has: the source of this library reads, without a group.
SOURCE = "seekpoint"
_FIELDS = (
    "n bigint, name string, big bigint, amount decimal(38, 18), at timestamp, day date, words string, note string, "
    "blob binary, numbers array<bigint>, nested string, flag boolean, ratio string, cents bigint"
)


def jdbc_settings() -> dict[str, str]:
    """Settings of a session that has Postgres' JDBC driver."""
    jars = [str(jar) for jar in locked_jars(LOCK)]
    return {"spark.jars": ",".join(jars), "spark.driver.extraClassPath": os.pathsep.join(jars)}


def consume(here: Setting, records: int) -> float:
    """Consume so many records, write them by COPY, and commit the offsets afterwards: at least once."""
    here.execute(tables("by_hand"))
    consumer = Consumer(
        {**here.kafka, "group.id": "by hand", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([TOPIC])
    began, done = monotonic(), 0
    with psycopg.connect(os.environ[DATABASE]) as connection:
        while done < records:
            messages = consumer.consume(1_000, 0.5)
            with connection.cursor().copy(f"COPY by_hand_entries ({', '.join(COLUMNS)}, part, pos) FROM STDIN") as copy:
                for message in messages:
                    if (value := message.value()) is not None:
                        copy.write_row((*_row(json.loads(value)), message.partition(), message.offset()))
            connection.commit()
            if messages:
                consumer.commit(asynchronous=False)
            done += len(messages)
    seconds = monotonic() - began
    consumer.close()
    return seconds


def _row(fields: dict[str, Any]) -> list[Any]:
    """The row's texts: blobs would stay base64, which takes as long to write."""
    return [json.dumps(value) if name == "nested" else value for name, value in fields.items()]


def _decoded(records: DataFrame) -> DataFrame:
    decoded = records.select("partition", "offset", F.from_json(F.col("value").cast("string"), _FIELDS).alias("v"))
    rows = decoded.where("v IS NOT NULL").select("v.*", F.col("partition").alias("part"), F.col("offset").alias("pos"))
    return rows.withColumn("ratio", F.col("ratio").cast("double"))


def _write(rows: DataFrame, table: str) -> None:
    server = make_url(os.environ[DATABASE])
    url = f"jdbc:postgresql://{server.host}:{server.port}/{server.database}?reWriteBatchedInserts=true&stringtype=unspecified"
    login = {"user": server.username or "", "password": server.password or "", "driver": "org.postgresql.Driver"}
    rows.write.mode("append").option("batchsize", 1_000).jdbc(url, table, properties=login)


def rebuild(spark: SparkSession, here: Setting) -> float:
    """Write all records to a new table by JDBC, and rename it: what is applied meanwhile is missing."""
    here.execute("DROP TABLE IF EXISTS by_hand_new; CREATE TABLE by_hand_new (LIKE by_hand_entries INCLUDING ALL)")
    began = monotonic()
    _write(_decoded(spark.read.format(SOURCE).options(**here.source).load()), "by_hand_new")
    here.execute("DROP TABLE by_hand_entries; ALTER TABLE by_hand_new RENAME TO by_hand_entries")
    return monotonic() - began


def export(spark: SparkSession, here: Setting) -> float:
    """Write all records to Parquet."""
    began = monotonic()
    records = spark.read.format(SOURCE).options(**here.source).load()
    records.write.mode("overwrite").parquet(str(here.folder / "by_hand"))
    return monotonic() - began


def query(spark: SparkSession, here: Setting, records_per_batch: int) -> tuple[float, int]:
    """``foreachBatch`` and JDBC in a stream whose checkpoint is deleted once; returns seconds, rows twice."""
    here.execute("TRUNCATE by_hand_entries")
    checkpoint = here.folder / "by_hand_checkpoint"
    options = {**here.source, "maxOffsetsPerTrigger": str(records_per_batch)}
    began = monotonic()
    for _ in range(2):
        shutil.rmtree(checkpoint, ignore_errors=True)
        writer = spark.readStream.format(SOURCE).options(**options).load().writeStream
        writer = writer.foreachBatch(lambda frame, _: _write(_decoded(frame), "by_hand_entries"))
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    twice = "DELETE FROM by_hand_entries a USING by_hand_entries b WHERE a.n = b.n AND a.ctid > b.ctid"
    return (monotonic() - began) / 2, here.execute(twice)
