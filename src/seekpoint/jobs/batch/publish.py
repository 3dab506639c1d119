"""The batch's last transaction: rows, dead letters, offsets and the run's end become visible together (I1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from seekpoint.backoff import TRIES, retried
from seekpoint.jobs.batch.dedupe import by_sink, folded_path
from seekpoint.jobs.batch.open import Claims, require_no_held_keys
from seekpoint.jobs.batch.reprocess import dead_letters_of, keep_run_dead_letters, lock_range
from seekpoint.jobs.reload.cutover import take_over_dead_letters, took_effect
from seekpoint.jobs.run import Driver, Step, Tx, let_go
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.staging.staged_rows import StagedRows
from seekpoint.jobs.tables.sql_templates import name, rows
from seekpoint.jobs.tables.staging_schema import Staging, remembered_columns
from seekpoint.jobs.tables.targets import Path, PipelineSource, aimed
from seekpoint.jobs.tables.targets import Target as TargetTable
from seekpoint.ledger.admin_actions import pauser, record_action
from seekpoint.ledger.advance import Expected, Move, Settings, advance, hold
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.records import Partition
from seekpoint.sinks.catalog import DELETED, Layout, survey
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.sinks.upsert.upsert_sql import UpsertSql, escaped_name


def publish(driver: Driver, source: PipelineSource, claims: Claims, tries: int = TRIES) -> None:
    """Write the rows, advance the offsets, resume the workers, and close the run: together, or not at all.

    What was rolled back (a lost connection, a lock timeout) is tried again; a COMMIT without an answer is looked up in
    the run's row first. Raises Fenced where a partition was claimed or reset since, ReloadOver, and the last error.
    """

    def step() -> None:
        try:
            _attempt(driver, source, claims)
        except (DBAPIError, psycopg.Error) as error:
            if not took_effect(driver, error):
                raise

    retried(step, tries=tries)


def _attempt(driver: Driver, source: PipelineSource, claims: Claims) -> None:
    with driver.step("staged") as tx:
        scope = GroupConnection(tx.connection, tx.schema, source.group)
        ranges = [position for position in tx.positions() if position.end_offset > position.first_offset]
        if driver.run.strategy == "reprocess":
            lock_range(tx, scope, source.pipeline)
            _write(tx, driver, source)
            keep_run_dead_letters(tx)
        else:
            transaction = _hold(tx, scope, driver, source.pipeline, claims)
            _write(tx, driver, source)
            take_over_dead_letters(tx, Staging(tx.run.staging_schema))
            moves = [Move(claims[at.partition], at.first_offset, at.end_offset) for at in ranges]
            advance(scope, moves, transaction)
        for at in ranges:
            record_action(
                scope,
                driver.run.strategy,
                actor=pauser(driver.run.id),
                reason=driver.run.reason,
                partition=at.partition,
                from_offset=at.first_offset,
                to_offset=at.end_offset,
            )
        driver.transition(tx, "cut_over")
        let_go(tx.connection, tx.schema, driver.run.id, [source.group], "the batch is applied")


def _hold(tx: Step, scope: GroupConnection, driver: Driver, pipeline: Pipeline, claims: Claims) -> str:
    scope.execute(GROUPS["lock"]).one()
    positions = tx.positions()
    mine = [claims[at.partition] for at in positions]
    # By another name than a worker's: a claim that waits for these rows must not end it as abandoned.
    settings = Settings(f"seekpoint-batch {driver.run.id.hex[:8]} {scope.group}"[:63], True, 0.0)
    transaction = hold(scope, [Expected(one, one.next_offset) for one in mine], settings)
    require_no_held_keys(scope, pipeline, {at.partition.topic: at.topic_id for at in positions})
    return transaction


def _write(tx: Step, driver: Driver, source: PipelineSource) -> None:
    """Sink by sink in their order, as a worker's transaction would."""
    tx.execute(BATCH["bound"], idle=f"{round(driver.limits.transaction_age * 1000)}ms")
    staging = Staging(tx.run.staging_schema)
    staged = StagedRows(tx.connection, staging, [source], coverage(tx).chosen)
    for target in by_sink(tx, source):
        if target.dedupes:
            _merge(tx, folded_path(staging, target), target)
        else:
            staged.insert(target, target.path)


class _FromFolded(UpsertSql):
    """An Upsert's own statements, with the table of the newest rows in the place of the session's stage."""

    def __init__(self, target: Target, layout: Layout, folded: Path) -> None:
        super().__init__(target, layout)
        self._stage = escaped_name(*folded)


def _merge(tx: Tx, folded: Path, into: TargetTable) -> None:
    """Tombstones first, then rows, under the sink's own guards."""
    aim = aimed(into.feeds[0].sink, into.path)
    assert isinstance(aim, Upsert)
    target = replace(aim.target, columns=remembered_columns(tx.connection, folded))
    counts = dict(rows(tx.connection, "SELECT {d}, count(*) FROM {t} GROUP BY 1", d=name(DELETED), t=folded))
    layout = survey(tx.connection, target).layout
    statements = _FromFolded(target, layout, folded)
    if counts.get(True):
        driver_of(tx.connection).execute(statements.delete_staged, ())
    if counts.get(False):
        driver_of(tx.connection).execute(statements.merge, ())


def totals(tx: Step, source: PipelineSource) -> Mapping[str, Any]:
    """What the batch did, of what is on record: records, rows by table, dead letters and the group's next offsets."""
    chosen = coverage(tx).chosen
    written: dict[str, int] = dict.fromkeys(tx.run.tables, 0)
    for target in by_sink(tx, source):
        written[target.name] += sum(one.rows[target.feeds[0].number] for one in chosen)
    offsets = {str(at.partition): at.end_offset for at in tx.positions()}
    if tx.run.strategy == "reprocess":  # the group's own: they have not moved
        offsets = {str(Partition(row.topic, row.partition)): row.next_offset for row in tx.offsets()}
    return {
        "records": sum(one.records + one.dead_letters for one in chosen),
        "rows": written,
        "offsets": offsets,
        "dead_letters": sum(one.dead_letters for one in chosen),
        "failures": dead_letters_of(tx),
    }
