"""The hand-written loop: consume, decode, COPY, commit the database, then commit Kafka. At least once.

Manual commits after processing, as the client's documentation recommends; ``fetch.queue.backoff.ms`` as in the library.
"""

from __future__ import annotations

import secrets
from operator import attrgetter

import msgspec
import psycopg
from confluent_kafka import Consumer

from setting import BATCH, BROKERS, DSN, LIMIT
from subject import COLUMNS, COPY, KIND, Clock, fresh_table


def main() -> None:
    """Consume and write until every record is there."""
    fresh_table()
    decode, row = msgspec.json.Decoder(KIND.record).decode, attrgetter(*COLUMNS)
    consumer = Consumer(
        {
            "bootstrap.servers": BROKERS,
            "group.id": f"loop-{secrets.token_hex(4)}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([KIND.name])
    clock, done, transactions = Clock(), 0, 0
    with psycopg.connect(DSN) as connection:
        while done < LIMIT:
            messages = [m for m in consumer.consume(min(BATCH, LIMIT - done), 0.2) if m.error() is None]
            if not messages:
                continue
            clock.start()
            with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                for message in messages:
                    copy.write_row(row(decode(message.value() or b"")))
            connection.commit()
            consumer.commit(asynchronous=False)
            done += len(messages)
            transactions += 1
    clock.report("loop", "consume, COPY, commit both", transactions=transactions)
    consumer.close()


if __name__ == "__main__":
    main()
