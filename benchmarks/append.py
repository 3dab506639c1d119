"""The demo's pipeline: a Worker that streams into COPY, rows and offsets in one transaction. Exactly once."""

from __future__ import annotations

import secrets
import threading

from sqlalchemy import create_engine

from seekpoint import Append, Json, Pipeline, Worker, events, schema
from seekpoint.dev.demo.flights import TOPIC, Flight
from setting import BROKERS, RECORDS, URL, Clock, fresh_table


def main() -> None:
    """Run one worker until every record is committed."""
    fresh_table()
    schema.upgrade(create_engine(URL))
    clock, done, written = Clock(), threading.Event(), [0, 0]

    def observe(event: events.Event) -> None:
        match event:
            case events.ChunkRead():
                clock.start()
            case events.Committed():
                written[0] += event.records
                written[1] += 1
                if written[0] >= RECORDS:
                    done.set()

    pipeline = Pipeline(f"append-{secrets.token_hex(4)}", topics=TOPIC, value=Json(Flight), sinks=[Append("flights")])
    worker = Worker(pipeline, engine=URL, kafka={"bootstrap.servers": BROKERS}, observe=[observe])
    with worker.running():
        assert done.wait(600), f"only {written[0]} records after 600 s"
        clock.report("seekpoint", "Append, one worker", RECORDS, transactions=written[1])


main()
