"""The manifest: one row for each range of an archive. A file belongs to the archive once its row is committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine

from seekpoint.kafka.ranges import Range
from seekpoint.ledger.schema_connection import APPLICATION, SchemaConnection
from seekpoint.ledger.sql import EXPORT_MANIFEST, GROUPS, RELOAD_RUN, WORKER, Query
from seekpoint.records import Partition

LOCK_WAIT = "30s"
LOST = "lost"  # the format of a range that no export has written


@dataclass(frozen=True, slots=True)
class Written:
    """A written range that is not yet in the manifest.

    ``sha256`` is the hash of the file's bytes, in hexadecimal. Without records ``file`` is empty and ``sha256`` None.
    """

    range: Range
    file: str
    records: int
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of ``export_manifest``: the range ``[start, end)`` of a partition, and the file with its records.

    ``file`` is the path below the archive's root, empty if the range has no records. ``sha256`` is the hash of the
    file's bytes, as ``sha256sum`` prints it; None without a file. ``format`` is "lost" for a gap that an export
    accepted when the log had no record after it.
    """

    partition: Partition
    topic_id: UUID
    start: int
    end: int
    records: int
    bytes: int
    file: str
    sha256: str | None
    format: str
    group: str
    run: UUID
    actor: str
    written_at: datetime

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


_WRITTEN = ("topic", "partition", "topic_id", "from_offset", "to_offset", "records", "bytes", "file", "sha256")


class Tx(SchemaConnection):
    """A transaction on the manifest of one archive."""

    def __init__(self, connection: Connection, schema: str, archive: str) -> None:
        super().__init__(connection, schema)
        self._archive = archive

    def alone(self, topic: str) -> None:
        """Lock the topic until the transaction ends: no other transaction adds or removes its files."""
        self.execute(GROUPS["alone"], name=f"seekpoint export {self._archive} {topic}")

    def within(self, range_: Range) -> list[Entry]:
        """The entries that overlap the range, in order, including lost ranges."""
        key = self._of(range_.partition, range_.topic_id)
        return self._entries(EXPORT_MANIFEST["within"], **key, start=range_.start, end=range_.end)

    def written(self, range_: Range) -> list[Entry]:
        """The entries that overlap the range, in order, without lost ranges."""
        return [entry for entry in self.within(range_) if entry.format != LOST]

    def chain(self, partition: Partition, topic_id: UUID) -> list[Entry]:
        """All entries of a partition, in order."""
        return self._entries(EXPORT_MANIFEST["chain"], **self._of(partition, topic_id))

    def all(self) -> list[Entry]:
        """Every entry of the archive."""
        return self._entries(EXPORT_MANIFEST["all"], archive=self._archive)

    def _entries(self, statement: Query, **values: Any) -> list[Entry]:
        rows = map(tuple, self.execute(statement, **values))
        return [Entry(Partition(topic, number), *rest) for topic, number, *rest in rows]

    def has(self, file: str) -> bool:
        """Whether the manifest names this file in any archive, because a root may have several names."""
        return bool(self.execute(EXPORT_MANIFEST["is_file"], file=file).scalar_one())

    def known(self) -> set[str]:
        """Every file that the manifest names, in any archive."""
        return set(self.execute(EXPORT_MANIFEST["known"]).scalars())

    def note(self, run: UUID, *, group: str, actor: str) -> None:
        """Record an export before its first file."""
        self.execute(EXPORT_MANIFEST["note"], id=run, archive=self._archive, consumer_group=group, actor=actor)

    def runs(self) -> set[UUID]:
        """Every recorded export, to any archive."""
        return set(self.execute(EXPORT_MANIFEST["runs"]).scalars())

    def roots(self) -> list[str]:
        """The names of all archives to which this ledger's exports have written."""
        return list(self.execute(EXPORT_MANIFEST["roots"]).scalars())

    def add(self, written: Sequence[Written], *, format: str, group: str, run: UUID, actor: str) -> None:  # noqa: A002
        """Add these ranges to the manifest."""
        common = {"archive": self._archive, "format": format, "consumer_group": group, "run": run, "actor": actor}
        rows = []
        for part in written:
            range_ = part.range
            offsets = range_.start, range_.end
            values = *range_.partition, range_.topic_id, *offsets, part.records, part.bytes, part.file, part.sha256
            rows.append(dict(zip(_WRITTEN, values, strict=True)) | common)
        self.execute(EXPORT_MANIFEST["insert"], rows)

    def _of(self, partition: Partition, topic_id: UUID) -> dict[str, Any]:
        return {
            "archive": self._archive,
            "topic": partition.topic,
            "topic_id": topic_id,
            "partition": partition.number,
        }


@contextmanager
def transaction(engine: Engine, schema: str, archive: str) -> Iterator[Tx]:
    """A durable transaction on the manifest, with bounded waits for locks."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="READ COMMITTED")
        with connection.begin():
            tx = Tx(connection, schema, archive)
            name = f"{APPLICATION}export"
            tx.execute(WORKER["configure"], lock_timeout=LOCK_WAIT, idle="0", application_name=name)
            tx.execute(RELOAD_RUN["unhurried"])  # the transaction waits for the storage, and for a Delta table's log
            yield tx


def holes(entries: Sequence[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of ``[start, end)`` that these entries, which are in order, do not cover."""
    gaps: list[tuple[int, int]] = []
    for entry in entries:
        if entry.start >= end:
            break
        if entry.start > start:
            gaps.append((start, entry.start))
        start = max(start, entry.end)
    return [*gaps, (start, end)] if start < end else gaps
