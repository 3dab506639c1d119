"""Builds one table from the staged attempts: chooses one attempt per offset, checks, dedupes, and builds indexes.

A table that tasks have written directly is only checked and indexed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.staging.constraint_rejects import Rejects, refused_records
from seekpoint.jobs.staging.direct import end_writers
from seekpoint.jobs.staging.distance import require_topics
from seekpoint.jobs.staging.stage import Staged, Stager, Task, all_staged, direct_tables, make_rebuilt
from seekpoint.jobs.staging.staged_rows import StagedRows
from seekpoint.jobs.tables.constraints import check_references, references
from seekpoint.jobs.tables.indexes import indexes
from seekpoint.jobs.tables.sql_templates import Statements, name, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, remember_columns
from seekpoint.jobs.tables.targets import PipelineSource, Target, targets
from seekpoint.kafka.ranges import Range
from seekpoint.ledger.tables import dead_letter
from seekpoint.records import Partition
from seekpoint.runs.run import Driver, Progress, Run, StagedPosition, Step, Tx

RANGE = 300_000  # records per task: with fewer, connections would cost more than the better balance gains


def require_width(range_records: int) -> None:
    """Raise ConfigError, before a run is opened, for a width that no task could stage."""
    if range_records < 1:
        raise ConfigError(f"range_records must be a number of offsets per task, at least 1, got {range_records}")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The chosen attempts, and the ranges that no attempt has staged yet."""

    chosen: tuple[Staged, ...]
    missing: tuple[Task, ...]


def coverage(tx: Step, width: int = RANGE) -> Coverage:
    """Choose an attempt for each offset up to the snapshot offsets; offsets without one become tasks of this ``width``.

    Attempts overlap if drivers used different widths or a task was slow. The choice leaves the fewest offsets missing.
    """
    by_place = groupby(all_staged(tx, tx.run.id), lambda attempt: attempt.place)
    staged = {place: list(attempts) for place, attempts in by_place}
    chosen: list[Staged] = []
    missing: list[Task] = []
    for position in tx.positions():
        cursor = position.first_offset
        attempts = staged.get((position.group, position.partition), [])
        for attempt in _tiling(position.first_offset, position.end_offset, attempts):
            missing += _tasks(position, cursor, attempt.start, width)
            chosen.append(attempt)
            cursor = attempt.end
        missing += _tasks(position, cursor, position.end_offset, width)
    return Coverage(tuple(chosen), tuple(missing))


def _tiling(first: int, end: int, attempts: Sequence[Staged]) -> list[Staged]:
    """The fewest attempts within ``[first, end)`` that do not overlap and miss the fewest offsets."""
    within = [attempt for attempt in attempts if first <= attempt.start < attempt.end <= end]
    ends = sorted({first, end, *(offset for attempt in within for offset in (attempt.start, attempt.end))})
    # By offset: the number of offsets missed before it, and the attempts used.
    best: dict[int, tuple[int, int]] = {first: (0, 0)}
    previous: dict[int, tuple[int, Staged | None]] = {}
    for here, there in pairwise([*ends, end]):
        missed, count = best[here]
        steps = [(attempt.end, (missed, count + 1), attempt) for attempt in within if attempt.start == here]
        for to, cost, attempt in [(there, (missed + there - here, count), None), *steps]:
            if to > here and (to not in best or cost < best[to]):
                best[to], previous[to] = cost, (here, attempt)
    chosen: list[Staged] = []
    offset = end
    while offset > first:
        offset, attempt = previous[offset]
        chosen += [attempt] if attempt is not None else []
    return chosen[::-1]


def _tasks(position: StagedPosition, start: int, end: int, width: int) -> Iterable[Task]:
    if start < end:
        for part in Range(position.partition, position.topic_id, start, end).cut(width):
            yield Task(position.group, part)


def stage_missing(driver: Driver, stager: Stager, width: int, progress: Progress, *, run: Run | None = None) -> None:
    """Stage the missing ranges, with a heartbeat after each; ``run`` is passed to the stager.

    Plans ranges again if an attempt of another width, by an earlier driver, was recorded meanwhile.
    """
    before: tuple[Task, ...] | None = None
    while True:
        with driver.step("staging") as tx:
            remaining = coverage(tx, width).missing
            total = sum(position.end_offset - position.first_offset for position in tx.positions())
        if before is not None and remaining in ((), before):
            return
        before = remaining
        done = total - sum(task.range.records_at_most for task in remaining)
        progress("staging", done, total)
        for staged in stager.stage(run or driver.run, remaining):
            done += staged.end - staged.start
            progress("staging", done, total)
            driver.heartbeat()


def consolidate(driver: Driver, sources: Sequence[PipelineSource]) -> None:
    """Insert the staged rows into one table per target and advance the run's positions, in one transaction.

    Tables that tasks have written directly are only checked. Raises ReloadRefused if a range is missing, or a table
    lacks rows that tasks reported.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        done = coverage(tx)
        if done.missing:
            raise ReloadRefused([f"{done.missing[0].range} was not staged: open another run"])
        check_dead_letters(tx, staging, done)
        staged = StagedRows(tx.connection, staging, sources, done.chosen)
        direct = direct_tables(tx, staging, tx.run.groups)
        for target in targets(tx.connection, sources):
            table = staging.table(target)
            if target.name in direct:
                staged.check_direct(target, table)
                continue
            make_rebuilt(tx, staging, target)
            staged.check(target)
            staged.check_keys(target)
            staged.insert(target, table)
            remember_columns(tx.connection, table, staged.columns(target))
        tx.advance({(position.group, position.partition): position.end_offset for position in tx.positions()})
        driver.transition(tx, "staged")


def check_dead_letters(tx: Tx, staging: Staging, done: Coverage) -> None:
    """Raise ReloadRefused if a record failed in another attempt, but not in the chosen one.

    Such a record would have both a row and a dead letter.
    """
    counted = rows(tx.connection, "SELECT count(*) FROM {t}", t=(staging.schema, dead_letter.name))[0][0]
    reported = sum(row.dead_letters for row in done.chosen)
    if counted != reported:
        why = (
            f"{counted} records failed in any attempt at their range, and {reported} in the chosen ones: codecs or "
            "row= do not give the same result each time. Fix them, and run another one"
        )
        raise ReloadRefused([why])


def index(driver: Driver, sources: Sequence[PipelineSource], kafka: Mapping[str, object]) -> None:
    """Create the rebuilt tables' unique indexes, and all live indexes for strategy ``swap``.

    A record whose row violates a foreign key or unique index of the live table is dead-lettered, as by a worker; with
    ``keep_key_order`` the later records of its key are blocked. Raises ReloadRefused if the failure policy is to stop,
    or a topic was recreated during the run.
    """
    check_topics(kafka, driver)
    with driver.step("staged") as tx:
        staging = Staging(tx.run.staging_schema)
        tables = targets(tx.connection, sources)
        staged = StagedRows(tx.connection, staging, sources, coverage(tx).chosen)
        rejects = Rejects(driver.engine, sources, kafka)
        direct = direct_tables(tx, staging, tx.run.groups)
        end_writers(tx.connection, list(direct.values()))
        copied = [target for target in tables if target.name not in direct]
        _take_out(tx, staging, copied, staged, rejects.block(tx, staging))
        while bad := _refused(tx, staging, tables, staged):
            _take_out(tx, staging, copied, staged, rejects.put(tx, staging, bad))
        for target in tables:
            if tx.run.strategy != "swap":
                check_references(tx.connection, staging, target, references(tx.connection, staging, target, tables))
            run(tx.connection, "ANALYZE {table}", table=staging.table(target))
        driver.transition(tx, "indexed")


def _take_out(
    tx: Step,
    staging: Staging,
    tables: Sequence[Target],
    staged: StagedRows,
    records: Collection[tuple[tuple[str, Partition], int]],
) -> None:
    """Rebuild the tables without these records' rows: each key gets its previous row back."""
    if not records:
        return
    staged.remove(records)
    for target in tables:
        run(tx.connection, "TRUNCATE {table}", table=staging.table(target))
        staged.insert(target, staging.table(target))


def _refused(
    tx: Step, staging: Staging, tables: Sequence[Target], staged: StagedRows
) -> dict[tuple[tuple[str, Partition], int], psycopg.Error]:
    """The records whose rows a constraint refuses, in all tables; if there are none, the tables get the indexes."""
    bad: dict[tuple[tuple[str, Partition], int], psycopg.Error] = {}
    with tx.connection.begin_nested() as savepoint:
        for target in tables:
            replaces = tx.run.strategy == "swap"
            make = partial(make_all_indexes, tx.connection, staging, target) if replaces else None
            placed = partial(staged.placed, target)
            refused = refused_records(tx, staging, target, tables, placed=placed, make=make)
            bad |= {(staged.places[place], offset): error for (place, offset), error in refused.items()}
        if bad:
            savepoint.rollback()
    return bad


def make_all_indexes(connection: Connection, staging: Staging, target: Target) -> None:
    """Create the live table's indexes and their constraints on the rebuilt one, with names of the run."""
    for n, index in enumerate(indexes(connection, target.path)):
        if index.is_unique and not index.is_enforced:
            continue  # rows may be equal in the index; it was created since the opening, so the cut-over is refused
        statements = Statements(connection, name=name(staging.index(target, n)), table=staging.table(target))
        unique, using = ident.SQL("UNIQUE" if index.is_unique else ""), ident.SQL(index.using)
        statements.run("CREATE {unique} INDEX {name} ON {table} {using}", unique=unique, using=using)
        if index.constraint is not None:
            kind = ident.SQL(index.constraint)
            statements.run("ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {name}", kind=kind)


def check_topics(kafka: Mapping[str, object], driver: Driver) -> None:
    """Raise ReloadRefused if a topic was recreated since the run was opened; raises KafkaUnavailable."""
    with driver.step("staging", "staged", "indexed", "catching_up", "compared") as tx:
        topics = {(position.partition.topic, position.topic_id) for position in tx.positions()}
    require_topics(kafka, topics)
