"""The plain loop: consume 5,000, decode, COPY, commit the database, then commit Kafka. At least once.

As its documentation recommends: manual commits after processing, ``fetch.queue.backoff.ms`` lowered like ours.
"""

from __future__ import annotations

import secrets
from operator import attrgetter

import msgspec
import psycopg
from confluent_kafka import Consumer

from seekpoint.dev.demo.flights import TOPIC, Flight
from setting import BROKERS, COLUMNS, DSN, RECORDS, Clock, fresh_table

BATCH = 5_000


def main() -> None:
    """Consume and write until every record is there."""
    fresh_table()
    decode, row = msgspec.json.Decoder(Flight).decode, attrgetter(*COLUMNS)
    consumer = Consumer(
        {
            "bootstrap.servers": BROKERS,
            "group.id": f"loop-{secrets.token_hex(4)}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([TOPIC])
    clock, done = Clock(), 0
    with psycopg.connect(DSN) as connection:
        while done < RECORDS:
            messages = [m for m in consumer.consume(BATCH, 0.2) if m.error() is None]
            if not messages:
                continue
            clock.start()
            with connection.cursor() as cursor, cursor.copy(f"COPY flights ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for message in messages:
                    copy.write_row(row(decode(message.value() or b"")))
            connection.commit()
            consumer.commit(asynchronous=False)
            done += len(messages)
    clock.report("loop", f"consume {BATCH}, COPY, commit both", RECORDS)
    consumer.close()


main()
