"""An archive: Parquet files of records, listed in ``export_manifest``; reads ranges from it and from the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, RangeLost
from seekpoint.jobs.export.manifest import Entry, Tx, holes, transaction
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Piece, Range, read_range
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import offsets_of
from seekpoint.storage import Storage, below, named, place

DAY = timedelta(days=1)


class Archive:
    """The exported files below ``root`` that the manifest lists: records that retention does not remove.

    ``root`` is a folder or a URL that ``pyarrow.fs`` supports (``s3://bucket/archive``, ``gs://…``). It has no
    credentials: these come from the storage's environment variables. ``engine`` and ``schema`` are those of the ledger
    with the manifest. That identifies an archive by its location: ``s3a://`` and ``s3://``, or a link and its target,
    are the same archive. The constructor does no I/O. Reading and writing need the extra ``arrow``.
    """

    def __init__(self, root: str | Path, engine: Engine | URL | str, *, schema: str = DEFAULT_SCHEMA) -> None:
        self.root, self.engine, self.schema = named(root), postgres_engine(engine), schema

    def __repr__(self) -> str:
        return f"Archive({self.root!r}, schema={self.schema!r})"

    def spec(self) -> str:
        """The archive's description for tasks in other processes, without credentials; see :meth:`of`."""
        return json.dumps({"root": self.root, "schema": self.schema})

    @classmethod
    def of(cls, spec: str, engine: Engine | URL | str) -> Archive:
        """The archive that :meth:`spec` describes, with this process's connection to the database."""
        fields = json.loads(spec)
        return cls(fields["root"], engine, schema=fields["schema"])

    @cached_property
    def name(self) -> str:
        """The archive's name in the manifest, the same for all spellings of its root."""
        location = place(self.root)
        with transaction(self.engine, self.schema, location) as tx:
            roots = tx.roots()
        if self.root in roots:
            return self.root
        return next((root for root in roots if place(named(root)) == location), location)

    @cached_property
    def storage(self) -> Storage:
        """The archive's storage. Raises ConfigError without pyarrow, and for a root that pyarrow does not support."""
        return Storage(self.root)

    def entries(self, topic: str | None = None) -> Sequence[Entry]:
        """The manifest's entries (of one topic), in order."""
        with manifest_of(self) as tx:
            return [entry for entry in tx.all() if topic in {None, entry.partition.topic}]

    def files(self, topic: str | None = None, topic_id: UUID | None = None) -> Sequence[str]:
        """The paths of the listed files (of one topic, of one of its ids), for reading with other tools."""
        entries = self.entries(topic)
        return [below(self.root, entry.file) for entry in entries if entry.file and topic_id in {None, entry.topic_id}]

    def require_known(self) -> None:
        """Raise ConfigError, listing the known archives, if no export wrote to this root: it is probably misspelled."""
        with manifest_of(self) as tx:
            roots = tx.roots()
        if self.name not in roots:
            others = f"it knows {', '.join(roots)}" if roots else "nothing was exported yet (`seekpoint export`)"
            raise ConfigError(
                f"the ledger in schema {self.schema!r} knows no archive {self.root}: {others}; "
                "name it as the export did"
            )

    def gaps(self, range_: Range) -> Sequence[tuple[int, int]]:
        """The parts of the range that the archive lacks, according to the manifest; empty if it has all."""
        with manifest_of(self) as tx:
            return holes(tx.written(range_), range_.start, range_.end)

    def read_range(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, some at a time, as ``kafka.ranges.read_range`` returned it for the export.

        Checks each file before its first record: it must exist, be complete, and be the written one. Raises RangeLost,
        before the first piece, if the archive does not have the whole range; and ArchiveDamaged if a file fails these
        checks.
        """
        if range_.start >= range_.end:
            return
        from seekpoint.jobs.export.files import read  # noqa: PLC0415 -- pyarrow, not needed to name an archive

        with manifest_of(self) as tx:
            entries = tx.written(range_)
        if missing := holes(entries, range_.start, range_.end):
            start, end = missing[0]
            raise RangeLost(
                range_.partition,
                start,
                f"the archive {self.root} does not have [{start}, {end}) of topic id {range_.topic_id}: export them "
                "while the log has them, or name the archive that has them",
            )
        for entry in entries:
            if entry.file:
                yield from read(self.storage, entry, max(entry.start, range_.start), min(entry.end, range_.end))

    def strays(self, older_than: timedelta = DAY) -> Sequence[str]:
        """Files of this ledger's crashed exports, which neither the manifest nor a Delta table names.

        Excludes younger files, because an export may be about to commit them. Excludes files of unknown age, unless
        ``older_than`` is 0. A file that only the Delta table names is not one of them: the next export adds it to the
        manifest. Files of runs that this ledger has not recorded belong to another database. Raises ConfigError if
        there is a Delta table and the extra ``delta`` is not installed.
        """
        from seekpoint.jobs.export.delta import files_of_table  # noqa: PLC0415 -- pyarrow
        from seekpoint.jobs.export.files import range_of  # noqa: PLC0415

        since = datetime.now(UTC) - older_than
        with manifest_of(self) as tx:
            files_of_manifest, runs = tx.known(), tx.runs()
        files = []
        for file, written in self.storage.files():
            parsed = range_of(file)
            is_old = not older_than or (written is not None and written <= since)
            if file not in files_of_manifest and parsed is not None and parsed[1] in runs and is_old:
                files.append(file)
        tables = {topic: files_of_table(self.storage, topic) for topic in set(map(_topic_of, files))}
        return sorted(file for file in files if file not in tables[_topic_of(file)])

    def sweep(self, older_than: timedelta = DAY) -> Sequence[str]:
        """Remove the :meth:`strays` and return them. An export whose file is removed before its commit fails."""
        from seekpoint.jobs.export.delta import files_of_table  # noqa: PLC0415 -- pyarrow

        removed = []
        for file in self.strays(older_than):
            topic = _topic_of(file)
            with manifest_of(self) as tx:
                tx.alone(topic)
                # An export may have committed the file since the strays were listed.
                if not tx.has(file) and file not in files_of_table(self.storage, topic):
                    self.storage.remove(file)
                    removed.append(file)
        return removed


def _topic_of(file: str) -> str:
    return file.partition("/")[0]


def manifest_of(archive: Archive) -> AbstractContextManager[Tx]:
    """A transaction on the archive's manifest."""
    return transaction(archive.engine, archive.schema, archive.name)


class ArchivedReader:
    """Reads ranges of a log whose beginning is in ``archive``; without an archive, only from the log.

    Records that both have are read from the log. ``kafka`` is the workers' configuration. The constructor does no I/O.
    """

    def __init__(self, kafka: Mapping[str, Any], archive: Archive | None = None) -> None:
        self._kafka, self._archive = kafka, archive

    @classmethod
    def of(cls, kafka: Mapping[str, Any], archive: str | None, engine: Engine) -> Self:
        """The reader of a run. ``archive`` is the :meth:`Archive.spec` of the run's archive, None if it has none."""
        return cls(kafka, None if archive is None else Archive.of(archive, engine))

    def read(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, in pieces, which are valid once the iteration has ended without an error.

        If retention removes records meanwhile, it continues in the archive. Raises the errors of
        ``kafka.ranges.read_range`` and ``Archive.read_range``, such as RangeLost if log and archive lack the next
        record.
        """
        if self._archive is None:
            yield from read_range(self._kafka, range_)
            return
        checks, remaining = RangeChecks(self._kafka), range_
        while remaining.start < remaining.end:
            log_start = min(max(_log_start(checks, remaining), remaining.start), remaining.end)
            yield from self._archive.read_range(replace(remaining, end=log_start))
            remaining = replace(remaining, start=log_start)
            position = remaining.start
            try:
                for piece in read_range(self._kafka, remaining):
                    yield piece
                    position = offsets_of(piece.records)[-1] + 1
                return
            except RangeLost:
                remaining = replace(remaining, start=position)
                if _log_start(checks, remaining) <= position:
                    raise  # not caused by retention


def _log_start(checks: RangeChecks, range_: Range) -> int:
    """The log start offset. Raises TopicRecreated, and RangeLost if the topic no longer exists."""
    checks.check(checks.ask([range_.partition.topic]), range_.partition, range_.topic_id, range_.start)
    return checks.readable.starts([range_.partition])[range_.partition].offset
