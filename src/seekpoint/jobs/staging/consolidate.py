"""Makes one table of the staged attempts: chooses one attempt per offset, checks, dedupes, builds indexes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

import psycopg
from psycopg import sql as ident
from sqlalchemy import Connection

from seekpoint.errors import ConfigError, ReloadRefused
from seekpoint.jobs.run import Driver, Progress, Run, StagedPosition, Step, Tx
from seekpoint.jobs.staging.constraint_rejects import Rejects, refused_records
from seekpoint.jobs.staging.distance import require_topics
from seekpoint.jobs.staging.stage import Staged, Stager, Task, all_staged
from seekpoint.jobs.staging.staged_rows import StagedRows
from seekpoint.jobs.tables.constraints import check_references, references
from seekpoint.jobs.tables.create_like import make_like
from seekpoint.jobs.tables.indexes import indexes
from seekpoint.jobs.tables.sql_templates import Statements, name, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, remember_columns
from seekpoint.jobs.tables.targets import PipelineSource, Target, targets
from seekpoint.kafka.ranges import Range
from seekpoint.ledger.tables import dead_letter
from seekpoint.records import Partition

RANGE = 300_000  # records of one task: fewer cost more in connections than they gain in balance


def require_width(range_records: int) -> None:
    """Before a run is opened that no task could stage. Raises ConfigError."""
    if range_records < 1:
        raise ConfigError(f"range_records is the number of offsets of a task, at least 1, and not {range_records}")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The attempts that count, and the ranges that no attempt has staged yet."""

    chosen: tuple[Staged, ...]
    missing: tuple[Task, ...]


def coverage(tx: Step, width: int = RANGE) -> Coverage:
    """One attempt for each offset up to the snapshot offsets, and tasks of this width for the offsets that have none.

    Of attempts that overlap (of another width, of a task that was late) those count that leave the fewest offsets
    without any.
    """
    staged = {place: list(attempts) for place, attempts in groupby(all_staged(tx, tx.run.id), lambda one: one.place)}
    chosen: list[Staged] = []
    missing: list[Task] = []
    for at in tx.positions():
        cursor = at.first_offset
        for attempt in _tiling(at.first_offset, at.end_offset, staged.get((at.group, at.partition), ())):
            missing += _tasks(at, cursor, attempt.start, width)
            chosen.append(attempt)
            cursor = attempt.end
        missing += _tasks(at, cursor, at.end_offset, width)
    return Coverage(tuple(chosen), tuple(missing))


def _tiling(first: int, end: int, attempts: Sequence[Staged]) -> list[Staged]:
    """Attempts within ``[first, end)`` that do not overlap and miss the fewest offsets; of those the fewest."""
    within = [one for one in attempts if first <= one.start < one.end <= end]
    ends = sorted({first, end, *(at for one in within for at in (one.start, one.end))})
    best: dict[int, tuple[int, int]] = {first: (0, 0)}  # missed offsets, and attempts, up to an offset
    came: dict[int, tuple[int, Staged | None]] = {}
    for here, there in pairwise([*ends, end]):
        missed, count = best[here]
        steps = [(one.end, (missed, count + 1), one) for one in within if one.start == here]
        for to, cost, by in [(there, (missed + there - here, count), None), *steps]:
            if to > here and (to not in best or cost < best[to]):
                best[to], came[to] = cost, (here, by)
    found: list[Staged] = []
    at = end
    while at > first:
        at, attempt = came[at]
        found += [attempt] if attempt is not None else []
    return found[::-1]


def _tasks(at: StagedPosition, start: int, end: int, width: int) -> Iterable[Task]:
    if start < end:
        for part in Range(at.partition, at.topic_id, start, end).cut(width):
            yield Task(at.group, part)


def stage_missing(driver: Driver, stager: Stager, width: int, progress: Progress, *, run: Run | None = None) -> None:
    """Stage what is missing before the snapshot offsets, with a heartbeat after each range; ``run`` is the stager's."""
    with driver.step("staging") as tx:
        left = coverage(tx, width).missing
        total = sum(at.end_offset - at.first_offset for at in tx.positions())
    done = total - sum(task.range.records_at_most for task in left)
    progress("staging", done, total)
    for staged in stager.stage(run or driver.run, left):
        done += staged.end - staged.start
        progress("staging", done, total)
        driver.heartbeat()


def consolidate(driver: Driver, sources: Sequence[PipelineSource]) -> None:
    """Put what was staged into one table per target, and move the rebuild's position: one transaction.

    Raises ReloadRefused where an attempt's table has not the rows that it reported, or a range is missing.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        done = coverage(tx)
        if done.missing:
            raise ReloadRefused([f"{done.missing[0].range} was not staged: stage it, then resume"])
        check_dead_letters(tx, staging, done)
        staged = StagedRows(tx.connection, staging, sources, done.chosen)
        for target in targets(tx.connection, sources):
            table = staging.table(target)
            make_like(tx.connection, table, target.path, prefix=target.staged, replaces=tx.run.strategy == "swap")
            staged.check_counts(target)
            staged.check_keys(target)
            staged.insert(target, table)
            remember_columns(tx.connection, table, staged.columns(target))
        tx.advance({(at.group, at.partition): at.end_offset for at in tx.positions()})
        driver.transition(tx, "staged")


def check_dead_letters(tx: Tx, staging: Staging, done: Coverage) -> None:
    """A record that failed in one attempt, and in the one that counts did not, would be a row and a dead letter.

    Raises ReloadRefused.
    """
    counted = rows(tx.connection, "SELECT count(*) FROM {t}", t=(staging.schema, dead_letter.name))[0][0]
    told = sum(row.dead_letters for row in done.chosen)
    if counted != told:
        why = (
            f"{counted} records failed in some attempt at their range, and {told} in those that count: codecs and row= "
            "do not say the same each time. Run another one"
        )
        raise ReloadRefused([why])


def index(driver: Driver, sources: Sequence[PipelineSource], kafka: Mapping[str, object]) -> None:
    """Give the rebuilt tables their key, and where they will replace the live ones all their indexes.

    A record whose row the live table's foreign keys and unique indexes refuse is dead-lettered, as by a worker; so is
    what follows a dead letter of its key, where the order of keys is kept. Raises ReloadRefused where the policy stops
    at one, and where a topic was recreated meanwhile.
    """
    check_topics(kafka, driver)
    with driver.step("staged") as tx:
        staging = Staging(tx.run.staging_schema)
        found = targets(tx.connection, sources)
        staged = StagedRows(tx.connection, staging, sources, coverage(tx).chosen)
        rejects = Rejects(driver.engine, sources, kafka)
        _take_out(tx, staging, found, staged, rejects.block(tx, staging))
        while bad := _refused(tx, staging, found, staged):
            _take_out(tx, staging, found, staged, rejects.put(tx, staging, bad))
        for target in found:
            if tx.run.strategy != "swap":
                check_references(tx.connection, staging, target, references(tx.connection, staging, target, found))
            run(tx.connection, "ANALYZE {table}", table=staging.table(target))
        driver.transition(tx, "indexed")


def _take_out(
    tx: Step,
    staging: Staging,
    found: Sequence[Target],
    staged: StagedRows,
    records: Collection[tuple[tuple[str, Partition], int]],
) -> None:
    """Remove the rows of these records from the rebuilt tables: of a key, the row before them is the newest again."""
    if not records:
        return
    staged.remove(records)
    for target in found:
        run(tx.connection, "TRUNCATE {table}", table=staging.table(target))
        staged.insert(target, staging.table(target))


def _refused(
    tx: Step, staging: Staging, found: Sequence[Target], staged: StagedRows
) -> dict[tuple[tuple[str, Partition], int], psycopg.Error]:
    """The records whose rows are refused, of all tables; none: the tables have their indexes."""
    bad: dict[tuple[tuple[str, Partition], int], psycopg.Error] = {}
    with tx.connection.begin_nested() as savepoint:
        for target in found:
            replaces = tx.run.strategy == "swap"
            make = partial(_all_indexes, tx.connection, staging, target) if replaces else None
            placed = partial(staged.placed, target)
            refused = refused_records(tx, staging, target, found, placed=placed, make=make)
            bad |= {(staged.places[place], at): error for (place, at), error in refused.items()}
        if bad:
            savepoint.rollback()
    return bad


def _all_indexes(connection: Connection, staging: Staging, target: Target) -> None:
    for n, index in enumerate(indexes(connection, target.path)):
        its = Statements(connection, name=name(staging.index(target, n)), table=staging.table(target))
        unique, using = ident.SQL("UNIQUE" if index.is_unique else ""), ident.SQL(index.using)
        its.run("CREATE {unique} INDEX {name} ON {table} {using}", unique=unique, using=using)
        if index.constraint is not None:
            kind = ident.SQL(index.constraint)
            its.run("ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {name}", kind=kind)


def check_topics(kafka: Mapping[str, object], driver: Driver) -> None:
    """The topics still are those that the run was opened on. Raises ReloadRefused, KafkaUnavailable."""
    with driver.step("staging", "staged", "indexed", "catching_up", "compared") as tx:
        wanted = {(at.partition.topic, at.topic_id) for at in tx.positions()}
    require_topics(kafka, wanted)
