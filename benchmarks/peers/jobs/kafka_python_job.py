"""Runs in kafka-python's environment: poll, (write,) commit, until every record was seen; then one line of JSON."""

from __future__ import annotations

import importlib
import json
import os
import time
from typing import Any

import psycopg

KafkaConsumer: Any = importlib.import_module("kafka").KafkaConsumer  # only in this script's own environment
JOB: dict[str, Any] = json.loads(os.environ["JOB"])


def main() -> None:
    """Run the loop."""
    consumer = KafkaConsumer(
        JOB["topic"],
        bootstrap_servers=JOB["brokers"],
        group_id=JOB["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=JOB["poll"],
    )
    database = psycopg.connect(JOB["dsn"]) if JOB["dsn"] else None
    columns, commit = JOB["columns"], consumer.commit if JOB["commit"] == "sync" else consumer.commit_async
    insert = f"INSERT INTO {JOB['topic']} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"
    while not (got := consumer.poll(timeout_ms=1000)):
        pass
    seen, polls, began, used = 0, 0, time.monotonic(), time.process_time()
    while True:
        if got:
            records = [record for part in got.values() for record in part]
            if database is not None:
                values = [json.loads(record.value) for record in records]
                with database.cursor() as cursor:
                    cursor.executemany(insert.encode(), [[value[c] for c in columns] for value in values])
                database.commit()
            commit()
            seen, polls = seen + len(records), polls + 1
        if seen >= JOB["records"]:
            break
        got = consumer.poll(timeout_ms=1000)
    report = {
        "records": seen,
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - used,
        "polls": polls,
        "positions": {str(p.partition): consumer.position(p) for p in sorted(consumer.assignment())},
    }
    consumer.close()
    print(json.dumps(report), flush=True)


main()
