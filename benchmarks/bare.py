"""The bare streamed loop: written by hand, without the library, for speed. Exactly once as long as nothing fails.

One transaction per BENCH_BATCH records. While its COPY is open, chunks of 500 are consumed, decoded and written, so
that the server works on one chunk while the next is decoded. The offsets are rows of its own table, updated in the same
transaction, and read back when partitions are assigned. It leaves out what the library adds: a fence against a second
owner, the check for a recreated topic, records that fail, unknown commits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, TopicPartition

from setting import BATCH, BROKERS, DSN, LIMIT
from subject import COLUMNS, COPY, KIND, Clock, fresh_table

CHUNK = 500  # records: small chunks stay in the processor's cache
WAIT = 0.2  # seconds


class Loop:
    """The loop's consumer and connection, and the positions that its transaction will store."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._decode, self._row = msgspec.json.Decoder(KIND.record).decode, attrgetter(*COLUMNS)
        self._next: dict[int, int] = {}
        connection.execute("DROP TABLE IF EXISTS bare_offset")
        connection.execute('CREATE TABLE bare_offset ("partition" int PRIMARY KEY, next_offset bigint NOT NULL)')
        connection.commit()
        self._consumer = Consumer(
            {
                "bootstrap.servers": BROKERS,
                "group.id": f"bare-{secrets.token_hex(4)}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
            }
        )
        self._consumer.subscribe([KIND.name], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Read from the positions in the table."""
        for partition in partitions:
            self._connection.execute(
                "INSERT INTO bare_offset VALUES (%s, 0) ON CONFLICT DO NOTHING", [partition.partition]
            )
        stored = dict(self._connection.execute('SELECT "partition", next_offset FROM bare_offset').fetchall())
        self._connection.commit()
        consumer.assign(
            [TopicPartition(KIND.name, partition.partition, stored[partition.partition]) for partition in partitions]
        )

    def chunk(self, most: int) -> list[Any]:
        """The messages that are there now, or arrive within WAIT seconds."""
        return [m for m in self._consumer.consume(most, WAIT) if m.error() is None]

    def write(self, first: list[Any], most: int) -> int:
        """Write at most ``most`` records in one transaction, from this chunk on; returns how many."""
        written = 0
        with self._connection.cursor() as cursor:
            with cursor.copy(COPY) as copy:
                for chunk in self._chunks(first, most):
                    decode, row, write_row = self._decode, self._row, copy.write_row
                    for message in chunk:
                        write_row(row(decode(message.value())))
                    for message in chunk:
                        self._next[message.partition()] = message.offset() + 1
                    written += len(chunk)
            cursor.execute(
                "UPDATE bare_offset o SET next_offset = n.next_offset"
                ' FROM unnest(%s::int[], %s::bigint[]) n ("partition", next_offset)'
                ' WHERE o."partition" = n."partition"',
                [list(self._next), list(self._next.values())],
            )
        self._connection.commit()
        self._next.clear()
        return written

    def _chunks(self, first: list[Any], most: int) -> Iterator[list[Any]]:
        left, chunk = most, first
        while chunk:
            yield chunk
            left -= len(chunk)
            chunk = self.chunk(min(CHUNK, left)) if left else []

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def main() -> None:
    """Move every record."""
    fresh_table()
    clock, done, transactions = Clock(), 0, 0
    with psycopg.connect(DSN) as connection:
        loop = Loop(connection)
        while done < LIMIT:
            most = min(BATCH, LIMIT - done)
            if first := loop.chunk(min(CHUNK, most)):
                clock.start()
                done += loop.write(first, most)
                transactions += 1
        clock.report("bare", "streamed COPY, offsets beside the rows", transactions=transactions)
        loop.close()


if __name__ == "__main__":
    main()
