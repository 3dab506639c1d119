"""Spark's JDBC writer, fed from a DataFrame with Kafka's columns that is cached in memory: Kafka is not measured.

Spark's Kafka source needs a jar that the registry did not have (the message of ``kafka-append``); for the writer any
DataFrame with the columns of that source will do. JSON is decoded inside the measured time. Both tables.
"""

from __future__ import annotations

import base64
import json
import subprocess
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from peers import jars, kinds, venvs
from peers.processes import answer
from peers.trial import Measured, Run, SkippedError, Trial, play
from seekpoint.testing.servers.java import find_java
from seekpoint.testing.servers.process import Folder

TYPES = {"numeric": "decimal(12,2)", "text": "string", "timestamp with time zone": "timestamp"}


def dump(trial: Trial, path: Path) -> None:
    """The topic as lines of JSON, with the columns of Spark's Kafka source; key and value in base64."""
    ends = kinds.ends(trial.kind, trial.brokers)
    consumer = Consumer({"bootstrap.servers": trial.brokers, "group.id": trial.group("dump"), "log_level": 0})
    consumer.assign([TopicPartition(trial.kind.name, partition, 0) for partition in ends])
    left = sum(ends.values())
    with path.open("w", encoding="ascii") as file:
        while left:
            for message in consumer.consume(min(left, 1000), 1.0):
                if (problem := message.error()) is not None:
                    raise RuntimeError(problem)
                line = {
                    "key": base64.b64encode(message.key() or b"").decode(),
                    "value": base64.b64encode(message.value() or b"").decode(),
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "timestamp": message.timestamp()[1],
                }
                file.write(json.dumps(line) + "\n")
                left -= 1
    consumer.close()


def run(trial: Trial, *, upsert: bool) -> Measured:
    """Write the DataFrame by a session that has already written it to another table."""
    java = find_java()
    if (
        "jdk.incubator.vector@"
        not in subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
    ):
        raise SkippedError(
            "Spark needs a complete JDK, with the module jdk.incubator.vector: put one on PATH or JAVA_HOME"
        )
    kinds.fresh(trial.kind, trial.dsn, key=upsert, warm=True)
    driver = jars.classpath("spark")
    folder = Folder("peer-spark")
    try:
        dump(trial, folder.path / "records.json")
        settings = {
            "path": str(folder.path / "records.json"),
            "folder": str(folder.path),
            "jars": [str(jar) for jar in driver],
            "url": trial.jdbc,
            "database": trial.database,
            "dsn": trial.dsn,
            "table": trial.kind.name,
            "fields": {column: TYPES.get(type_, type_) for column, type_ in trial.kind.columns.items()},
            "batch": trial.batch,
            "parallelism": trial.parallelism,
            "upsert": upsert,
        }
        report = answer("spark", "spark_job.py", settings, JAVA_HOME=str(java.resolve().parent.parent))
    finally:
        folder.close()
    kinds.verify(trial.kind, trial.dsn, trial.records)
    return Measured(
        venvs.version("spark", "pyspark"),
        report["seconds"],
        trial.records,
        "at least once per task; no offsets",
        None,
        {
            "batchsize": trial.batch,
            "master": f"local[{trial.parallelism}]",
            "reWriteBatchedInserts": True,
            "source": "a cached DataFrame with Kafka's columns",
            "warmed": "wrote the same rows before, in the same session",
            "recommended_by": "Spark SQL guide: JDBC To Other Databases (batchsize, numPartitions); pgJDBC",
        },
    )


def from_kafka(_: Trial) -> Measured:
    """Skipped: a jar is missing."""
    raise SkippedError(
        "Spark's Kafka source asks for the jar spark-token-provider-kafka, which the registry did not have: "
        "the other modes measure the writer, from a DataFrame with that source's columns"
    )


MODES: dict[str, Run] = {
    "append": partial(run, upsert=False),
    "upsert": partial(run, upsert=True),
    "kafka-append": from_kafka,
}

if __name__ == "__main__":
    play("spark", MODES)
