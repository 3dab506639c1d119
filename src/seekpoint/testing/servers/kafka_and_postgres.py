"""The pair that Seekpoint works between, started at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from seekpoint.testing.servers.jars import to_stderr
from seekpoint.testing.servers.kafka import KafkaServer, start_kafka
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres


@dataclass(frozen=True)
class Pair:
    """A Postgres and a Kafka broker, removed at the end of the ``with`` block or of the process."""

    postgres: PostgresServer
    kafka: KafkaServer

    def describe(self) -> str:
        """Both servers in one line, for headers and reports."""
        return f"{self.postgres.describe()}, {self.kafka.describe()}"

    def close(self) -> None:
        """Remove both with their data."""
        with ExitStack() as both:
            both.callback(self.postgres.close)
            both.callback(self.kafka.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_pair(
    *,
    own: bool = False,
    settings: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = to_stderr,
) -> Pair:
    """Start both servers, and return them when both serve; if one fails, the other is removed.

    ``own``, ``settings`` (Postgres') and ``properties`` (Kafka's) are those of
    :func:`.start_postgres` and :func:`.start_kafka`, and so are the errors.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        broker = pool.submit(start_kafka, own=own, properties=properties, progress=progress)
        database = pool.submit(start_postgres, settings, own=own)
        try:
            return Pair(database.result(), broker.result())
        except BaseException:
            if broker.exception() is None:
                broker.result().close()
            if database.exception() is None:
                database.result().close()
            raise
