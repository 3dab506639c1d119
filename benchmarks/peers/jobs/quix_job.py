"""Runs in Quix Streams' environment: the topic into the table, until it is ended."""

from __future__ import annotations

import json
import os
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]  # only in this script's own environment
from quixstreams.sinks.community.postgresql import PostgreSQLSink  # type: ignore[import-not-found]

JOB: dict[str, Any] = json.loads(os.environ["JOB"])


def main() -> None:
    """Run the application."""
    database = JOB["database"]
    application = Application(
        broker_address=JOB["brokers"],
        consumer_group=JOB["group"],
        auto_offset_reset="earliest",
        commit_interval=5.0,
        commit_every=JOB["batch"],
        loglevel="WARNING",
        consumer_extra_config={"fetch.queue.backoff.ms": 10},
    )
    keyed = {"primary_key_columns": "id", "upsert_on_primary_key": True} if JOB["upsert"] else {}
    sink = PostgreSQLSink(
        host=database["host"],
        port=int(database["port"]),
        dbname=database["dbname"],
        user=database["user"],
        password=database["password"],
        table_name=JOB["topic"],
        schema_auto_update=False,
        include_metadata=False,
        **keyed,
    )
    application.dataframe(application.topic(JOB["topic"], value_deserializer="json")).sink(sink)
    application.run()


main()
