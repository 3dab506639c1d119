"""The source's table, its copy, and the pipeline in between."""

from __future__ import annotations

from seekpoint import DeadLetterLimits, Pipeline, Upsert
from seekpoint.codecs import Debezium

TOPIC, PARTITIONS = "cdc.shop.customers", 4
_COLUMNS = {
    "id": "bigint PRIMARY KEY",
    "name": "text NOT NULL",
    "balance": "numeric(12, 2)",
    "seen": "timestamp",
    "changed": "timestamptz NOT NULL",
    "tags": "text[]",
    "body": "text",  # too long to be in the row: Postgres does not log it where an update leaves it as it is
}
COLUMNS = ", ".join(_COLUMNS)
DEFINITION = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())

SCHEMAS = f"""
    CREATE SCHEMA shop;
    CREATE TABLE shop.customers ({DEFINITION});
    ALTER TABLE shop.customers ALTER body SET STORAGE EXTERNAL;
    CREATE SCHEMA copied;
    CREATE TABLE copied.customers ({DEFINITION}, kafka_offset bigint);
"""

pipeline = Pipeline(
    "demo-cdc",
    topics=TOPIC,
    value=Debezium(),
    key=Debezium(),
    on_poison="dead_letter",  # of changes that come again: an update in part of a row that was deleted in between
    dead_letter_limits=DeadLetterLimits(ratio=None, consecutive=None),
    sinks=[
        Upsert("copied.customers", key=["id"], columns=[*_COLUMNS], changes=True, offset_column="kafka_offset"),
    ],
)
