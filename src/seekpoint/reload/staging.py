"""Staging: ranges of the log become rows in tables of their own, one transaction per attempt at a range.

Any process may stage, as often as it likes: an attempt writes tables that nobody else has, and records itself in the
same transaction, whose last statement asks whether the run still wants it. What counts is decided by the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from psycopg import sql as ident
from sqlalchemy import Connection, Engine, insert, select

from seekpoint.apply import Made
from seekpoint.deadletters import letter as letters
from seekpoint.deadletters.statements import PARK_LETTERS
from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.failure import Aside
from seekpoint.guard import is_data_fault
from seekpoint.kafka.ranges import Piece, Range, read_range
from seekpoint.pipeline import Pipeline, Row, RowRefused, Writer
from seekpoint.records import AnyRecord, Partition, RawRecord
from seekpoint.reload import statements as sql
from seekpoint.reload.layout import LIKE, LINE, OFFSET, Staging, name, names, remember_columns, run
from seekpoint.reload.parts import LeftOut, Outcome, Parts, all_of, nothing_left_out
from seekpoint.reload.run import Driver, Run, Tx, transaction
from seekpoint.reload.targets import Path, Source, Target, aimed, aimed_pipeline, targets
from seekpoint.sinks.copy import open_copy
from seekpoint.sinks.fold import Deleted
from seekpoint.sinks.upsert import Upsert
from seekpoint.tables import dead_letter, in_schema


@dataclass(frozen=True, slots=True)
class Task:
    """One range to be staged for one group: all that a process needs beside the run's id, the pipeline and servers."""

    group: str
    range: Range


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt has committed. ``attempt`` names its tables; ``rows`` counts them, sink by sink."""

    attempt: str
    group: str
    partition: Partition
    start: int
    end: int
    records: int
    rows: tuple[int, ...]
    dead_letters: int


class Stager(Protocol):
    """Who stages ranges: this process, or many."""

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterable[Staged]:
        """Stage each of them at least once; what was staged, as it is done. Raises what ends the run."""


def begin_staging(driver: Driver, sources: Sequence[Source]) -> None:
    """Make the run's schema, with the records that are to be left out: its first step."""
    with driver.step("opened") as tx:
        staging = Staging(driver.run.staging_schema)
        run(tx.connection, "CREATE SCHEMA {schema}", schema=name(staging.schema))
        staging.left_out.create(tx.connection)
        staging.lost.create(tx.connection)
        _make_letters(tx, staging)
        ends = {(at.group, at.partition): at for at in tx.positions(driver.run.id)}
        for source in sources:
            mine = {at.partition: (at.topic_id, at.first_offset, at.end_offset) for at in ends.values()
                    if at.group == source.group}  # fmt: skip
            leave_out(tx, staging, source.group, mine)
            lost = list(_lost(tx, source.group, {at: topic_id for at, (topic_id, _, _) in mine.items()}))
            if lost:
                tx.connection.execute(insert(staging.lost), lost)
        driver.turn(tx, "staging")


def _make_letters(tx: Tx, staging: Staging) -> None:
    """The run's own dead letters, in the shape of the ledger's: they are the ledger's only at the cut-over."""
    letters_ = name(staging.schema, dead_letter.name)
    run(
        tx.connection,
        "CREATE TABLE {table} (LIKE {live} INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS)",
        table=letters_,
        live=name(tx.schema, dead_letter.name),
    )
    run(
        tx.connection,
        "ALTER TABLE {table} ADD CONSTRAINT {key} UNIQUE (consumer_group, topic_id, partition, record_offset)",
        table=letters_,
        key=name("dead_letter_record_key"),
    )


def leave_out(
    tx: Tx, staging: Staging, group: str, ranges: Mapping[Partition, tuple[UUID, int, int]]
) -> set[tuple[str, int, int]]:
    """Keep which records of these ranges are dead letters now, and so have no rows; returns them."""
    ordered = sorted(ranges)
    found = tx.execute(
        sql.LETTERS,
        group=group,
        within_topic=[at.topic for at in ordered],
        within_partition=[at.number for at in ordered],
        within_topic_id=[ranges[at][0] for at in ordered],
        within_from_offset=[ranges[at][1] for at in ordered],
        within_to_offset=[ranges[at][2] for at in ordered],
    ).all()
    if found:
        columns = ("consumer_group", "topic", "partition", "record_offset")
        tx.connection.execute(
            insert(staging.left_out), [dict(zip(columns, (group, *row), strict=True)) for row in found]
        )
    return {(row.topic, row.partition, row.record_offset) for row in found}


def _lost(tx: Tx, group: str, ids: Mapping[Partition, UUID]) -> Iterator[dict[str, Any]]:
    """Ranges that were given up, as far as the position was not put back into them later."""
    moves: list[tuple[Partition, int, datetime]] = [
        (Partition(row.topic, row.partition), row.to_offset, row.at) for row in tx.execute(sql.MOVES, group=group)
    ]
    for row in tx.execute(sql.LOST, group=group):
        at = Partition(row.topic, row.partition)
        back = [to for place, to, when in moves if place == at and when > row.at and to < row.to_offset]
        end = min([row.to_offset, *(max(to, row.from_offset) for to in back)])
        if ids.get(at) == row.topic_id and end > row.from_offset:
            yield {
                "consumer_group": group,
                "topic": row.topic,
                "partition": row.partition,
                "from_offset": row.from_offset,
                "to_offset": end,
            }


def stage_range(
    engine: Engine, schema: str, kafka: Mapping[str, Any], run_id: UUID, *, pipeline: Pipeline, range_: Range
) -> Staged:
    """Stage one range of the pipeline's group: its records through codecs and sinks, into tables of this attempt.

    One transaction; what it returns is also a row of ``reload_staged``. It may be run again, and twice at once. All of
    the range goes through one COPY; where the database refuses a row, it is read again in parts, to find which.
    Raises ReloadOver where the run does not stage (any more), ReloadRefused for a record that ends it, and what reading
    the range raises.
    """
    work = _Work(kafka, run_id, pipeline, range_)
    if len(pipeline.sinks) == 1:
        try:
            with transaction(engine, schema) as tx:
                return work.stage(tx, Parts.stream)
        except RowRefused:
            pass  # told by the parts, which find it again
        except Exception as error:
            if not is_data_fault(error):
                raise
    with transaction(engine, schema) as tx:
        return work.stage(tx, all_of)


@dataclass(frozen=True, slots=True)
class _Work:
    """One attempt at one range."""

    kafka: Mapping[str, Any]
    run_id: UUID
    pipeline: Pipeline
    range: Range

    def stage(self, tx: Tx, write: Callable[[Parts, Iterable[Piece], LeftOut], Outcome]) -> Staged:
        """All that the transaction does."""
        now = tx.execute(sql.GET_RUN, its_run=self.run_id).one_or_none()
        if now is None or now.state != "staging":
            what = "gone" if now is None else now.state
            raise ReloadOver(f"reload {self.run_id} is {what}: it takes no more ranges")
        wanted = dict(zip(now.groups, now.version_to, strict=True)).get(self.pipeline.group)
        if wanted != self.pipeline.version:
            raise ConfigError(
                f"reload {self.run_id} rebuilds group {self.pipeline.group!r} with handler version {wanted}, and the "
                f"code of this process is version {self.pipeline.version}: bring it to the same, then go on"
            )
        attempt, at = f"r{self.range.partition.number}_{uuid4().hex[:16]}", self.range.partition
        staging = Staging(now.staging_schema)
        sinks = _raw_sinks(tx.connection, staging, attempt, self.pipeline)
        left_out = _left_out(tx.connection, staging, self.pipeline.group, self.range)
        counts = [0] * len(sinks)

        def count(part: Sequence[Made]) -> None:
            for number in range(len(sinks)):
                counts[number] += sum(len(made.rows[number]) for made in part)

        parts = Parts(tx.connection, aimed_pipeline(self.pipeline, sinks), count)
        outcome = write(parts, read_range(self.kafka, self.range), left_out)
        keep_asides(tx, staging, self.pipeline, outcome.asides, {at.topic: self.range.topic_id})
        for number, sink in enumerate(sinks):
            remember_columns(tx.connection, staging.raw(attempt, number), sink.columns)
        ends = self.range.start, self.range.end
        staged = Staged(attempt, self.pipeline.group, at, *ends, outcome.applied, tuple(counts), len(outcome.asides))
        _record(tx, self.run_id, staged)
        if tx.execute(sql.GUARD, its_run=self.run_id).one_or_none() is None:
            raise ReloadOver(
                f"reload {self.run_id} went on without this range while it was staged: nothing of it is kept"
            )
        return staged


def _record(tx: Tx, run_id: UUID, staged: Staged) -> None:
    tx.execute(
        sql.INSERT_STAGED,
        [
            {
                "run": run_id,
                "table_name": staged.attempt,
                "consumer_group": staged.group,
                "topic": staged.partition.topic,
                "partition": staged.partition.number,
                "from_offset": staged.start,
                "to_offset": staged.end,
                "records": staged.records,
                "row_counts": list(staged.rows),
                "dead_letters": staged.dead_letters,
            }
        ],
    )


def keep_asides(tx: Tx, staging: Staging, pipeline: Pipeline, asides: Sequence[Aside], ids: Mapping[str, UUID]) -> None:
    """What cannot be applied goes to the run's own dead letters, whole."""
    if asides:
        own = {"group": pipeline.group, "its_version": pipeline.version, "its_parked_by": None}
        tx.connection.execute(
            PARK_LETTERS,
            [letters.row(aside, ids) | own for aside in asides],
            execution_options=in_schema(staging.schema),
        )


def _left_out(connection: Connection, staging: Staging, group: str, range_: Range) -> LeftOut:
    """Which records of the range are not to be applied."""
    table, lost = staging.left_out, staging.lost
    at = range_.partition
    offsets = set(
        connection.scalars(
            select(table.c.record_offset).where(
                table.c.consumer_group == group,
                table.c.topic == at.topic,
                table.c.partition == at.number,
                table.c.record_offset.between(range_.start, range_.end),
            )
        )
    )
    gaps = connection.execute(
        select(lost.c.from_offset, lost.c.to_offset).where(
            lost.c.consumer_group == group, lost.c.topic == at.topic, lost.c.partition == at.number
        )
    ).all()
    spans = [range(start, end) for start, end in gaps if start < range_.end and end > range_.start]
    if not offsets and not spans:
        return nothing_left_out

    def is_left_out(record: RawRecord) -> bool:
        return record.offset in offsets or any(record.offset in span for span in spans)

    return is_left_out


class _RawSink:
    """A sink that writes every row of an attempt, where the one it stands for would keep one of each key.

    Rows of an Upsert get their place in the log; tombstones go to a table beside them.
    """

    def __init__(self, sink: Any, raw: Path, gone: Path) -> None:
        self._sink, self._raw, self._gone = sink, raw, gone
        self._folds = isinstance(sink, Upsert)

    @property
    def tables(self) -> tuple[str, ...]:
        return (".".join(self._raw),)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that were written; None while nobody knows."""
        written: tuple[str, ...] | None = self._sink.written
        return written

    def takes(self, topic: str) -> bool:
        return bool(self._sink.takes(topic))

    def rows(self, record: AnyRecord) -> Iterable[Row]:
        made = self._sink.rows(record)
        if not self._folds:
            return list(made)
        return [
            Deleted((*row, record.offset, line)) if type(row) is Deleted else (*row, record.offset, line)
            for line, row in enumerate(made)
        ]

    def value_rows(self, values: Sequence[Any]) -> list[Row] | None:
        rows: list[Row] | None = self._sink.value_rows(values)
        return rows

    def placed(self, rows: Sequence[Row], raw: Sequence[RawRecord]) -> Sequence[Row]:
        """Rows of :meth:`value_rows` with their places in the log, where those count."""
        return [(*row, r.offset, 0) for row, r in zip(rows, raw, strict=True)] if self._folds else rows

    @contextmanager
    def open(self, tx: Connection) -> Iterator[Writer]:
        """Rows go into the open COPY as they come; tombstones wait for its end."""
        gone = _Gone()
        try:
            with open_copy(tx, self._raw, self._columns) as copy:
                yield _Split(copy, gone) if self._folds else copy
        except RowRefused as refused:
            raise RowRefused(gone.line(refused.line), refused.cause) from refused
        try:
            with open_copy(tx, self._gone, self._columns_gone) as copy:
                copy.write(gone.rows)
        except RowRefused as refused:
            raise RowRefused(refused.line and gone.lines[refused.line - 1], refused.cause) from refused

    def _columns(self) -> tuple[str, ...]:
        written = self.columns
        assert written is not None
        return (*written, OFFSET, LINE) if self._folds else written

    def _columns_gone(self) -> tuple[str, ...]:
        return (*self._sink.target.gone, OFFSET, LINE)


class _Gone:
    """Tombstones among rows, with the places (from 1) at which they came."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.lines: list[int] = []

    def line(self, number: int | None) -> int | None:
        """The place of the n-th of the others."""
        if number is not None:
            for gone in self.lines:
                number += gone <= number
        return number


class _Split:
    """Passes rows on, and keeps tombstones."""

    def __init__(self, copy: Writer, gone: _Gone) -> None:
        self._copy, self._gone, self._passed = copy, gone, 0

    def write(self, rows: Sequence[Row]) -> None:
        if Deleted in set(map(type, rows)):
            for line, row in enumerate(rows, self._passed + 1):
                if type(row) is Deleted:
                    self._gone.rows.append(row)
                    self._gone.lines.append(line)
            self._passed += len(rows)
            rows = [row for row in rows if type(row) is not Deleted]
        else:
            self._passed += len(rows)
        self._copy.write(rows)


def _raw_sinks(connection: Connection, staging: Staging, attempt: str, pipeline: Pipeline) -> list[_RawSink]:
    found = targets(connection, [Source("", pipeline)])
    live: dict[int, Target] = {feed.number: target for target in found for feed in target.feeds}
    sinks = []
    for number, sink in enumerate(pipeline.sinks):
        raw, gone = staging.raw(attempt, number), staging.gone(attempt, number)
        _make_raw(connection, live[number], sink, raw, gone)
        sinks.append(_RawSink(aimed(sink, raw), raw, gone))  # type: ignore[arg-type]
    return sinks


def _make_raw(connection: Connection, target: Target, sink: Any, raw: Path, gone: Path) -> None:
    """Tables without an index; an Upsert's rows with their places, and its tombstones' columns without NOT NULL."""
    live = name(*target.path)
    if not isinstance(sink, Upsert):
        run(connection, "CREATE TABLE {raw} ({like})", raw=name(*raw), like=LIKE.format(live))
        return
    places = ident.SQL("{} bigint, {} integer").format(name(OFFSET), name(LINE))
    run(connection, "CREATE TABLE {raw} ({like}, {at})", raw=name(*raw), like=LIKE.format(live), at=places)
    columns = [column for column in sink.target.gone if column in target.all_columns]
    run(
        connection,
        "CREATE TABLE {gone} AS SELECT {columns}, 0::bigint AS {offset}, 0 AS {line} FROM {live} WITH NO DATA",
        gone=name(*gone),
        columns=names(columns),
        offset=name(OFFSET),
        line=name(LINE),
        live=live,
    )
