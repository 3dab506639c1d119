"""An export: writes the records that a group has applied and the archive lacks, and commits them by range."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from sqlalchemy import URL, Engine

from seekpoint.errors import ConfigError, RangeLost
from seekpoint.jobs.export.archive import Archive, manifest_of
from seekpoint.jobs.export.manifest import LOST, Entry, Tx, Written, holes
from seekpoint.kafka.first_records import first_records, require_max_records
from seekpoint.kafka.range_checks import RangeChecks
from seekpoint.kafka.ranges import Range, check_ranges
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import operator
from seekpoint.ledger.positions import Position
from seekpoint.postgres.engine import postgres_engine
from seekpoint.records import Partition
from seekpoint.runs.run import Progress

RANGE = 1_000_000  # offsets per file
FORMATS = ("parquet", "delta")


@dataclass(frozen=True, slots=True)
class Exported:
    """The files and records that an export has added. ``offsets`` are the archive's end offsets by partition."""

    run: UUID
    files: int
    records: int
    bytes: int
    offsets: Mapping[Partition, int]


class Writer(Protocol):
    """Writes ranges of the log to files below a root; ``run``, the export's id, is part of their names."""

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterable[Written]:
        """Write the ranges in any order; yields each when it is written. Raises the errors of reading them."""


class Export:
    """Writes to ``archive`` the records that ``group`` has applied and the archive lacks.

    These are the raw records of each partition's ``[first_offset, next_offset)`` at one moment, including dead-lettered
    and skipped ones. A range is in the archive once its row in the manifest is committed. An export that crashes leaves
    files that no row names, and the next export continues after the last row. Workers continue, and any number of
    exports may run at once. ``kafka`` is the workers' configuration.

    ``format="delta"`` also makes a Delta table of each topic (``<root>/<topic>``, extra ``delta``). A file has at most
    ``range_records`` offsets, and this run at most ``max_records``; the next run continues there. With ``skip_lost``
    the export continues after records that retention removed before any export; the archive then has a gap. ``writer``
    writes the files (by default this process). The constructor does no I/O.
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
            raise ConfigError(f"range_records must be a number of offsets per file, at least 1, got {range_records}")
        require_max_records(max_records)
        self._max_records = max_records
        self.engine, self.kafka, self.archive = postgres_engine(engine), dict(kafka), archive
        self.group, self.format, self.schema = group, format, schema or archive.schema
        self._topics, self._range_records, self._skip_lost, self._writer = topics, range_records, skip_lost, writer
        self._actor, self._progress = operator(actor), progress or (lambda *_: None)
        self._run, self._noted = uuid4(), False

    def run(self) -> Exported:
        """Write and commit all new records. After any error run it again: committed ranges are not repeated.

        Raises ConfigError for a group or a topic that the ledger does not have; RangeLost if the log no longer has the
        records; RangeStuck if the brokers do not send them; TopicRecreated if a topic was created again;
        KafkaUnavailable if no broker answers.
        """
        positions = applied(GroupLedger(self.engine, self.group, schema=self.schema), self._topics)
        added: list[Written] = []
        while ranges := first_records(self._plan(positions), self._records_left(added)):
            self._note()
            total, passed = sum(range_.records_at_most for range_ in ranges), 0
            for written in self._in_order(self._write(ranges), ranges):
                if not self._commit(written):  # another export has committed the range: plan the remaining ones again
                    if written.file:
                        self.archive.storage.remove(written.file)
                    break
                added.append(written)
                passed += written.range.records_at_most
                self._progress("exporting", passed, total)
        ends = {
            position.partition: max(entry.end for entry in chain)
            for position in positions
            if (chain := self._chain(position))
        }
        files = sum(bool(part.file) for part in added)
        return Exported(self._run, files, sum(part.records for part in added), sum(part.bytes for part in added), ends)

    def _records_left(self, added: Sequence[Written]) -> int | None:
        if self._max_records is None:
            return None
        return self._max_records - sum(part.range.records_at_most for part in added)

    def _write(self, ranges: Sequence[Range]) -> Iterable[Written]:
        if self._writer is None:
            from seekpoint.jobs.export.files import LocalWriter  # noqa: PLC0415 -- pyarrow

            self._writer = LocalWriter(self.kafka)
        return self._writer.write(self.archive.root, self._run, ranges)

    def _note(self) -> None:
        """Record the run before its first file, so that a sweep recognizes files that are never committed."""
        if not self._noted:
            with manifest_of(self.archive) as tx:
                tx.note(self._run, group=self.group, actor=self._actor)
            self._noted = True

    def _chain(self, position: Position) -> list[Entry]:
        with manifest_of(self.archive) as tx:
            return tx.chain(position.partition, position.topic_id)

    def _plan(self, positions: Sequence[Position]) -> list[Range]:
        """The ranges to write, divided into files, in order; partition by partition."""
        chains = {position.partition: self._chain(position) for position in positions}
        for position in positions:
            self._require_its_format(position, chains[position.partition])
        behind = [position for position in positions if _left(position, chains[position.partition])]
        starts = self._log_starts(behind)
        ranges = [
            range_
            for position in behind
            for range_ in self._of(position, chains[position.partition], starts[position.partition])
        ]
        check_ranges(self.kafka, ranges)
        return [part for range_ in ranges for part in range_.cut(self._range_records)]

    def _log_starts(self, behind: Sequence[Position]) -> dict[Partition, int]:
        """The log start offsets, after a check of the topics' ids."""
        if not behind:
            return {}
        checks = RangeChecks(self.kafka)
        topics = checks.ask({position.partition.topic for position in behind})
        for position in behind:
            checks.check(topics, position.partition, position.topic_id, position.next_offset)
        starts = checks.readable.starts([position.partition for position in behind])
        return {partition: edge.offset for partition, edge in starts.items()}

    def _of(self, position: Position, chain: Sequence[Entry], log_start: int) -> Iterator[Range]:
        """One partition's ranges that the archive lacks and the log still has.

        A last range of which the log has nothing is added to the manifest as lost.
        """
        for start, end in _left(position, chain):
            lost = max(start, position.first_offset)
            is_last = not chain or start >= chain[-1].end  # an earlier gap was accepted when a later range was written
            if lost < min(log_start, end) and is_last and not self._skip_lost:
                raise RangeLost(
                    position.partition,
                    lost,
                    f"retention has passed it before any export: the log now begins at {log_start}. Continue with "
                    "skip_lost=True, which leaves a gap in the archive; and export more often than retention deletes",
                )
            if max(start, log_start) < end:
                yield Range(position.partition, position.topic_id, max(start, log_start), end)
            elif is_last and lost < end:  # no later range will show the next export that this gap was accepted
                self._give_up(Range(position.partition, position.topic_id, lost, end))

    def _give_up(self, range_: Range) -> None:
        """Add a lost range to the manifest, unless another export has added part of it."""
        self._note()
        with manifest_of(self.archive) as tx:
            tx.alone(range_.partition.topic)
            if not tx.within(range_):
                self._add(tx, [Written(range_, "", 0, 0, None)], LOST)

    def _require_its_format(self, position: Position, chain: Sequence[Entry]) -> None:
        if other := next((entry for entry in chain if entry.format not in {self.format, LOST}), None):
            raise ConfigError(
                f"{position.partition} is in the archive {self.archive.root} as {other.format}: continue with "
                f"format={other.format!r}, or export into another archive"
            )

    def _in_order(self, written: Iterable[Written], planned: Sequence[Range]) -> Iterator[Written]:
        """Yield the written ranges, each partition's in order of offset, so that the manifest never has a gap."""
        waiting: dict[Range, Written] = {}
        queues: dict[Partition, list[Range]] = {}
        for range_ in planned:
            queues.setdefault(range_.partition, []).append(range_)
        for part in written:
            waiting[part.range] = part
            queue = queues[part.range.partition]
            while queue and queue[0] in waiting:
                yield waiting.pop(queue.pop(0))

    def _commit(self, written: Written) -> bool:
        """Add the range to the manifest; returns False if another export has already added part of it."""
        with manifest_of(self.archive) as tx:
            tx.alone(written.range.partition.topic)
            if tx.within(written.range):
                return False
            if written.file and self.archive.storage.size(written.file) != written.bytes:
                raise FileNotFoundError(
                    f"{self.archive.storage.path(written.file)} was written, but is now missing or shorter: do not "
                    "remove files younger than a day (Archive.sweep, lifecycle rules), and run the export again"
                )
            if self.format == "delta" and not self._commit_to_table(tx, written):
                return False
            self._add(tx, [written])
        return True

    def _commit_to_table(self, tx: Tx, written: Written) -> bool:
        """Add the range to the Delta table; if the table was ahead, add its files to the manifest and return False.

        Also checks a range without records, because the table may have a wider range that begins with it.
        """
        from seekpoint.jobs.export.delta import DeltaLog  # noqa: PLC0415 -- an extra

        table = DeltaLog(self.archive.storage, written.range.partition.topic)
        if there := list(table.ahead(written.range, tx.chain(written.range.partition, written.range.topic_id))):
            self._add(tx, there)
            return False
        if written.file:
            table.add(written)
        return True

    def _add(self, tx: Tx, written: Sequence[Written], format_: str | None = None) -> None:
        tx.add(written, format=format_ or self.format, group=self.group, run=self._run, actor=self._actor)


def _left(position: Position, chain: Sequence[Entry]) -> list[tuple[int, int]]:
    """The ranges before the position that the archive lacks, from its end or the first offset, whichever is earlier."""
    begin = min(position.first_offset, max((entry.end for entry in chain), default=position.first_offset))
    return holes(chain, begin, position.next_offset)


def applied(ledger: GroupLedger, topics: str | Collection[str] | None = None) -> list[Position]:
    """Read the group's positions in these topics (by default all), at one moment.

    Raises ConfigError for a group or a topic that the ledger does not have.
    """
    return in_topics(ledger, ledger.read(), topics)


def in_topics(
    ledger: GroupLedger, positions: Sequence[Position], topics: str | Collection[str] | None = None
) -> list[Position]:
    """The group's positions in these topics (by default all).

    Raises ConfigError for a group or a topic that the ledger does not have.
    """
    if not positions:
        raise ConfigError(
            f"the ledger in schema {ledger.schema!r} has no offsets of group {ledger.group!r}: correct the name or the "
            "schema (GroupLedger(engine, group, schema=...)), or start a worker once"
        )
    read_topics = {position.partition.topic for position in positions}
    selected = read_topics if topics is None else {topics} if isinstance(topics, str) else set(topics)
    if strange := sorted(selected - read_topics):
        raise ConfigError(
            f"group {ledger.group!r} has no offsets of {', '.join(strange)}; it reads {', '.join(sorted(read_topics))}"
        )
    return [position for position in positions if position.partition.topic in selected]
