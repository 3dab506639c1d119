"""Staging: ranges of the log become rows in tables of their own, one transaction per attempt at a range.

Any process may stage, as often as it likes: an attempt writes tables that nobody else has, and records itself in the
same transaction, whose last statement asks whether the run still wants it. What counts is decided by the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, insert, select

from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.jobs.export import chained
from seekpoint.jobs.run import statements as sql
from seekpoint.jobs.run.run import CRASH_CHECK, Driver, Run, Tx, run_of, transaction
from seekpoint.jobs.staging.attempt_tables import attempt_sinks
from seekpoint.jobs.staging.group_tables import remember_writes, writes_of
from seekpoint.jobs.staging.savepoints import LeftOut, Outcome, Parts, all_of, nothing_left_out
from seekpoint.jobs.staging.task_errors import make_endings
from seekpoint.jobs.tables.compose import name, run
from seekpoint.jobs.tables.redirect import hush
from seekpoint.jobs.tables.staging_schema import UNLOGGED, Staging, remember_columns, unlogged
from seekpoint.jobs.tables.targets import Source, aimed_pipeline, targets
from seekpoint.kafka.ranges import Piece, Range
from seekpoint.ledger.dead_letters import dead_letter as letters
from seekpoint.ledger.dead_letters.statements import INSERT_DEAD_LETTERS
from seekpoint.ledger.tables import LARGEST_BIGINT, dead_letter, in_schema
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import RowRefused
from seekpoint.postgres.sqlstates import is_data_error
from seekpoint.records import NewDeadLetter, Partition, RawRecord


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
        staging = Staging(tx.run.staging_schema)
        run(tx.connection, "CREATE SCHEMA {schema}", schema=name(staging.schema))
        if staging.schema.startswith(UNLOGGED):
            check = name(staging.schema, CRASH_CHECK)
            run(tx.connection, "CREATE UNLOGGED TABLE {check} AS SELECT true AS is_there", check=check)
        staging.left_out.create(tx.connection)
        staging.lost.create(tx.connection)
        _make_letters(tx, staging)
        make_endings(tx, staging.schema)
        if any(source.has_handler for source in sources):
            hush(tx.connection, staging.schema)
        remember_writes(tx, staging.schema, sources)
        ends = {(at.group, at.partition): at for at in tx.positions()}
        for source in sources:
            mine = {at.partition: (at.topic_id, at.first_offset, at.end_offset) for at in ends.values()
                    if at.group == source.group}  # fmt: skip
            leave_out(tx, staging, source.group, mine)
            lost = list(_lost(tx, source.group, {at: topic_id for at, (topic_id, _, _) in mine.items()}))
            if lost:
                tx.connection.execute(insert(staging.lost), lost)
        driver.transition(tx, "staging")


def _make_letters(tx: Tx, staging: Staging) -> None:
    """The run's own dead letters, in the shape of the ledger's: they are the ledger's only at the cut-over."""
    letters_ = name(staging.schema, dead_letter.name)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (LIKE {live} INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS)",
        unlogged=unlogged(staging.schema),
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
        if ids.get(at) != row.topic_id:
            continue
        lost_to = LARGEST_BIGINT if row.to_offset is None else row.to_offset  # NULL: where it ends is not known
        back = [to for place, to, when in moves if place == at and when > row.at and to < lost_to]
        end = min([lost_to, *(max(to, row.from_offset) for to in back)])
        if end > row.from_offset:
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
    work = _Work(engine, kafka, run_id, pipeline, range_)
    if len(pipeline.sinks) == 1:
        try:
            with transaction(engine, schema) as tx:
                return work.stage(tx, Parts.stream)
        except RowRefused:
            pass  # told by the parts, which find it again
        except Exception as error:
            if not is_data_error(error):
                raise
    with transaction(engine, schema) as tx:
        return work.stage(tx, all_of)


@dataclass(frozen=True, slots=True)
class _Work:
    """One attempt at one range."""

    engine: Engine
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
        found = targets(tx.connection, [Source("", self.pipeline)])
        tables = {target.name for target in found}
        _require_the_runs(run_of(now), self.pipeline, tables, writes_of(tx, now.staging_schema, self.pipeline.group))
        attempt, at = f"r{self.range.partition.number}_{uuid4().hex[:16]}", self.range.partition
        staging = Staging(now.staging_schema)
        sinks = attempt_sinks(tx.connection, staging, attempt, self.pipeline, found)
        left_out = left_out_of(tx.connection, staging, self.pipeline.group, self.range)
        parts = Parts(tx.connection, aimed_pipeline(self.pipeline, sinks))
        outcome = write(parts, chained(self.kafka, now.archive, self.engine).read(self.range), left_out)
        keep_dead_letters(tx, staging, self.pipeline, outcome.dead_letters, {at.topic: self.range.topic_id})
        for number, sink in enumerate(sinks):
            remember_columns(tx.connection, staging.attempt_rows(attempt, number), sink.columns)
        ends = self.range.start, self.range.end
        staged = Staged(
            attempt, self.pipeline.group, at, *ends, outcome.applied, tuple(outcome.rows), len(outcome.dead_letters)
        )
        _record(tx, self.run_id, staged)
        if tx.execute(sql.GUARD, its_run=self.run_id).one_or_none() is None:
            raise ReloadOver(
                f"reload {self.run_id} went on without this range while it was staged: nothing of it is kept"
            )
        return staged


def _require_the_runs(its: Run, pipeline: Pipeline, tables: set[str], theirs: set[str] | None) -> None:
    """Refuse code that is not the run's; the run itself can go on, with the right one."""
    wanted = dict(zip(its.groups, its.version_to, strict=True)).get(pipeline.group)
    if wanted != pipeline.version:
        raise ConfigError(
            f"reload {its.id} rebuilds group {pipeline.group!r} with handler version {wanted}, and the code of this "
            f"process is version {pipeline.version}: bring it to the same, then go on"
        )
    theirs = set(its.tables) if theirs is None else theirs
    if tables != theirs:
        raise ConfigError(
            f"reload {its.id} is of {', '.join(sorted(theirs))}, and the sinks of this process write "
            f"{', '.join(sorted(tables))}: bring its code to the driver's, then go on"
        )


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


def keep_dead_letters(
    tx: Tx, staging: Staging, pipeline: Pipeline, asides: Sequence[NewDeadLetter], ids: Mapping[str, UUID]
) -> None:
    """What cannot be applied goes to the run's own dead letters, whole."""
    if asides:
        own = {"group": pipeline.group, "its_version": pipeline.version, "its_dead_lettered_by": None}
        tx.connection.execute(
            INSERT_DEAD_LETTERS,
            [letters.row(aside, ids) | own for aside in asides],
            execution_options=in_schema(staging.schema),
        )


def left_out_of(connection: Connection, staging: Staging, group: str, range_: Range) -> LeftOut:
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
