"""An export: records that a group has applied and the archive does not have yet, written and committed by range."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, RangeLost
from seekpoint.jobs.export.archive import Archive, manifest_of
from seekpoint.jobs.export.manifest import Entry, Tx, Written, holes
from seekpoint.jobs.run import Progress
from seekpoint.kafka.first_records import first_records, require_max_records
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Range, check_ranges
from seekpoint.ledger import Ledger
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.positions import Position
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition

RANGE = 1_000_000  # offsets of one file
FORMATS = ("parquet", "delta")


@dataclass(frozen=True, slots=True)
class Exported:
    """What one export has added to its archive. ``offsets`` are where the archive's chains end now."""

    run: UUID
    files: int
    records: int
    bytes: int
    offsets: Mapping[Partition, int]


class Writer(Protocol):
    """Writes ranges of the log as files below a root; ``run``, the export's id, is part of their names."""

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterable[Written]:
        """Write each of them, in whatever order; what was written, as it is done. Raises what reading them raises."""


class Export:
    """Writes the records that ``group`` has applied, and that ``archive`` does not have yet, to the archive.

    They are those of ``[first_offset, next_offset)`` of each partition, as of one moment: raw, as the log has them,
    whatever became of them in the tables. A range is in the archive from the commit of its row in the manifest on; an
    export that is killed leaves only files that no row names, and the next one continues after the last row.
    Workers keep running, and any number of exports may run at once. ``kafka`` is the workers' own configuration.

    ``format="delta"`` makes a Delta table of each topic, too (``<root>/<topic>``, extra ``delta``). ``range_records``
    are the offsets of one file at most, and ``max_records`` those of this run: the next one continues there.
    ``skip_lost`` continues where retention has passed records that no export has written: the archive has a gap then.
    ``writer`` says who writes (by default this process). Making one does no I/O.
    """

    def __init__(
        self,
        engine: Engine | URL | str,
        kafka: Mapping[str, Any],
        archive: Archive,
        group: str,
        topics: str | Collection[str] | None = None,
        *,
        schema: str | None = None,
        format: str = "parquet",  # noqa: A002 -- the public name
        range_records: int = RANGE,
        max_records: int | None = None,
        skip_lost: bool = False,
        actor: str | None = None,
        progress: Progress | None = None,
        writer: Writer | None = None,
    ) -> None:
        if format not in FORMATS:
            raise ConfigError(f"format must be 'parquet' or 'delta', got {format!r}")
        if range_records < 1:
            raise ConfigError(f"range_records is the number of offsets of a file, at least 1, and not {range_records}")
        require_max_records(max_records)
        self._max_records = max_records
        self.engine, self.kafka, self.archive = postgres_engine(engine), dict(kafka), archive
        self.group, self.format, self.schema = group, format, schema or archive.schema
        self._topics, self._range_records, self._skip_lost, self._writer = topics, range_records, skip_lost, writer
        self._actor, self._progress = operator(actor), progress or (lambda *_: None)
        self._run, self._noted = uuid4(), False

    def run(self) -> Exported:
        """Write and commit all of it. Run it again after any error: what was committed is not written again.

        Raises ConfigError for a group or a topic that the ledger does not have; RangeLost where the log no longer has
        what is to be written, RangeStuck, TopicRecreated and KafkaUnavailable.
        """
        positions = applied(Ledger(self.engine, self.group, schema=self.schema), self._topics)
        added: list[Written] = []
        while ranges := first_records(self._plan(positions), self._records_left(added)):
            self._note()
            total, passed = sum(one.records_at_most for one in ranges), 0
            for written in self._in_order(self._write(ranges), ranges):
                if not self._commit(written):  # another export was faster: plan again what is left
                    if written.file:
                        self.archive.storage.remove(written.file)
                    break
                added.append(written)
                passed += written.range.records_at_most
                self._progress("exporting", passed, total)
        ends = {at.partition: max(entry.end for entry in chain) for at in positions if (chain := self._chain(at))}
        files = sum(bool(one.file) for one in added)
        return Exported(self._run, files, sum(one.records for one in added), sum(one.bytes for one in added), ends)

    def _records_left(self, added: Sequence[Written]) -> int | None:
        if self._max_records is None:
            return None
        return self._max_records - sum(one.range.records_at_most for one in added)

    def _write(self, ranges: Sequence[Range]) -> Iterable[Written]:
        if self._writer is None:
            from seekpoint.jobs.export.files import LocalWriter  # noqa: PLC0415 -- pyarrow

            self._writer = LocalWriter(self.kafka)
        return self._writer.write(self.archive.root, self._run, ranges)

    def _note(self) -> None:
        """Before the first file: by this a sweep knows whose files they are, should they never be committed."""
        if not self._noted:
            with manifest_of(self.archive) as tx:
                tx.note(self._run, group=self.group, actor=self._actor)
            self._noted = True

    def _chain(self, at: Position) -> list[Entry]:
        with manifest_of(self.archive) as tx:
            return tx.chain(at.partition, at.topic_id)

    def _plan(self, positions: Sequence[Position]) -> list[Range]:
        """What is left to be written, cut to the width of a file; partition by partition, in order."""
        chains = {at.partition: self._chain(at) for at in positions}
        for at in positions:
            self._require_its_format(at, chains[at.partition])
        behind = [at for at in positions if _left(at, chains[at.partition])]
        starts = self._log_starts(behind)
        ranges = [range_ for at in behind for range_ in self._of(at, chains[at.partition], starts[at.partition])]
        check_ranges(self.kafka, ranges)
        return [part for each in ranges for part in each.cut(self._range_records)]

    def _log_starts(self, behind: Sequence[Position]) -> dict[Partition, int]:
        """Where the logs begin, of the topics that the positions belong to."""
        if not behind:
            return {}
        checks = RangeChecks(self.kafka)
        asked = checks.ask({at.partition.topic for at in behind})
        for at in behind:
            checks.check(asked, at.partition, at.topic_id, at.next_offset)
        return {at: edge.offset for at, edge in checks.readable.starts([at.partition for at in behind]).items()}

    def _of(self, at: Position, chain: Sequence[Entry], log_start: int) -> Iterator[Range]:
        """One partition's ranges that neither the archive has nor retention has taken."""
        for start, end in _left(at, chain):
            lost = max(start, at.first_offset)
            is_last = not chain or start >= chain[-1].end  # of others it was decided when what follows was written
            if lost < min(log_start, end) and is_last and not self._skip_lost:
                raise RangeLost(
                    at.partition,
                    lost,
                    f"retention has passed it before any export: the log begins at {log_start} now. Continue with "
                    "skip_lost=True, which leaves a gap in the archive; and export more often than retention cuts",
                )
            if max(start, log_start) < end:
                yield Range(at.partition, at.topic_id, max(start, log_start), end)

    def _require_its_format(self, at: Position, chain: Sequence[Entry]) -> None:
        if other := next((entry for entry in chain if entry.format != self.format), None):
            raise ConfigError(
                f"{at.partition} is in the archive {self.archive.root} as {other.format}: continue with "
                f"format={other.format!r}, or export into another archive"
            )

    def _in_order(self, written: Iterable[Written], planned: Sequence[Range]) -> Iterator[Written]:
        """As they come, but each partition's in the order of its offsets: no chain has a gap, not for a moment."""
        waiting: dict[Range, Written] = {}
        queues: dict[Partition, list[Range]] = {}
        for range_ in planned:
            queues.setdefault(range_.partition, []).append(range_)
        for one in written:
            waiting[one.range] = one
            queue = queues[one.range.partition]
            while queue and queue[0] in waiting:
                yield waiting.pop(queue.pop(0))

    def _commit(self, written: Written) -> bool:
        """Add it to the manifest; False where another export has some of it there already."""
        with manifest_of(self.archive) as tx:
            tx.alone(written.range.partition.topic)
            if tx.within(written.range):
                return False
            if written.file and self.archive.storage.size(written.file) != written.bytes:
                raise FileNotFoundError(
                    f"{self.archive.storage.path(written.file)} was written and is gone, or was cut: files that are "
                    "younger than a day must not be removed (Archive.sweep, lifecycle rules); run the export again"
                )
            if self.format == "delta" and not self._commit_to_table(tx, written):
                return False
            self._add(tx, [written])
        return True

    def _commit_to_table(self, tx: Tx, written: Written) -> bool:
        """Add it to the Delta table, first; False where that has it already, and the manifest now, too.

        It is asked of a range without records as well: the table may have a wider one, that begins with this.
        """
        from seekpoint.jobs.export.delta import DeltaLog  # noqa: PLC0415 -- an extra

        table = DeltaLog(self.archive.storage, written.range.partition.topic)
        if there := list(table.ahead(written.range, tx.chain(written.range.partition, written.range.topic_id))):
            self._add(tx, there)
            return False
        if written.file:
            table.add(written)
        return True

    def _add(self, tx: Tx, written: Sequence[Written]) -> None:
        tx.add(written, format=self.format, group=self.group, run=self._run, actor=self._actor)


def _left(at: Position, chain: Sequence[Entry]) -> list[tuple[int, int]]:
    """What the group has applied and the archive does not have; with what lies between, if the archive ends before."""
    begin = min(at.first_offset, max((entry.end for entry in chain), default=at.first_offset))
    return holes(chain, begin, at.next_offset)


def applied(ledger: Ledger, topics: str | Collection[str] | None = None) -> list[Position]:
    """The positions of the ledger's group in these topics (by default all), as of one moment.

    Raises ConfigError for a group or a topic that the ledger does not have.
    """
    found = ledger.read()
    if not found:
        raise ConfigError(
            f"the ledger in schema {ledger.schema!r} has no offsets of group {ledger.group!r}: correct the name or the "
            "schema (Ledger(engine, group, schema=...)), or start a worker once"
        )
    known = {at.partition.topic for at in found}
    wanted = known if topics is None else {topics} if isinstance(topics, str) else set(topics)
    if strange := sorted(wanted - known):
        raise ConfigError(
            f"group {ledger.group!r} has no offsets of {', '.join(strange)}; it reads {', '.join(sorted(known))}"
        )
    return [at for at in found if at.partition.topic in wanted]
