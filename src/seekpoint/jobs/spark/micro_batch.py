"""The ranges of a stream's micro-batch, in a file that the source's process writes and the driver on that machine
reads.

Spark passes only rows to the function of ``foreachBatch``, and a range may have no rows. The file's path is in the
metadata of the column ``offset``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

import msgspec

from seekpoint.errors import ConfigError
from seekpoint.kafka.ranges import Range
from seekpoint.records import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM = "stream"
"""The key of the file's path in the metadata of the column ``offset``."""


class MicroBatch(msgspec.Struct, frozen=True):
    """A planned micro-batch: one range per partition. ``whole``: it has all partitions of the topics.

    ``kafka`` is the result of :func:`portable`.
    """

    ranges: Sequence[Range]
    whole: bool
    kafka: dict[str, Any]

    @property
    def starts(self) -> Mapping[Partition, int]:
        """The start of each partition's range."""
        return {range_.partition: range_.start for range_ in self.ranges}

    @property
    def ends(self) -> Mapping[Partition, int]:
        """The end of each partition's range."""
        return {range_.partition: range_.end for range_ in self.ranges}


def new_path() -> str:
    """A new path for the plans of one stream."""
    return str(Path(gettempdir()) / f"seekpoint-stream-{uuid4().hex}.json")


class MicroBatches:
    """Stores the latest micro-batch of a stream in a file, which this process locks until it ends."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: BinaryIO | None = None

    def store(self, planned: MicroBatch) -> None:
        """Store a micro-batch. Raises ConfigError if another query uses the file."""
        file = self._file = self._file or self._taken()
        file.seek(0)
        file.write(msgspec.json.encode(planned))
        file.truncate()
        file.flush()

    def _taken(self) -> BinaryIO:
        while True:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise ConfigError(
                    "two queries read one streaming DataFrame: load a DataFrame for each, "
                    'spark.readStream.format("seekpoint")'
                ) from None
            if self._is_in_place(file):
                return file
            # A query that ended between open and flock has removed this file: the driver would not find a plan in it.
            file.close()

    def _is_in_place(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def end(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def planned(frame: DataFrame) -> MicroBatch | None:
    """The micro-batch that this DataFrame reads; None for a DataFrame of a batch read.

    Raises ConfigError for a DataFrame without the source's column ``offset``.
    """
    path = source_metadata(frame).get(STREAM)
    if path is None or not Path(path).exists():
        return None
    return msgspec.json.decode(Path(path).read_bytes(), type=MicroBatch)


def take_plan(path: str) -> MicroBatch | None:
    """Return and remove the plan that a stream has stored since the last call; None without a new one."""
    if not Path(path).exists():
        return None
    with Path(path).open("r+b") as file:
        stored = file.read()
        file.truncate(0)
    return msgspec.json.decode(stored, type=MicroBatch) if stored else None


def source_metadata(frame: DataFrame) -> dict[str, Any]:
    """The source's metadata in a DataFrame. Raises ConfigError if its column ``offset`` is not the source's."""
    metadata = next((field.metadata for field in frame.schema if STREAM in field.metadata), None)
    if metadata is None:
        raise ConfigError(
            "the DataFrame does not have the column offset of seekpoint's source, from which the offsets are read: "
            "pass the source's DataFrame, before the column is dropped or replaced"
        )
    return metadata
