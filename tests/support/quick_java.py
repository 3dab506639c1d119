"""Settings for a Java that lives for seconds, and as a script the archive of classes with which Spark starts.

Half of such a Java's processor time would be for its optimizing compiler, and more than half of the rest for loading
the classes of Spark's 250 jars: with the archive a session starts with 4 s of processor time instead of 10.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Java ignores it if it was made by another version of Java or from other jars.
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
QUICK_JAVA = {"JDK_JAVA_OPTIONS": _QUICK}
if ARCHIVE.exists():
    QUICK_JAVA["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"


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


def archive() -> None:
    """Write ``ARCHIVE``: Java does so when it ends. Sessions of a Java that cannot start slower."""
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
                "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=True,
        )


if __name__ == "__main__":
    use_spark() if sys.argv[1:] else archive()
