"""Writers of an export's files: the protocol, and the one that writes in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4

from seekpoint.jobs.export.files import file_name, write
from seekpoint.jobs.export.manifest import Written
from seekpoint.jobs.export.storage import Storage
from seekpoint.kafka.ranges import Range, read_range


class Writer(Protocol):
    """Writes ranges of the log as files below a root; ``run``, the export's id, is part of their names."""

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterable[Written]:
        """Write each of them, in whatever order; what was written, as it is done. Raises what reading them raises."""


class LocalWriter:
    """Writes each range here, in turn."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._kafka = kafka

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        """Write them in the order given."""
        storage = Storage(root)
        for range_ in ranges:
            yield write_range(self._kafka, storage, run, range_)


def write_range(kafka: Mapping[str, Any], storage: Storage, run: UUID, range_: Range) -> Written:
    """Write the range's records to a file of its own; none, if there are none.

    Raises what ``kafka.ranges.read_range`` raises, and then leaves no file.
    """
    file = file_name(range_, run, uuid4())
    return write(storage, file, range_, read_range(kafka, range_))
