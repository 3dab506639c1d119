"""The manifest: one row for each range of an archive. A file exists from its row's commit on, and not before."""

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
from seekpoint.ledger.sql import EXPORT_MANIFEST, GROUPS, WORKER, Query
from seekpoint.records import Partition

LOCK_WAIT = "30s"


@dataclass(frozen=True, slots=True)
class Written:
    """One range as it was written, before it is in the manifest.

    ``file`` is empty where the range has no records, and ``sha256`` (of the file's bytes, as hexadecimal digits) None.
    """

    range: Range
    file: str
    records: int
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of ``export_manifest``: the range ``[start, end)`` of a partition, and the file that has its records.

    ``file`` is named below the archive's root, and empty where the range has no records. ``sha256`` is that of the
    file's bytes, as ``sha256sum`` prints it; None without a file.
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
        """Until the transaction ends, no other adds to this topic's chains, or removes a file of it."""
        self.execute(GROUPS["alone"], name=f"seekpoint export {self._archive} {topic}")

    def within(self, range_: Range) -> list[Entry]:
        """The entries that have something of the range, in order."""
        of = self._of(range_.partition, range_.topic_id)
        return self._entries(EXPORT_MANIFEST["within"], **of, start=range_.start, end=range_.end)

    def chain(self, partition: Partition, topic_id: UUID) -> list[Entry]:
        """All that the archive has of a partition, in order."""
        return self._entries(EXPORT_MANIFEST["chain"], **self._of(partition, topic_id))

    def all(self) -> list[Entry]:
        """Every entry of the archive."""
        return self._entries(EXPORT_MANIFEST["all"], archive=self._archive)

    def _entries(self, statement: Query, **values: Any) -> list[Entry]:
        found = map(tuple, self.execute(statement, **values))
        return [Entry(Partition(topic, number), *rest) for topic, number, *rest in found]

    def has(self, file: str) -> bool:
        """Whether the manifest names this file, in whatever archive: the root may have another name there."""
        return bool(self.execute(EXPORT_MANIFEST["is_file"], file=file).scalar_one())

    def known(self) -> set[str]:
        """Every file that the manifest names, in whatever archive."""
        return set(self.execute(EXPORT_MANIFEST["known"]).scalars())

    def note(self, run: UUID, *, group: str, actor: str) -> None:
        """Put an export on record, before its first file."""
        self.execute(EXPORT_MANIFEST["note"], id=run, archive=self._archive, consumer_group=group, actor=actor)

    def runs(self) -> set[UUID]:
        """Every export on record, of whatever archive."""
        return set(self.execute(EXPORT_MANIFEST["runs"]).scalars())

    def roots(self) -> list[str]:
        """Every archive that the ledger has exported to, whatever this transaction's is."""
        return list(self.execute(EXPORT_MANIFEST["roots"]).scalars())

    def add(self, written: Sequence[Written], *, format: str, group: str, run: UUID, actor: str) -> None:  # noqa: A002
        """The commit of these ranges, once the transaction is."""
        by = {"archive": self._archive, "format": format, "consumer_group": group, "run": run, "actor": actor}
        rows = []
        for one in written:
            its = one.range
            values = (*its.partition, its.topic_id, its.start, its.end, one.records, one.bytes, one.file, one.sha256)
            rows.append(dict(zip(_WRITTEN, values, strict=True)) | by)
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
            tx.execute(WORKER["configure"], lock_timeout=LOCK_WAIT, application_name=f"{APPLICATION}export")
            yield tx


def holes(entries: Sequence[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """What of ``[start, end)`` these entries (in order) do not have."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        if entry.start >= end:
            break
        if entry.start > start:
            found.append((start, entry.start))
        start = max(start, entry.end)
    return [*found, (start, end)] if start < end else found
