"""Where the pair of ``seekpoint dev`` is announced, so that other commands of the same user find it.

The announcement is a file in a temporary folder of the process that runs the pair: it goes when that process goes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from seekpoint.errors import ConfigError

_FILE = "pair.json"
FOLDER = "dev"  # the folder's name, as `seekpoint.testing.servers.process.Folder` takes it


class RunningPair(msgspec.Struct, frozen=True):
    """The servers of one ``seekpoint dev``. ``database_url`` holds a password."""

    database_url: str
    kafka_config: str
    pid: int


def announce(folder: Path, database_url: str, bootstrap: str) -> RunningPair:
    """Write the pair's Kafka configuration and its announcement into the folder."""
    config = folder / "kafka.properties"
    config.write_text(f"bootstrap.servers={bootstrap}\n", encoding="utf-8")
    pair = RunningPair(database_url, str(config), os.getpid())
    unfinished = folder / f"{_FILE}.unfinished"
    unfinished.write_bytes(msgspec.json.encode(pair))
    unfinished.rename(folder / _FILE)
    return pair


def find() -> RunningPair | None:
    """The pair that this user's ``seekpoint dev`` runs, None without one. Raises ConfigError where several run."""
    files = Path(tempfile.gettempdir()).glob(f"seekpoint-{FOLDER}-*/{_FILE}")
    pairs = [pair for file in files if (pair := _read(file)) is not None]
    if len(pairs) > 1:
        raise ConfigError(
            f"`seekpoint dev` runs {len(pairs)} times (processes {', '.join(str(pair.pid) for pair in pairs)}): "
            "stop all but one, or copy the two export lines that yours has printed"
        )
    return pairs[0] if pairs else None


def _read(file: Path) -> RunningPair | None:
    """The announcement; None where it is another user's, or its process has ended."""
    try:
        if file.parent.stat().st_uid != os.getuid():
            return None
        pair = msgspec.json.decode(file.read_bytes(), type=RunningPair)
        os.kill(pair.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return pair
