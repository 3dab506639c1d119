"""Starts a Postgres and a Kafka broker together, and finds the pair of ``seekpoint dev``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from seekpoint.errors import ConfigError
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
        with ExitStack() as servers:
            servers.callback(self.postgres.close)
            servers.callback(self.kafka.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_pair(
    *,
    own: bool = False,
    settings: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    proxied: tuple[int, int] | None = None,
    progress: Callable[[str], None] = to_stderr,
) -> Pair:
    """Start both servers, and return them when both serve; if one fails, the other is removed.

    Passes ``own`` to both, ``settings`` to :func:`.start_postgres`, and ``properties`` and ``proxied`` to
    :func:`.start_kafka`. Raises their errors.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        broker = pool.submit(start_kafka, own=own, properties=properties, proxied=proxied, progress=progress)
        database = pool.submit(start_postgres, settings, own=own)
        try:
            return Pair(database.result(), broker.result())
        except BaseException:
            if broker.exception() is None:
                broker.result().close()
            if database.exception() is None:
                database.result().close()
            raise


_FILE = "pair.json"  # file in a temporary folder of the process that runs the pair, removed at its end
PAIR_FOLDER = "dev"  # the folder's name, for `seekpoint.testing.servers.process.Folder`


class RunningPair(msgspec.Struct, frozen=True):
    """The servers of one ``seekpoint dev``. ``database_url`` holds a password."""

    database_url: str
    kafka_config: str
    pid: int


def announce_pair(folder: Path, database_url: str, bootstrap: str) -> RunningPair:
    """Write the pair's Kafka configuration and its announcement into the folder."""
    config = folder / "kafka.properties"
    config.write_text(f"bootstrap.servers={bootstrap}\n", encoding="utf-8")
    pair = RunningPair(database_url, str(config), os.getpid())
    unfinished = folder / f"{_FILE}.unfinished"
    unfinished.write_bytes(msgspec.json.encode(pair))
    unfinished.rename(folder / _FILE)
    return pair


def find_pair() -> RunningPair | None:
    """The pair of this user's ``seekpoint dev``, None if there is none. Raises ConfigError if several run."""
    files = Path(tempfile.gettempdir()).glob(f"seekpoint-{PAIR_FOLDER}-*/{_FILE}")
    pairs = [pair for file in files if (pair := _read(file)) is not None]
    if len(pairs) > 1:
        raise ConfigError(
            f"`seekpoint dev` runs {len(pairs)} times (processes {', '.join(str(pair.pid) for pair in pairs)}): "
            "stop all but one, or copy the two export lines that yours has printed"
        )
    return pairs[0] if pairs else None


def _read(file: Path) -> RunningPair | None:
    """Read an announcement; None if another user wrote it, or its process has ended."""
    try:
        if file.parent.stat().st_uid != os.getuid():
            return None
        pair = msgspec.json.decode(file.read_bytes(), type=RunningPair)
        os.kill(pair.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return pair
