"""The ledger's tables as DataFrames, and the planned bounds of a DataFrame of the source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from seekpoint.admin.spark_offsets import spark_json
from seekpoint.errors import ConfigError
from seekpoint.jobs.spark.explained import analyzed_text
from seekpoint.jobs.spark.micro_batch import planned, source_metadata
from seekpoint.jobs.spark.settings import Env, require_no_secret
from seekpoint.jobs.spark.source_options import DATABASE
from seekpoint.ledger.tables import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_READ = re.compile(r"RelationV2\[.*\] seekpoint")  # matches a read of the source in EXPLAIN


def ledger(spark: SparkSession, *, database: str = DATABASE, schema: str = DEFAULT_SCHEMA) -> DataFrame:
    """Each group's stored positions, one row per partition, and the reason if a partition is stopped.

    ``database`` names the environment variable with the database's URL, in the driver and the executors; ``schema`` is
    the ledger's schema. Each query reads the ledger's present rows.
    """
    return _table(spark, "ledger", database, schema)


def dead_letters(spark: SparkSession, *, database: str = DATABASE, schema: str = DEFAULT_SCHEMA) -> DataFrame:
    """The dead letters of all groups in every state, as complete records; parameters are those of :func:`ledger`."""
    return _table(spark, "dead_letters", database, schema)


def runs(spark: SparkSession, *, database: str = DATABASE, schema: str = DEFAULT_SCHEMA) -> DataFrame:
    """Reloads, verifications, batches and reprocesses, open and ended; parameters are those of :func:`ledger`."""
    return _table(spark, "runs", database, schema)


def bounds(frame: DataFrame) -> dict[str, str]:
    """The options ``startingOffsets`` and ``endingOffsets``, as Spark's JSON, that read the frame's records again.

    They are the offsets in the frame's plan: ``ledger``, ``latest`` or a time was resolved when the DataFrame was made.
    In the function of ``foreachBatch`` they are the micro-batch's offsets. Raises ConfigError for a stream, for a
    DataFrame of several reads, and for a DataFrame without the source's column ``offset``.
    """
    if frame.isStreaming:
        raise ConfigError("a stream has no bounds: call bounds() in the function of foreachBatch, with its DataFrame")
    if (batch := planned(frame)) is not None:
        return {"startingOffsets": spark_json(batch.starts), "endingOffsets": spark_json(batch.ends)}
    metadata = source_metadata(frame)
    explained = str(frame.sparkSession.sql("EXPLAIN EXTENDED SELECT 1 FROM {frame}", frame=frame).collect()[0][0])
    if len(_READ.findall(analyzed_text(explained)[0])) > 1:
        raise ConfigError(
            "the DataFrame is a union or a join of several reads, each with its own bounds: call bounds() with the "
            "DataFrame of each read"
        )
    return {name: metadata[name] for name in ("startingOffsets", "endingOffsets")}


def _table(spark: SparkSession, table: str, database: str, schema: str) -> DataFrame:
    require_no_secret(spark, Env(database), {})
    return source_frame(spark, {"table": table, "database": database, "ledgerSchema": schema})


def source_frame(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A DataFrame of the source with these options.

    Registers the source if Spark does not find it by name, because another module ``pyspark_*`` cannot be imported.
    """
    from pyspark_seekpoint import DefaultSource  # noqa: PLC0415 -- imports pyspark

    reader = spark.read.format(DefaultSource.name()).options(**options)
    try:
        return reader.load()
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
    spark.dataSource.register(DefaultSource)
    return reader.load()
