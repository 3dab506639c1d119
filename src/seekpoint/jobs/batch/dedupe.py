"""Selects the staged rows that a batch writes: one attempt per offset, and for an Upsert the newest row of each key.

This happens before any lock on a live table is taken.
"""

from __future__ import annotations

from dataclasses import replace

from seekpoint.errors import TooManyDeadLetters
from seekpoint.jobs.staging.consolidate import Coverage, check_dead_letters, coverage
from seekpoint.jobs.staging.staged_rows import RowsOf, StagedRows
from seekpoint.jobs.tables.sql_templates import name, names, run
from seekpoint.jobs.tables.staging_schema import MISSING, Staging, remember_columns, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target, targets
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.runs.run import Driver, Tx
from seekpoint.sinks.catalog import DELETED, LINE


def folded_path(staging: Staging, target: Target) -> Path:
    """The table of an Upsert's newest rows, or of an Accumulate's amounts by key."""
    return staging.schema, f"folded_{target.feeds[0].number}"


def by_sink(tx: Tx, source: PipelineSource) -> list[Target]:
    """One target for each sink of the pipeline, in the order of the sinks."""
    tables = [replace(target, feeds=(feed,)) for target in targets(tx.connection, [source]) for feed in target.feeds]
    return sorted(tables, key=lambda target: target.feeds[0].number)


def fold(driver: Driver, source: PipelineSource, rows_of: RowsOf = StagedRows) -> None:
    """Check that every range is staged, and dedupe or aggregate rows by key, without using a live table.

    Does nothing if a range is missing: a previous driver's task may have committed late, over other offsets, and
    replaced our attempt. ``rows_of`` finds the rows. Raises ReloadRefused if rows are missing, and TooManyDeadLetters.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        done = coverage(tx)
        if done.missing:
            return
        check_dead_letters(tx, staging, done)
        check_limits(source.pipeline, done)
        staged = rows_of(tx.connection, staging, [source], done.chosen)
        for target in by_sink(tx, source):
            fold_rows(tx, staging, target, staged)
        tx.advance({(position.group, position.partition): position.end_offset for position in tx.positions()})
        driver.transition(tx, "staged")


def fold_rows(tx: Tx, staging: Staging, target: Target, staged: StagedRows) -> None:
    """Check one sink's rows, and dedupe (Upsert) or aggregate (Accumulate) them."""
    staged.check(target)
    if target.dedupes:
        staged.check_missing(target, is_rebuilt=False)
        _fold(tx, folded_path(staging, target), target, staged)
    elif target.sums is not None:
        _aggregate(tx, folded_path(staging, target), target, staged)


def _fold(tx: Tx, path: Path, target: Target, staged: StagedRows) -> None:
    """Create a table with each key's newest row or tombstone."""
    columns, newest = staged.newest(target)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} AS SELECT {columns}, 0::bigint AS {line}, {deleted}, {missing} "
        "FROM ({newest}) AS newest",
        unlogged=unlogged(path[0]),
        table=path,
        columns=names(columns),
        line=name(LINE),
        deleted=name(DELETED),
        missing=name(MISSING),
        newest=newest,
    )
    run(tx.connection, "ANALYZE {table}", table=path)
    remember_columns(tx.connection, path, staged.columns(target))


def _aggregate(tx: Tx, path: Path, target: Target, staged: StagedRows) -> None:
    """Create a table with each key's amounts; none if no record made a row."""
    if (addends := staged.aggregated(target)) is None:
        return
    columns, sums = addends
    create = "CREATE {unlogged} TABLE {table} AS {sums}"
    run(tx.connection, create, unlogged=unlogged(path[0]), table=path, sums=sums)
    run(tx.connection, "ANALYZE {table}", table=path)
    remember_columns(tx.connection, path, columns)


def check_limits(pipeline: Pipeline, done: Coverage) -> None:
    """Raise TooManyDeadLetters if more of the batch failed than the ratio in the pipeline's DeadLetterLimits allows."""
    limits = pipeline.dead_letter_limits
    failed = sum(row.dead_letters for row in done.chosen)
    passed = failed + sum(row.records for row in done.chosen)
    if failed and limits.ratio is not None and passed >= limits.window and failed > limits.ratio * passed:
        raise TooManyDeadLetters(
            f"{failed} of {passed} records failed, the limit is {limits.ratio:.0%}: nothing of the batch is written. "
            "Fix the codec, row= or the table and run it again; or raise DeadLetterLimits(ratio=...)"
        )
