"""Makes the archives of classes with which the Javas of tests start (``support/quick_java.py``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.quick_java import KAFKA, QUICK, SPARK
from support.waiting import until


def use_spark() -> None:
    """Load the classes of a session, a shuffle, a read by Python and a stream."""
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    class Numbers(DataSource, DataSourceReader):
        def schema(self) -> str:
            return "number bigint"

        def reader(self, schema: StructType) -> DataSourceReader:
            return self

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (1,)

    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("Numbers").load()
    numbers.join(spark.range(9).withColumnRenamed("id", "number"), "number").groupBy("number").count().collect()
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = stream.writeStream.foreachBatch(lambda frame, _: frame.show())
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def archive_spark() -> None:
    """Java writes it when it ends, for longer than ``start_spark`` would wait. One that cannot goes without."""
    import pyspark

    from seekpoint.testing.servers.spark import java_home

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]", __file__, "use"],
            env={
                **os.environ,
                "JAVA_HOME": str(java_home(Path(folder))),
                "JDK_JAVA_OPTIONS": QUICK,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={SPARK}",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=True,
        )


def archive_kafka() -> None:
    """The broker's Java writes it, which ends last: that takes more than the half minute that ``stop`` would wait."""
    from seekpoint.testing.servers.kafka import start_kafka

    os.environ["JDK_JAVA_OPTIONS"] = f"{QUICK} -XX:ArchiveClassesAtExit={KAFKA}"
    with start_kafka(own=True) as kafka:
        os.kill(kafka.pid, signal.SIGTERM)
        until(lambda: not kafka.running, "the end of the broker's Java", 600)


if __name__ == "__main__":
    if sys.argv[1:]:
        use_spark()
    else:
        print("archives of the classes of Spark and Kafka, with which tests start faster: a minute or more", flush=True)
        archive_spark()
        archive_kafka()
