"""Selects the staged rows that a batch writes: one attempt per offset, and of an Upsert the newest row of each key.

All of this happens beside the live tables, before any of their locks is taken.
"""

from __future__ import annotations

from dataclasses import replace

from seekpoint.errors import TooManyDeadLetters
from seekpoint.jobs.run import Driver, Tx
from seekpoint.jobs.staging.consolidate import Coverage, check_dead_letters, coverage
from seekpoint.jobs.staging.staged_rows import StagedRows
from seekpoint.jobs.tables.sql_templates import name, names, rows, run
from seekpoint.jobs.tables.staging_schema import Staging, remember_columns, unlogged
from seekpoint.jobs.tables.targets import Path, PipelineSource, Target, targets
from seekpoint.ledger.tables import dead_letter
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.sinks.catalog import DELETED, LINE


def folded_path(staging: Staging, target: Target) -> Path:
    """Where the newest rows of an Upsert are."""
    return staging.schema, f"folded_{target.feeds[0].number}"


def by_sink(tx: Tx, source: PipelineSource) -> list[Target]:
    """The tables that the pipeline writes, one for each sink, in the sinks' order."""
    found = [replace(target, feeds=(feed,)) for target in targets(tx.connection, [source]) for feed in target.feeds]
    return sorted(found, key=lambda target: target.feeds[0].number)


def fold(driver: Driver, source: PipelineSource) -> None:
    """Check that every range is staged once, and dedupe what Upserts are to write: one transaction, no live table.

    Leaves the run as it is where a range is missing: late attempts of a driver before, in other pieces, may count in
    the place of ours. Raises ReloadRefused where rows are missing, TooManyDeadLetters.
    """
    with driver.step("staging") as tx:
        staging = Staging(tx.run.staging_schema)
        done = coverage(tx)
        if done.missing:
            return
        check_dead_letters(tx, staging, done)
        check_limits(tx, staging, source.pipeline, done)
        staged = StagedRows(tx.connection, staging, [source], done.chosen)
        for target in by_sink(tx, source):
            staged.check_counts(target)
            if target.dedupes:
                _fold(tx, folded_path(staging, target), target, staged)
        tx.advance({(at.group, at.partition): at.end_offset for at in tx.positions()})
        driver.transition(tx, "staged")


def _fold(tx: Tx, path: Path, target: Target, staged: StagedRows) -> None:
    """Into one table: of each key the newest row, or the tombstone that is newer than all of them."""
    columns, newest = staged.newest(target)
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} AS SELECT {columns}, 0::bigint AS {line}, {deleted} FROM ({newest}) AS newest",
        unlogged=unlogged(path[0]),
        table=path,
        columns=names(columns),
        line=name(LINE),
        deleted=name(DELETED),
        newest=newest,
    )
    run(tx.connection, "ANALYZE {table}", table=path)
    remember_columns(tx.connection, path, staged.columns(target))


def check_limits(tx: Tx, staging: Staging, pipeline: Pipeline, done: Coverage) -> None:
    """As a worker would stop: instead of draining a topic into the dead letters. Raises TooManyDeadLetters."""
    limits = pipeline.dead_letter_limits
    failed = sum(row.dead_letters for row in done.chosen)
    passed = failed + sum(row.records for row in done.chosen)
    if not failed:
        return
    if limits.ratio is not None and passed >= limits.window and failed > limits.ratio * passed:
        raise _too_many(f"{failed} of {passed} records failed, the limit is {limits.ratio:.0%}", "ratio")
    found = rows(
        tx.connection,
        "SELECT topic, partition, min(record_offset), count(*) FROM (SELECT topic, partition, record_offset, "
        "record_offset - row_number() OVER (PARTITION BY topic, partition ORDER BY record_offset) AS island "
        "FROM {letters}) AS islands GROUP BY topic, partition, island ORDER BY count(*) DESC LIMIT 1",
        letters=(staging.schema, dead_letter.name),
    )
    for topic, partition, offset, count in found:
        if limits.consecutive is not None and count > limits.consecutive:
            what = f"{count} records in a row failed, from {topic}/{partition} offset {offset} on"
            raise _too_many(f"{what}; the limit is {limits.consecutive}", "consecutive")


def _too_many(what: str, limit: str) -> TooManyDeadLetters:
    return TooManyDeadLetters(
        f"{what}: nothing of the batch is written. Fix the codec, row= or the table and run it again; or raise "
        f"DeadLetterLimits({limit}=...)"
    )
