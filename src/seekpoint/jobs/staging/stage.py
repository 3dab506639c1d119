"""Staging: ranges of the log become rows in tables of their own, one transaction per attempt at a range.

Any process may stage, as often as it likes: an attempt writes tables of its own, and records itself in the
same transaction, whose last statement asks whether the run still wants it. What counts is decided by the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine, Row, insert, select

from seekpoint.errors import ConfigError, ReloadOver
from seekpoint.jobs.export import ArchivedReader
from seekpoint.jobs.run import CRASH_CHECK, Driver, Run, Tx, run_of, transaction
from seekpoint.jobs.staging.attempt_tables import attempt_sinks
from seekpoint.jobs.staging.lost_ranges import Lost, Reset, not_applied
from seekpoint.jobs.staging.savepoints import LeftOut, RecordWriter, WriteResult, nothing_left_out
from seekpoint.jobs.staging.task_errors import make_task_errors
from seekpoint.jobs.tables.sql_templates import rows, run
from seekpoint.jobs.tables.staging_schema import UNLOGGED, Staging, is_there, of_partition, remember_columns, unlogged
from seekpoint.jobs.tables.targets import PipelineSource, aimed_pipeline, require_no_handler, targets
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
from seekpoint.records import NewDeadLetter, Partition


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
    rows: Sequence[int]
    dead_letters: int

    @property
    def place(self) -> tuple[str, Partition]:
        """Whose offsets of which partition they are."""
        return self.group, self.partition


def all_staged(tx: Tx, run_id: UUID) -> Iterator[Staged]:
    """What attempts have committed for the run, partition by partition in the order of their first offsets."""
    for row in tx.execute(RELOAD_RUN["staged"], run=run_id):
        _, attempt, group, topic, number, *rest, _ = tuple(row)
        yield Staged(attempt, group, Partition(topic, number), *rest)


class Stager(Protocol):
    """Who stages ranges: this process, or many."""

    def stage(self, run: Run, tasks: Sequence[Task]) -> Iterable[Staged]:
        """Stage each of them at least once; what was staged, as it is done. Raises what ends the run."""


def begin_staging(driver: Driver, sources: Sequence[PipelineSource]) -> None:
    """Make the run's schema, with the records that are to be left out: its first step."""
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
        remember_writes(tx, staging.schema, sources)
        ends = {(at.group, at.partition): at for at in tx.positions()}
        for source in sources:
            mine = {at.partition: (at.topic_id, at.first_offset, at.end_offset) for at in ends.values()
                    if at.group == source.group}  # fmt: skip
            leave_out(tx, staging, source.group, mine)
            lost = list(_lost(tx, source.group, mine))
            if lost:
                tx.connection.execute(insert(staging.lost), lost)
        driver.transition(tx, "staging")


def _make_dead_letters(tx: Tx, staging: Staging) -> None:
    """The run's own dead letters, in the shape of the ledger's, which get them at the cut-over."""
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (LIKE {live} INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS, "
        "CONSTRAINT dead_letter_record_key UNIQUE (consumer_group, topic_id, partition, record_offset))",
        unlogged=unlogged(staging.schema),
        table=(staging.schema, dead_letter.name),
        live=(tx.schema, dead_letter.name),
    )


def dead_letters_within(tx: Tx, group: str, ranges: Mapping[Partition, tuple[UUID, int, int]]) -> Sequence[Row[Any]]:
    """Topic, partition and offset of the records in these ranges that are dead letters now, and were not applied."""
    ordered = sorted(ranges)
    return tx.execute(
        RELOAD_RUN["left_out"],
        group=group,
        within_topic=[at.topic for at in ordered],
        within_partition=[at.number for at in ordered],
        within_topic_id=[ranges[at][0] for at in ordered],
        within_from_offset=[ranges[at][1] for at in ordered],
        within_to_offset=[ranges[at][2] for at in ordered],
    ).all()


def leave_out(
    tx: Tx, staging: Staging, group: str, ranges: Mapping[Partition, tuple[UUID, int, int]]
) -> set[tuple[str, int, int]]:
    """Keep which records of these ranges are dead letters now, and so have no rows; returns them."""
    found = dead_letters_within(tx, group, ranges)
    if found:
        tx.connection.execute(insert(staging.left_out), [row._asdict() | {"consumer_group": group} for row in found])
    return {(row.topic, row.partition, row.record_offset) for row in found}


def _lost(tx: Tx, group: str, ranges: Mapping[Partition, tuple[UUID, int, int]]) -> Iterator[dict[str, Any]]:
    """Ranges that were given up, as far as they were not applied all the same."""
    resets = [
        Reset(Partition(row.topic, row.partition), row.from_offset, row.to_offset, row.at)
        for row in tx.execute(RELOAD_RUN["resets"], group=group)
    ]
    lost = [
        Lost(Partition(row.topic, row.partition), row.topic_id, row.from_offset, row.to_offset, row.reason, row.at)
        for row in tx.execute(RELOAD_RUN["lost"], group=group)
    ]
    ids = {at: topic_id for at, (topic_id, _, _) in ranges.items()}
    lowered = tx.execute(RELOAD_RUN["first_offsets"], group=group)
    firsts = {at: first for at, (_, first, _) in ranges.items()}
    firsts |= {Partition(row.topic, row.partition): row.first_offset for row in lowered}
    for at, (start, end) in not_applied(lost, resets, ids, firsts):
        yield {
            "consumer_group": group,
            "topic": at.topic,
            "partition": at.number,
            "from_offset": start,
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

    def attempt(write: Callable[[RecordWriter, Iterable[Piece], LeftOut], WriteResult]) -> Staged:
        with transaction(engine, schema) as tx:
            return _attempt(tx, kafka, run_id, pipeline, range_, write=write)

    if len(pipeline.sinks) == 1:
        try:
            return attempt(RecordWriter.stream)
        except RowRefused:
            pass  # written again in parts, which find the record
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
    """All that the transaction does."""
    now = tx.execute(RELOAD_RUN["get_run"], run=run_id).one_or_none()
    if now is None or now.state != "staging":
        what = "gone" if now is None else now.state
        raise ReloadOver(f"run {run_id} is {what}: it takes no more ranges")
    require_no_handler(pipeline)
    found = targets(tx.connection, [PipelineSource("", pipeline)])
    staging = Staging(now.staging_schema)
    require_code(tx, run_of(now), [PipelineSource("", pipeline)])
    attempt = f"r{range_.partition.number}_{uuid4().hex[:16]}"
    sinks = attempt_sinks(tx.connection, staging, attempt, pipeline, found)
    left_out = left_out_of(tx.connection, staging, pipeline.group, range_)
    writing = aimed_pipeline(pipeline, sinks)
    if now.strategy == "reprocess":  # the group's position is past a record that fails: no worker stops there
        writing.on_poison = OnPoison.DEAD_LETTER
    writer = RecordWriter(tx.connection, PipelineWriters(writing), blocks_later=now.strategy not in BATCHES)
    result = write(writer, ArchivedReader.of(kafka, now.archive, tx.connection.engine).read(range_), left_out)
    keep_dead_letters(tx, staging, pipeline, result.dead_letters, {range_.partition.topic: range_.topic_id})
    for number, sink in enumerate(sinks):
        remember_columns(tx.connection, staging.attempt_rows(attempt, number), sink.columns)
    counts = range_.start, range_.end, result.applied, list(result.rows), len(result.dead_letters)
    values = (run_id, attempt, pipeline.group, *range_.partition, *counts)
    tx.execute(RELOAD_RUN["insert_staged"], [dict(zip(reload_staged.columns.keys(), values, strict=False))])
    if tx.execute(RELOAD_RUN["guard"], run=run_id, state="staging").one_or_none() is None:
        raise ReloadOver(f"run {run_id} continued without this range while it was staged: nothing of it is kept")
    return Staged(attempt, pipeline.group, range_.partition, *counts)


def require_code(tx: Tx, run_: Run, sources: Sequence[PipelineSource]) -> None:
    """Raise ConfigError where this code is not the run's: other groups or handler versions, other tables.

    Asked before a run is taken over, so that a driver with the right code may continue, and by each task, which knows
    one group.
    """
    wanted, kind = dict(zip(run_.groups, run_.version_to, strict=True)), run_.kind
    for source in sources:
        group, version = source.group, source.pipeline.version
        written = {target.name for target in targets(tx.connection, [source])}
        theirs = writes_of(tx, run_.staging_schema, group) or (set(run_.tables) if len(wanted) == 1 else written)
        if wanted.get(group) != version:
            has = " and ".join(f"group {name!r} with handler version {number}" for name, number in wanted.items())
            what = f"is of {has}, and the code of this process is version {version} of {group!r}"
        elif written != theirs:
            what = f"writes {', '.join(sorted(theirs))}, and these sinks write {', '.join(sorted(written))}"
        else:
            continue
        raise ConfigError(f"{kind} {run_.id} {what}: take it with its own code, or abort it and open another")


def keep_dead_letters(
    tx: Tx, staging: Staging, pipeline: Pipeline, asides: Sequence[NewDeadLetter], ids: Mapping[str, UUID]
) -> None:
    """What cannot be applied goes to the run's own dead letters, whole."""
    if asides:
        own = {"group": pipeline.group, "version": pipeline.version, "dead_lettered_by": None}
        its = SchemaConnection(tx.connection, staging.schema)
        its.execute(DEAD_LETTERS["insert"], [insert_parameters(aside, ids) | own for aside in asides])


def left_out_of(connection: Connection, staging: Staging, group: str, range_: Range) -> LeftOut:
    """Which records of the range are not to be applied."""
    table, lost = staging.left_out, staging.lost
    within = table.c.record_offset.between(range_.start, range_.end)
    left_out = select(table.c.record_offset).where(*of_partition(table.c, group, range_.partition), within)
    offsets = set(connection.scalars(left_out))
    given_up = select(lost.c.from_offset, lost.c.to_offset).where(*of_partition(lost.c, group, range_.partition))
    gaps = connection.execute(given_up).all()
    spans = [range(start, end) for start, end in gaps if start < range_.end and end > range_.start]
    if not offsets and not spans:
        return nothing_left_out
    return lambda record: record.offset in offsets or any(record.offset in span for span in spans)


_WRITES = "writes"  # the table of which tables each group writes: a task knows only its own pipeline


def remember_writes(tx: Tx, staging_schema: str, sources: Sequence[PipelineSource]) -> None:
    """Keep what the driver's code writes, group by group."""
    table = (staging_schema, _WRITES)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (consumer_group text, table_name text, "
        "PRIMARY KEY (consumer_group, table_name))",
        unlogged=unlogged(staging_schema),
        table=table,
    )
    for source in sources:
        written = sorted(target.name for target in targets(tx.connection, [source]))
        statement = "INSERT INTO {table} SELECT {group}, unnest({written}::text[])"
        run(tx.connection, statement, table=table, group=source.group, written=written)


def writes_of(tx: Tx, staging_schema: str, group: str) -> set[str] | None:
    """What this group writes in the run; None where that is not kept: the run has not begun."""
    table = (staging_schema, _WRITES)
    if not is_there(tx.connection, table):
        return None
    statement = "SELECT table_name FROM {table} WHERE consumer_group = {group}"
    return {row[0] for row in rows(tx.connection, statement, table=table, group=group)}
