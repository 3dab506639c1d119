"""Support for tests of exports: a group whose positions a test sets, a topic, and an archive in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine, text

from seekpoint import Partition
from seekpoint.jobs.export import Archive, ArchivedReader, Export
from seekpoint.jobs.export.manifest import transaction
from seekpoint.kafka.ranges import Piece, Range, read_range, topic_ids
from seekpoint.ledger import GroupLedger
from seekpoint.records import RawRecord
from support.log_changes import trim


@dataclass(frozen=True)
class ArchivedGroup:
    """One group, its servers, and an archive in ``bucket`` (a URL), or else in ``folder``."""

    engine: Engine
    brokers: str
    schema: str
    group: str
    folder: Path
    topic: Callable[..., str]
    produce: Callable[..., list[tuple[int, int]]]
    bucket: str = ""

    @classmethod
    def on_shared_servers(cls, get: Callable[[str], Any]) -> ArchivedGroup:
        """A group on the shared servers; ``get`` returns fixtures."""
        names = ("seekpoint_engine", "seekpoint_broker", "seekpoint_schema", "group", "tmp_path", "topic", "produce")
        return cls(*map(get, names))

    @property
    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.brokers, "topic.metadata.refresh.interval.ms": 500}

    @property
    def ledger(self) -> GroupLedger:
        return GroupLedger(self.engine, self.group, schema=self.schema)

    @property
    def archive(self) -> Archive:
        return Archive(self.bucket or self.folder / "archive", self.engine, schema=self.schema)

    @property
    def chained(self) -> ArchivedReader:
        return ArchivedReader(self.kafka, self.archive)

    def filled(self, values: int | Sequence[Any], applied: int | None = None) -> str:
        """A topic of one partition with these values (or "0", "1", ...); the first ``applied`` are applied."""
        name = self.topic()
        sent = list(map(str, range(values))) if isinstance(values, int) else values
        self.produce(name, sent)
        self.set_positions(name, {0: len(sent) if applied is None else applied})
        return name

    def set_positions(self, topic: str, ends: Mapping[int, int], *, first: int = 0, group: str = "") -> None:
        """Set positions, as if the group had applied each partition from ``first`` to its end."""
        ledger = GroupLedger(self.engine, group or self.group, schema=self.schema)
        known = {position.partition for position in ledger.read()}
        ours = [Partition(topic, number) for number in ends]
        if new := [position for position in ours if position not in known]:
            ids = {topic: self.id_of(topic)}
            ledger.claim(new, ids, cluster_id="a test's", start=lambda _: dict.fromkeys(new, first))
        for position in ours:
            ledger.reset_offset(
                topic, position.number, ends[position.number], log=None, reason="a test", topic_id=self.id_of(topic)
            )

    def export(self, *, group: str = "", **options: Any) -> Export:
        archive = options.pop("archive", self.archive)
        return Export(self.engine, self.kafka, archive, group or self.group, **options)

    def id_of(self, topic: str) -> UUID:
        topic_id = topic_ids(self.kafka, [topic])[topic]
        assert topic_id is not None
        return topic_id

    def range(self, topic: str, start: int, end: int, number: int = 0) -> Range:
        return Range(Partition(topic, number), self.id_of(topic), start, end)

    def logged(self, topic: str, start: int, end: int, number: int = 0) -> list[RawRecord]:
        """The log's records in this range."""
        return records(read_range(self.kafka, self.range(topic, start, end, number)))

    def archived(self, topic: str, start: int, end: int, number: int = 0) -> list[RawRecord]:
        """The archive's records in this range."""
        return records(self.archive.read_range(self.range(topic, start, end, number)))

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def trim(self, topic: str, to: int) -> None:
        """Delete the records before ``to``, as retention does."""
        trim(self.admin, topic, to)

    def spans(self, topic: str, number: int = 0) -> list[tuple[int, int, int]]:
        """The manifest's rows of a partition: start, end, number of records."""
        entries = self.archive.entries(topic)
        return [(e.start, e.end, e.records) for e in entries if e.partition.number == number]

    def runs(self) -> list[UUID]:
        """The ids of the ledger's exports."""
        with transaction(self.engine, self.schema, self.archive.root) as tx:
            return sorted(tx.runs())

    def strays(self) -> list[Path]:
        """Files in the folder that the manifest does not name."""
        known = {Path(file) for file in self.archive.files()}
        return sorted(set((self.folder / "archive").rglob("*.parquet")) - known)

    def execute(self, statement: str, **values: Any) -> None:
        with self.engine.begin() as tx:
            tx.execute(text(statement.format(schema=self.schema)), values)


def records(pieces: Iterable[Piece]) -> list[RawRecord]:
    """The records of all pieces."""
    return [record for piece in pieces for record in piece]
