"""Runs in Pathway's environment: the topic into the table, until it is ended."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pathway as pw  # type: ignore[import-not-found]  # only in this script's own environment

JOB: dict[str, Any] = json.loads(os.environ["JOB"])
TYPES = {"bigint": int, "integer": int, "smallint": int}


def main() -> None:
    """Run the dataflow."""
    columns: dict[str, str] = JOB["columns"]
    fields = {name: pw.column_definition(dtype=TYPES.get(type_, str) | None) for name, type_ in columns.items()}
    fields["event_id"] = pw.column_definition(dtype=int)
    source = pw.io.kafka.read(
        {
            "bootstrap.servers": JOB["brokers"],
            "group.id": JOB["group"],
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": "10",
        },
        topic=JOB["topic"],
        schema=pw.schema_builder(fields),
        format="json",
        json_field_paths={"event_id": "/id"},
        mode="streaming",
        autocommit_duration_ms=JOB["autocommit"],
    )
    converted = {}
    for name, type_ in columns.items():
        if type_ == "numeric":
            converted[name] = pw.cast(float, pw.unwrap(source[name]))
        elif type_.startswith("timestamp"):
            converted[name] = pw.unwrap(source[name]).dt.strptime(JOB["times"]).dt.to_utc("UTC")
    rows = source.with_columns(**converted)
    database = JOB["database"]
    settings = {key: database[key] for key in ("host", "port", "dbname", "user", "password")}
    keyed = {"output_table_type": "snapshot", "primary_key": [rows.event_id]} if JOB["snapshot"] else {}
    pw.io.postgres.write(rows, settings, JOB["topic"], max_batch_size=JOB["batch"], **keyed)
    print("RUN", time.time(), flush=True)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


main()
