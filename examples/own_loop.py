"""For programs with their own loop: only the ledger and the assignment, around a plain confluent-kafka consumer.

Counts words, exactly once: the counts and the offsets are one transaction. Run it with the ledger's tables in place
(``seekpoint db upgrade``) and a topic of text::

    DATABASE_URL=postgresql+psycopg://… KAFKA=localhost:9092 python examples/own_loop.py sentences
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, Message
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from seekpoint import Assignment, Fenced, Ledger, consumer_config
from seekpoint.errors import KafkaUnavailable, PartitionStopped

COUNT = text(
    "INSERT INTO words (word, seen) VALUES (:word, :seen) "
    "ON CONFLICT (word) DO UPDATE SET seen = words.seen + excluded.seen"
)


def count(tx: Connection, messages: Iterable[Message]) -> None:
    """Count these sentences' words; called after the offsets were advanced, in the same transaction."""
    words = Counter(word for message in messages for word in (message.value() or b"").decode().split())
    if words:
        tx.execute(COUNT, [{"word": word, "seen": seen} for word, seen in sorted(words.items())])


def run(
    engine: Engine,
    kafka: Mapping[str, Any],
    topic: str,
    stopping: threading.Event,
    *,
    group: str = "words",
    schema: str = "seekpoint",
) -> None:
    """Read, count, commit, until ``stopping`` is set."""
    config = consumer_config(kafka, group=group)  # sets what exactly once depends on
    consumer = Consumer(config)
    ledger = Ledger(engine, group, schema=schema)
    with Assignment(consumer, ledger, [topic], kafka=config) as held:
        while not stopping.is_set():
            try:
                messages = held.accept_poll(held.read(500, 0.2))  # claims, activates, drops stale messages
                if not messages:
                    continue
                with engine.begin() as tx:
                    moved = held.advance(tx, messages)  # first: a fenced worker does no work
                    count(tx, messages)
            except PartitionStopped as stop:  # its topic was deleted, or created again
                print(stop, file=sys.stderr)
                held.stop(stop.partition, stop)
                held.resync()
            except (Fenced, KafkaUnavailable, OperationalError) as error:
                print(f"continuing from the ledger's positions: {error}", file=sys.stderr)
                held.resync()  # refused, or the answer to COMMIT was lost: only the ledger knows
                stopping.wait(0.5)
            else:
                held.accept(moved)  # only after COMMIT: until then the old claims are valid


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    engine = create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True)
    with engine.begin() as tx:
        tx.execute(text("CREATE TABLE IF NOT EXISTS words (word text PRIMARY KEY, seen bigint NOT NULL)"))
    run(engine, {"bootstrap.servers": os.environ["KAFKA"]}, sys.argv[1], stopping)


if __name__ == "__main__":
    main()
