"""An archive: Parquet files of records, listed in ``export_manifest``; and ranges read from it and from the log."""

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
from seekpoint.jobs.export.storage import Storage, below, named, place
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Piece, Range, read_range
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import offsets_of

DAY = timedelta(days=1)


class Archive:
    """What exports wrote below ``root``, as far as the manifest has it: a log that retention does not cut.

    ``root`` is a folder, or a URL that ``pyarrow.fs`` knows (``s3://bucket/archive``, ``gs://…``), without credentials:
    those are the storage's own environment variables. ``engine`` and ``schema`` are the ledger's, which has the
    manifest; it knows the archive by its place, however the root is spelled (``s3a://`` for ``s3://``, a link). Making
    one does no I/O. Reading and writing need the extra ``arrow``.
    """

    def __init__(self, root: str | Path, engine: Engine | URL | str, *, schema: str = DEFAULT_SCHEMA) -> None:
        self.root, self.engine, self.schema = named(root), postgres_engine(engine), schema

    def __repr__(self) -> str:
        return f"Archive({self.root!r}, schema={self.schema!r})"

    def spec(self) -> str:
        """The archive as text, for tasks in other processes; it has no credentials. See :meth:`of`."""
        return json.dumps({"root": self.root, "schema": self.schema})

    @classmethod
    def of(cls, spec: str, engine: Engine | URL | str) -> Archive:
        """The archive that :meth:`spec` describes, with this process's own connection to the database."""
        told = json.loads(spec)
        return cls(told["root"], engine, schema=told["schema"])

    @cached_property
    def name(self) -> str:
        """What the manifest calls it: one name, however the root is spelled."""
        its = place(self.root)
        with transaction(self.engine, self.schema, its) as tx:
            known = tx.roots()
        return self.root if self.root in known else next((one for one in known if place(named(one)) == its), its)

    @cached_property
    def storage(self) -> Storage:
        """Its files. Raises ConfigError without pyarrow, and for a root that it does not know."""
        return Storage(self.root)

    def entries(self, topic: str | None = None) -> Sequence[Entry]:
        """The manifest: every range that the archive has (of one topic), in order."""
        with manifest_of(self) as tx:
            return [entry for entry in tx.all() if topic in {None, entry.partition.topic}]

    def files(self, topic: str | None = None, topic_id: UUID | None = None) -> Sequence[str]:
        """The files that count (of one topic, of one of its ids), for readers with other tools."""
        found = self.entries(topic)
        return [below(self.root, e.file) for e in found if e.file and topic_id in {None, e.topic_id}]

    def require_known(self) -> None:
        """Raise ConfigError, naming the archives that there are, where no export wrote to this root: a typing error."""
        with manifest_of(self) as tx:
            known = tx.roots()
        if self.name not in known:
            others = f"it knows {', '.join(known)}" if known else "nothing was exported yet (`seekpoint export`)"
            raise ConfigError(
                f"the ledger in schema {self.schema!r} knows no archive {self.root}: {others}; "
                "name it as the export did"
            )

    def gaps(self, range_: Range) -> Sequence[tuple[int, int]]:
        """What of the range the archive does not have; empty where it has all of it. Looks at the manifest alone."""
        with manifest_of(self) as tx:
            return holes(tx.within(range_), range_.start, range_.end)

    def read_range(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, as ``kafka.ranges.read_range`` gave it when it was exported, in pieces.

        Each file is checked before the first of its records: that it is there, whole, and the one that was written.
        Raises RangeLost where the archive does not have all of the range (before the first piece), ArchiveDamaged.
        """
        if range_.start >= range_.end:
            return
        from seekpoint.jobs.export.files import read  # noqa: PLC0415 -- pyarrow, which naming an archive does without

        with manifest_of(self) as tx:
            entries = tx.within(range_)
        if missing := holes(entries, range_.start, range_.end):
            start, end = missing[0]
            raise RangeLost(
                range_.partition,
                start,
                f"the archive {self.root} does not have [{start}, {end}) of topic id {range_.topic_id}: export it "
                "while the log has it, or name the archive that does",
            )
        for entry in entries:
            if entry.file:
                yield from read(self.storage, entry, max(entry.start, range_.start), min(entry.end, range_.end))

    def strays(self, older_than: timedelta = DAY) -> Sequence[str]:
        """Files of this ledger's exports that neither the manifest nor a Delta table names: killed exports left them.

        Younger ones may be about to be committed. A file that only the Delta table names is no stray: the next export
        adds it to the manifest. Files of runs that this ledger has not recorded belong to another database, whatever
        its name is. Raises ConfigError where there is a Delta table and the extra ``delta`` is not installed.
        """
        from seekpoint.jobs.export.delta import files_of_table  # noqa: PLC0415 -- pyarrow
        from seekpoint.jobs.export.files import range_of  # noqa: PLC0415

        since = datetime.now(UTC) - older_than
        with manifest_of(self) as tx:
            known, runs = tx.known(), tx.runs()
        found = []
        for file, written in self.storage.files():
            its = range_of(file)
            old = written is None or written <= since
            if file not in known and its is not None and its[1] in runs and old:
                found.append(file)
        tables = {topic: files_of_table(self.storage, topic) for topic in set(map(_topic_of, found))}
        return sorted(file for file in found if file not in tables[_topic_of(file)])

    def sweep(self, older_than: timedelta = DAY) -> Sequence[str]:
        """Remove the :meth:`strays`; returns which. An export whose file goes while it writes says so, and fails."""
        from seekpoint.jobs.export.delta import files_of_table  # noqa: PLC0415 -- pyarrow

        removed = []
        for file in self.strays(older_than):
            topic = _topic_of(file)
            with manifest_of(self) as tx:
                tx.alone(topic)
                # Either may have been committed since the strays were listed.
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
    """Reads ranges of a log whose beginning is in ``archive``; without one, of the log alone.

    What both have is read from the log. ``kafka`` is the workers' own configuration. Making one does no I/O.
    """

    def __init__(self, kafka: Mapping[str, Any], archive: Archive | None = None) -> None:
        self._kafka, self._archive = kafka, archive

    @classmethod
    def of(cls, kafka: Mapping[str, Any], archive: str | None, engine: Engine) -> Self:
        """The reader of a run with this archive, as :meth:`Archive.spec` describes it; None: the run has none."""
        return cls(kafka, None if archive is None else Archive.of(archive, engine))

    def read(self, range_: Range) -> Iterator[Piece]:
        """Every record of the range, in pieces; they count once the iteration has ended without an error.

        Retention may pass while it is read: then it continues in the archive. Raises what ``kafka.ranges.read_range``
        and ``Archive.read_range`` raise: RangeLost where neither has the next record.
        """
        if self._archive is None:
            yield from read_range(self._kafka, range_)
            return
        checks, left = RangeChecks(self._kafka), range_
        while left.start < left.end:
            log_start = min(max(_log_start(checks, left), left.start), left.end)
            yield from self._archive.read_range(replace(left, end=log_start))
            left = replace(left, start=log_start)
            position = left.start
            try:
                for piece in read_range(self._kafka, left):
                    yield piece
                    position = offsets_of(piece.records)[-1] + 1
                return
            except RangeLost:
                left = replace(left, start=position)
                if _log_start(checks, left) <= position:
                    raise  # it is not retention


def _log_start(checks: RangeChecks, range_: Range) -> int:
    """Where the log begins now. Raises TopicRecreated, and RangeLost where there is no such topic any more."""
    checks.check(checks.ask([range_.partition.topic]), range_.partition, range_.topic_id, range_.start)
    return checks.readable.starts([range_.partition])[range_.partition].offset
