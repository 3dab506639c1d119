"""Staging: writes the rows of a range of the log to separate tables, in one transaction per attempt.

Any process may stage a range, any number of times. Each attempt writes new tables, and records itself at the end of the
same transaction, if the run still accepts rows. The driver decides which attempts count. A rebuilt table that tasks
write directly has the rows of every recorded attempt, so an attempt is only recorded if it overlaps no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID, uuid4

from msgspec import structs
from sqlalchemy import Connection, Engine, Row, insert, select
from sqlalchemy.dialects import postgresql

from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.jobs.export import ArchivedReader
from seekpoint.jobs.staging.attempt_tables import attempt_sinks
from seekpoint.jobs.staging.direct import why_copied
from seekpoint.jobs.staging.lost_ranges import Lost, Reset, Span, not_applied
from seekpoint.jobs.staging.savepoints import LeftOut, RecordWriter, WriteResult, nothing_left_out
from seekpoint.jobs.staging.task_errors import make_task_errors
from seekpoint.jobs.tables.constraints import expected_columns
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.sql_templates import rows, run
from seekpoint.jobs.tables.staging_schema import UNLOGGED, Staging, is_there, of_partition, remember_columns, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target, aimed_pipeline, require_no_handler, targets
from seekpoint.kafka.ranges import Piece, Range
from seekpoint.ledger.dead_letters import insert_parameters
from seekpoint.ledger.schema_connection import SchemaConnection
from seekpoint.ledger.sql import DEAD_LETTERS, RELOAD_RUN
from seekpoint.ledger.tables import BATCHES, dead_letter, reload_staged
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.policy import OnPoison
from seekpoint.pipeline.sink import RowRefused
from seekpoint.pipeline.writers import PipelineWriters
from seekpoint.postgres.sqlstates import is_data_error
from seekpoint.records import NewDeadLetter, Partition, RawRecord
from seekpoint.runs.run import CRASH_CHECK, Driver, Run, Step, Tx, run_of, transaction

Ranges = Mapping[Partition, tuple[UUID, int, int]]
"""Topic id, first offset, and the offset after the last."""
Edits = Mapping[tuple[str, int, int], bytes]
"""Values by topic, partition and offset."""

STAGING = ("staging",)  # the states in which tasks stage

#: For runs of frames, whose tasks run until the cut-over; the driver counts only ranges that tasks returned to it.
FRAMES_STAGING = ("staging", "catching_up", "compared")


@dataclass(frozen=True, slots=True)
class Task:
    """One range to stage for one group."""

    group: str
    range: Range


@dataclass(frozen=True, slots=True)
class Staged:
    """A committed attempt. ``attempt`` is the prefix of its tables; ``rows`` counts its rows by sink."""

    attempt: str
    group: str
    partition: Partition
    start: int
    end: int
    records: int
    rows: Sequence[int]
    dead_letters: int

    @property
    def place(self) -> tuple[str, Partition]:
        """The group and partition."""
        return self.group, self.partition


def all_staged(tx: Tx, run_id: UUID) -> Iterator[Staged]:
    """The committed attempts of a run, partition by partition, ordered by first offset."""
    yield from map(_staged_of, tx.execute(RELOAD_RUN["staged"], run=run_id))


def _staged_of(row: Row[Any]) -> Staged:
    _, attempt, group, topic, number, *rest, _ = tuple(row)
    return Staged(attempt, group, Partition(topic, number), *rest)


class Stager(Protocol):
    """Stages ranges, in this process or in others."""

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterable[Staged]:
        """Stage each task at least once; yields each committed attempt. Raises the error that ends the run."""


def begin_staging(driver: Driver, sources: Sequence[PipelineSource]) -> None:
    """Create the run's schema and store which records to omit from the staged rows: the first step of a run."""
    with driver.step("opened") as tx:
        staging = Staging(tx.run.staging_schema)
        run(tx.connection, "CREATE SCHEMA {schema}", schema=(staging.schema,))
        if staging.schema.startswith(UNLOGGED):
            check = (staging.schema, CRASH_CHECK)
            run(tx.connection, "CREATE UNLOGGED TABLE {check} AS SELECT true AS is_there", check=check)
        staging.left_out.create(tx.connection)
        staging.lost.create(tx.connection)
        _make_dead_letters(tx, staging)
        make_task_errors(tx, staging.schema)
        _remember_writes(tx, staging, sources, _make_direct(tx, staging, sources))
        positions = tx.positions()
        for source in sources:
            ranges = {
                position.partition: (position.topic_id, position.first_offset, position.end_offset)
                for position in positions
                if position.group == source.group
            }
            leave_out(tx, staging, source.group, ranges)
            lost = [
                {"consumer_group": source.group, "topic": partition.topic, "partition": partition.number,
                 "from_offset": start, "to_offset": end}
                for partition, (start, end) in lost_within(tx, source.group, ranges)
            ]  # fmt: skip
            if lost:
                tx.connection.execute(insert(staging.lost), lost)
        driver.transition(tx, "staging")


def _make_direct(tx: Step, staging: Staging, sources: Sequence[PipelineSource]) -> dict[str, str]:
    """Create the rebuilt tables that tasks write directly; returns their names by live table's name."""
    if tx.run.strategy in BATCHES or tx.run.is_of_frames:
        return {}
    tables = targets(tx.connection, sources)
    direct = [target for target in tables if why_copied(tx.connection, target, tables, sources) is None]
    for target in direct:
        make_rebuilt(tx, staging, target)
        first = target.feeds[0]
        columns = expected_columns(first.sink, sources[first.source].pipeline)
        remember_columns(tx.connection, staging.table(target), columns)
    return {target.name: target.staged for target in direct}


def make_rebuilt(tx: Step, staging: Staging, target: Target) -> None:
    """Create the rebuilt table, without indexes."""
    replaces = tx.run.strategy == "swap"
    make_like(tx.connection, staging.table(target), target.path, prefix=target.staged, replaces=replaces)


def _make_dead_letters(tx: Tx, staging: Staging) -> None:
    """Create the run's table of dead letters, with the ledger's columns; the cut-over moves its rows to the ledger."""
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (LIKE {live} INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS, "
        "CONSTRAINT dead_letter_record_key UNIQUE (consumer_group, topic_id, partition, record_offset))",
        unlogged=unlogged(staging.schema),
        table=(staging.schema, dead_letter.name),
        live=(tx.schema, dead_letter.name),
    )


def dead_letters_within(tx: Tx, group: str, ranges: Ranges) -> Sequence[Row[Any]]:
    """Topic, partition and offset of the dead letters in these ranges that were not applied."""
    return tx.execute(RELOAD_RUN["left_out"], group=group, **_within(ranges)).all()


def _within(ranges: Ranges) -> dict[str, Any]:
    """The ranges as parameters of a statement."""
    ordered = sorted(ranges)
    return {
        "within_topic": [partition.topic for partition in ordered],
        "within_partition": [partition.number for partition in ordered],
        "within_topic_id": [ranges[partition][0] for partition in ordered],
        "within_from_offset": [ranges[partition][1] for partition in ordered],
        "within_to_offset": [ranges[partition][2] for partition in ordered],
    }


def edits_within(tx: Tx, group: str, ranges: Ranges) -> Edits:
    """The edited values in these ranges that replays have applied instead of the values in the log.

    Call it after :func:`leave_out`: a record that is replayed between the two calls is still omitted.
    """
    edits = tx.execute(RELOAD_RUN["edits"], group=group, **_within(ranges))
    return {(row.topic, row.partition, row.record_offset): bytes(row.edited_value) for row in edits}


def with_edits(pieces: Iterable[Piece], edits: Edits) -> Iterable[Piece]:
    """The pieces, with edited values instead of those in the log."""
    return (replace(piece, records=edited(piece.records, edits)) for piece in pieces) if edits else pieces


def edited(records: Sequence[RawRecord], edits: Edits) -> Sequence[RawRecord]:
    """The records, with edited values instead of those in the log."""
    if not edits:
        return records
    values = [edits.get((record.topic, record.partition, record.offset)) for record in records]
    return [
        record if value is None else structs.replace(record, value=value)
        for record, value in zip(records, values, strict=True)
    ]


def leave_out(tx: Tx, staging: Staging, group: str, ranges: Ranges) -> None:
    """Store which records of these ranges are now dead letters, so that they make no rows."""
    dead_letters = dead_letters_within(tx, group, ranges)
    if dead_letters:
        parameters = [row._asdict() | {"consumer_group": group} for row in dead_letters]
        # If the driver crashed before it merged a pass of frames, that pass is repeated, and its rows exist already.
        tx.connection.execute(postgresql.insert(staging.left_out).on_conflict_do_nothing(), parameters)


def lost_within(tx: Tx, group: str, ranges: Ranges) -> Iterator[tuple[Partition, Span]]:
    """The lost ranges, without offsets that workers have nevertheless applied.

    ``ranges`` have the topic's id, the first offset that the group has applied, and the end.
    """
    resets = [
        Reset(Partition(row.topic, row.partition), row.from_offset, row.to_offset, row.at, row.takes_back)
        for row in tx.execute(RELOAD_RUN["resets"], group=group)
    ]
    lost = [
        Lost(Partition(row.topic, row.partition), row.topic_id, row.from_offset, row.to_offset, row.reason, row.at)
        for row in tx.execute(RELOAD_RUN["lost"], group=group)
    ]
    ids = {partition: topic_id for partition, (topic_id, _, _) in ranges.items()}
    lowered = tx.execute(RELOAD_RUN["first_offsets"], group=group)
    firsts = {partition: first for partition, (_, first, _) in ranges.items()}
    firsts |= {Partition(row.topic, row.partition): row.first_offset for row in lowered}
    return not_applied(lost, resets, ids, firsts)


def stage_range(
    engine: Engine, schema: str, kafka: Mapping[str, Any], run_id: UUID, *, pipeline: Pipeline, range_: Range
) -> Staged:
    """Stage one range of the pipeline's group: decode its records and write their rows to tables of this attempt.

    One transaction writes the rows and stores the returned value in ``reload_staged``. The call may be repeated, even
    concurrently. For a group with a table that tasks write directly, only the first attempt is stored, and the others
    return it. A single sink's rows go through one COPY; if the database refuses a row, the range is read again and
    written in parts to find it. Raises ReloadOver if the run is not staging, ReloadRefused for a record that ends the
    run, and the errors of reading the range.
    """

    def attempt(write: Callable[[RecordWriter, Iterable[Piece], LeftOut], WriteResult]) -> Staged:
        try:
            with transaction(engine, schema) as tx:
                return _attempt(tx, kafka, run_id, pipeline, range_, write=write)
        except _AlreadyStaged as other:
            return other.staged

    if len(pipeline.sinks) == 1:
        try:
            return attempt(RecordWriter.stream)
        except RowRefused:
            pass  # attempt() below writes the range in parts and finds the record
        except Exception as error:
            if not is_data_error(error):
                raise
    return attempt(RecordWriter.write)


def _attempt(
    tx: Tx,
    kafka: Mapping[str, Any],
    run_id: UUID,
    pipeline: Pipeline,
    range_: Range,
    *,
    write: Callable[[RecordWriter, Iterable[Piece], LeftOut], WriteResult],
) -> Staged:
    """Stage the range in this transaction."""
    now = staging_run(tx, run_id)
    require_no_handler(pipeline)
    tables = targets(tx.connection, [PipelineSource("", pipeline)])
    staging = Staging(now.staging_schema)
    require_code(tx, now, [PipelineSource("", pipeline)])
    attempt = new_attempt(range_)
    rebuilds = now.strategy not in BATCHES
    direct = direct_tables(tx, staging, [pipeline.group])
    if direct:
        _begin_direct(tx, run_id, pipeline.group, range_, direct.values())
    sinks = attempt_sinks(tx.connection, staging, attempt, pipeline, tables, rebuilds=rebuilds, direct=direct)
    left_out = left_out_of(tx.connection, staging, pipeline.group, range_)
    writing = aimed_pipeline(pipeline, sinks)
    if now.strategy == "reprocess":  # the group's position is past a failing record, where no worker would stop
        writing.on_poison = OnPoison.DEAD_LETTER
    writer = RecordWriter(tx.connection, PipelineWriters(writing), blocks_later=rebuilds)
    edits = edits_within(tx, pipeline.group, {range_.partition: (range_.topic_id, range_.start, range_.end)})
    pieces = with_edits(ArchivedReader.of(kafka, now.archive, tx.connection.engine).read(range_), edits)
    result = write(writer, pieces, left_out)
    keep_dead_letters(tx, staging, pipeline, result.dead_letters, {range_.partition.topic: range_.topic_id})
    for sink in sinks:
        sink.finish(tx.connection)
    counts = range_.start, range_.end, result.applied, list(result.rows), len(result.dead_letters)
    staged = Staged(attempt, pipeline.group, range_.partition, *counts)
    store_attempt(tx, run_id, staged, is_alone=bool(direct))
    return staged


class _AlreadyStaged(Exception):  # noqa: N818 -- no error: the other attempt counts
    """Another attempt at offsets of the range is recorded, so this one's rows are rolled back."""

    def __init__(self, staged: Staged) -> None:
        super().__init__(staged)
        self.staged = staged


def _begin_direct(tx: Tx, run_id: UUID, group: str, range_: Range, tables: Collection[Path]) -> None:
    """Lock the rebuilt tables, then check the run.

    So a task whose lock the driver has not found after the staging ends here, before it writes.
    """
    for table in sorted(tables):
        run(tx.connection, "LOCK TABLE {table} IN ROW EXCLUSIVE MODE", table=table)
    staging_run(tx, run_id)
    _require_alone(tx, _offsets(run_id, group, range_.partition, range_.start, range_.end))


def _offsets(run_id: UUID, group: str, partition: Partition, start: int, end: int) -> dict[str, Any]:
    """The offsets of an attempt as parameters of a statement."""
    where = {"run": run_id, "group": group, "topic": partition.topic, "partition": partition.number}
    return where | {"from_offset": start, "to_offset": end}


def _require_alone(tx: Tx, offsets: Mapping[str, Any]) -> None:
    """Raise _AlreadyStaged if an attempt at some of these offsets is recorded."""
    for row in tx.execute(RELOAD_RUN["overlapping"], **offsets):
        raise _AlreadyStaged(_staged_of(row))


def new_attempt(range_: Range) -> str:
    """A new name for an attempt at the range, the prefix of its tables."""
    return f"r{range_.partition.number}_{uuid4().hex[:16]}"


def staging_run(tx: Tx, run_id: UUID, states: Collection[str] = STAGING) -> Run:
    """The run, if it is staging. Raises ReloadOver if it is not."""
    row = tx.execute(RELOAD_RUN["get_run"], run=run_id).one_or_none()
    if row is None or row.state not in states:
        state = "gone" if row is None else row.state
        raise ReloadOver(f"run {run_id} is {state}: it accepts no more ranges")
    return run_of(row)


def store_attempt(
    tx: Tx, run_id: UUID, staged: Staged, states: Sequence[str] = STAGING, *, is_alone: bool = False
) -> None:
    """Record an attempt at a range, at the end of the transaction that wrote its rows. Raises ReloadOver.

    ``is_alone``: raises _AlreadyStaged if it overlaps a recorded attempt. The run's row is locked before the position,
    as by the driver.
    """
    require_staging(tx, run_id, states)
    if is_alone:
        offsets = _offsets(run_id, staged.group, staged.partition, staged.start, staged.end)
        if tx.execute(RELOAD_RUN["lock_range"], **offsets).one_or_none() is None:
            raise ConfigError(
                f"{staged.partition} [{staged.start}, {staged.end}) is outside of what run {run_id} stages"
            )
        _require_alone(tx, offsets)
    values = (run_id, staged.attempt, staged.group, *staged.partition, staged.start, staged.end, staged.records,
              list(staged.rows), staged.dead_letters)  # fmt: skip
    tx.execute(RELOAD_RUN["insert_staged"], [dict(zip(reload_staged.columns.keys(), values, strict=False))])


def require_staging(tx: Tx, run_id: UUID, states: Sequence[str] = STAGING) -> None:
    """Keep the run's state until a staging transaction ends. Raises ReloadOver if the run no longer accepts rows."""
    if tx.execute(RELOAD_RUN["guard"], run=run_id, states=list(states)).one_or_none() is None:
        raise ReloadOver(f"run {run_id} continued while these rows were staged, so they are dropped")


def require_code(tx: Tx, run_: Run, sources: Sequence[PipelineSource]) -> None:
    """Raise ConfigError if this code has other groups, handler versions or tables than the run.

    Called by each task, for its one group; and before a take-over, which would fence a driver with the right code.
    """
    versions, kind = dict(zip(run_.groups, run_.version_to, strict=True)), run_.kind
    for source in sources:
        group, version = source.group, source.pipeline.version
        written = {target.name for target in targets(tx.connection, [source])}
        theirs = _writes_of(tx, run_.staging_schema, group) or (set(run_.tables) if len(versions) == 1 else written)
        if versions.get(group) != version:
            has = " and ".join(f"group {name!r} with handler version {number}" for name, number in versions.items())
            problem = f"is of {has}, and the code of this process is version {version} of {group!r}"
        elif written != theirs:
            problem = f"writes {', '.join(sorted(theirs))}, and these sinks write {', '.join(sorted(written))}"
        else:
            continue
        raise ConfigError(f"{kind} {run_.id} {problem}: resume it with its own code, or abort it and open another")


def keep_dead_letters(
    tx: Tx, staging: Staging, pipeline: Pipeline, dead_letters: Sequence[NewDeadLetter], ids: Mapping[str, UUID]
) -> None:
    """Store complete records that cannot be applied among the run's dead letters."""
    if dead_letters:
        own = {"group": pipeline.group, "version": pipeline.version, "dead_lettered_by": None}
        staging_tables = SchemaConnection(tx.connection, staging.schema)
        staging_tables.execute(
            DEAD_LETTERS["insert"], [insert_parameters(failed, ids) | own for failed in dead_letters]
        )


def left_out_of(connection: Connection, staging: Staging, group: str, range_: Range) -> LeftOut:
    """A predicate that is true for records of the range that must not be applied."""
    table, lost = staging.left_out, staging.lost
    within = table.c.record_offset.between(range_.start, range_.end)
    left_out = select(table.c.record_offset).where(*of_partition(table.c, group, range_.partition), within)
    offsets = set(connection.scalars(left_out))
    statement = select(lost.c.from_offset, lost.c.to_offset).where(*of_partition(lost.c, group, range_.partition))
    gaps = connection.execute(statement).all()
    spans = [range(start, end) for start, end in gaps if start < range_.end and end > range_.start]
    if not offsets and not spans:
        return nothing_left_out
    return lambda record: record.offset in offsets or any(record.offset in span for span in spans)


_WRITES = "writes"  # a table that lists each group's tables: a task knows only its own pipeline


def _remember_writes(tx: Tx, staging: Staging, sources: Sequence[PipelineSource], rebuilt: Mapping[str, str]) -> None:
    """Store which tables the driver's code writes, by group, and the ``rebuilt`` ones that tasks write directly."""
    table = (staging.schema, _WRITES)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (consumer_group text, table_name text, rebuilt text, "
        "PRIMARY KEY (consumer_group, table_name))",
        unlogged=unlogged(staging.schema),
        table=table,
    )
    for source in sources:
        for target in targets(tx.connection, [source]):
            row = {"group": source.group, "name": target.name, "rebuilt": rebuilt.get(target.name)}
            run(tx.connection, "INSERT INTO {table} VALUES ({group}, {name}, {rebuilt})", table=table, **row)


def _writes_of(tx: Tx, staging_schema: str, group: str) -> set[str]:
    """The tables that this group writes in the run; empty if none are stored, because the run has not begun."""
    table = (staging_schema, _WRITES)
    if not is_there(tx.connection, table):
        return set()
    statement = "SELECT table_name FROM {table} WHERE consumer_group = {group}"
    return {row[0] for row in rows(tx.connection, statement, table=table, group=group)}


def direct_tables(tx: Tx, staging: Staging, groups: Sequence[str]) -> dict[str, Path]:
    """The rebuilt tables that tasks of these groups write directly, by the live table's name."""
    statement = "SELECT table_name, rebuilt FROM {table} WHERE rebuilt IS NOT NULL AND consumer_group = ANY ({groups})"
    tables = rows(tx.connection, statement, table=(staging.schema, _WRITES), groups=list(groups))
    return {name: (staging.schema, rebuilt) for name, rebuilt in tables}
