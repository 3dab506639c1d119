"""Settings for a Java that lives for seconds, and as a script the archives of classes with which Kafka and Spark start.

Half of such a Java's processor time would be for its optimizing compiler. Of the rest, loading classes takes a third in
a broker and half in a session of Spark: with the archives, they start with that much less.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:cds=off -Xlog:cds+dynamic=off"
_KAFKA, _SPARK = (Path(sys.prefix) / f"{name}-classes.jsa" for name in ("kafka", "spark"))


def _with(archive: Path) -> str:
    """Java ignores an archive that another version of Java made, or that is of other jars."""
    return f" -XX:SharedArchiveFile={archive}" if archive.exists() else ""


#: The driver's options come after all others, so that Spark has its own archive.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": _QUICK + _with(_KAFKA), "SPARK_SUBMIT_OPTS": _with(_SPARK)}


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
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        while query.lastProgress is None:
            query.awaitTermination(1)
        query.stop()
    spark.stop()


def archive_spark() -> None:
    """Java writes the archive when it ends. One that cannot is no error: its sessions start slower."""
    import pyspark

    from seekpoint.testing.servers.spark import java_home

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]", __file__, "use"],
            env={
                **os.environ,
                "JAVA_HOME": str(java_home(Path(folder))),
                "JDK_JAVA_OPTIONS": _QUICK,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={_SPARK}",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=True,
        )


def archive_kafka() -> None:
    """The broker's Java writes it, which ends last: that takes more than the half minute that ``stop`` would wait."""
    from seekpoint.testing.servers.kafka import start_kafka

    os.environ["JDK_JAVA_OPTIONS"] = f"{_QUICK} -XX:ArchiveClassesAtExit={_KAFKA}"
    with start_kafka(own=True) as kafka:
        os.kill(kafka.pid, signal.SIGTERM)
        while kafka.running:
            time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:]:
        use_spark()
    else:
        archive_spark()
        archive_kafka()
