"""The batch's last transaction: rows, dead letters, offsets and the run's end become visible together (I1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.exc import DBAPIError

from seekpoint.backoff import retried
from seekpoint.errors import ReloadRefused
from seekpoint.jobs.batch.dedupe import by_sink, folded_path
from seekpoint.jobs.batch.open import Claims, require_no_held_keys
from seekpoint.jobs.batch.reprocess import dead_letters_of, keep_run_dead_letters, lock_range
from seekpoint.jobs.reload.cutover import take_over_dead_letters, took_effect
from seekpoint.jobs.staging.consolidate import coverage
from seekpoint.jobs.staging.staged_rows import NO_VALUES, RowsOf, StagedRows
from seekpoint.jobs.tables.sql_templates import name, rows
from seekpoint.jobs.tables.staging_schema import MISSING, Staging, is_there, remembered_columns
from seekpoint.jobs.tables.targets import Path, PipelineSource, aimed
from seekpoint.jobs.tables.targets import Target as TargetTable
from seekpoint.ledger.admin_actions import pauser, record_action
from seekpoint.ledger.advance import Expected, Move, Settings, advance, hold
from seekpoint.ledger.schema_connection import GroupConnection
from seekpoint.ledger.sql import BATCH, GROUPS
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.pipeline.sink import WentBack
from seekpoint.records import Partition
from seekpoint.runs.run import Driver, Step, Tx, release_groups
from seekpoint.sinks.accumulate.accumulate import Accumulate
from seekpoint.sinks.accumulate.accumulate_sql import AccumulateSql, looks_at_rows
from seekpoint.sinks.accumulate.aggregate import SumTarget
from seekpoint.sinks.catalog import DELETED, Layout, survey
from seekpoint.sinks.copy import driver_of
from seekpoint.sinks.dedupe import Target
from seekpoint.sinks.upsert.merge_sql import NEW, STORED, escaped_name
from seekpoint.sinks.upsert.upsert import Upsert
from seekpoint.sinks.upsert.upsert_sql import UpsertSql


def publish(
    driver: Driver,
    source: PipelineSource,
    claims: Claims,
    leader_epochs: Mapping[Partition, int | None],
    *,
    rows_of: RowsOf = StagedRows,
    is_recorded: bool = True,
) -> None:
    """Write the rows, advance the offsets, resume the workers and close the run, in one transaction (I1).

    Repeats an attempt that was rolled back (a lost connection, a lock timeout); after an unanswered COMMIT it reads the
    run's row first. ``leader_epochs`` are stored with the positions, and with ``is_recorded`` each range as a row of
    ``admin_action``. ``rows_of`` finds the staged rows. Raises Fenced if a partition was claimed or reset since
    ``claims``; ReloadOver if the run has ended or another driver has taken it over; and the last attempt's database
    error.
    """

    def step() -> None:
        try:
            _attempt(driver, source, claims, leader_epochs, rows_of, is_recorded=is_recorded)
        except (DBAPIError, psycopg.Error) as error:
            if not took_effect(driver, error):
                raise

    retried(step)


def _attempt(
    driver: Driver,
    source: PipelineSource,
    claims: Claims,
    leader_epochs: Mapping[Partition, int | None],
    rows_of: RowsOf,
    *,
    is_recorded: bool,
) -> None:
    with driver.step("staged") as tx:
        scope = GroupConnection(tx.connection, tx.schema, source.group)
        ranges = [position for position in tx.positions() if position.end_offset > position.first_offset]
        if driver.run.strategy == "reprocess":
            lock_range(tx, scope, source.pipeline)
            _write(tx, driver, source, rows_of)
            keep_run_dead_letters(tx)
        else:
            transaction = _hold(tx, scope, driver, source.pipeline, claims)
            _write(tx, driver, source, rows_of)
            take_over_dead_letters(tx, Staging(tx.run.staging_schema))
            moves = [
                Move(
                    claims[position.partition],
                    position.first_offset,
                    position.end_offset,
                    leader_epochs.get(position.partition),
                )
                for position in ranges
            ]
            advance(scope, moves, transaction)
        for position in ranges if is_recorded else ():
            record_action(
                scope,
                driver.run.strategy,
                actor=pauser(driver.run.id),
                reason=driver.run.reason,
                partition=position.partition,
                from_offset=position.first_offset,
                to_offset=position.end_offset,
            )
        driver.transition(tx, "cut_over")
        release_groups(tx.connection, tx.schema, driver.run.id, [source.group], "the batch is applied")


def _hold(tx: Step, scope: GroupConnection, driver: Driver, pipeline: Pipeline, claims: Claims) -> str:
    scope.execute(GROUPS["lock"]).one()
    positions = tx.positions()
    expected = [claims[position.partition] for position in positions]
    # Not a worker's application name: a claim that waits for these rows may terminate sessions of abandoned workers.
    settings = Settings(f"seekpoint-batch {driver.run.id.hex[:8]} {scope.group}"[:63], True, None)
    transaction = hold(scope, [Expected(claim, claim.next_offset) for claim in expected], settings)
    require_no_held_keys(scope, pipeline, {position.partition.topic: position.topic_id for position in positions})
    return transaction


def _write(tx: Step, driver: Driver, source: PipelineSource, rows_of: RowsOf) -> None:
    """Write the sinks' rows in the order of the sinks, as a worker does."""
    tx.execute(BATCH["bound"], idle=f"{round(driver.limits.transaction_age * 1000)}ms")
    staging = Staging(tx.run.staging_schema)
    staged = rows_of(tx.connection, staging, [source], coverage(tx).chosen)
    for target in by_sink(tx, source):
        try:
            write_rows(tx, staging, target, staged, target.path)
        except (DBAPIError, psycopg.Error) as error:
            error.add_note(f"while {staged.shown(target)} was written")
            raise


def write_rows(tx: Tx, staging: Staging, target: TargetTable, staged: StagedRows, into: Path) -> None:
    """Write one sink's rows, prepared by fold_rows, to table ``into``."""
    sink = aimed(target.feeds[0].sink, into)
    if isinstance(sink, Accumulate):
        _add(tx, folded_path(staging, target), sink)
    elif isinstance(sink, Upsert):
        truncated = staged.truncated(target)
        _merge(tx, folded_path(staging, target), sink, truncated and truncated[1])
    else:
        staged.insert(target, into)


class _FromFolded(UpsertSql):
    """An Upsert's statements, which read the table of newest rows instead of the session's temporary table."""

    def __init__(self, target: Target, layout: Layout, folded: Path) -> None:
        super().__init__(target, layout)
        self._folded = escaped_name(*folded)
        self._stage = sql.SQL("(SELECT * FROM {} WHERE {} IS NULL) AS complete").format(
            self._folded, escaped_name(MISSING)
        )

    @property
    def without_row(self) -> sql.Composed:
        """SELECT of a key whose row lacks values although the table has no row of the key."""
        return sql.SQL(
            "SELECT {} FROM {} AS {} WHERE {} IS NOT NULL AND NOT EXISTS (SELECT FROM {} AS {} WHERE {}) LIMIT 1"
        ).format(self._key, self._folded, NEW, escaped_name(MISSING), self._table, STORED, self._same_key(STORED, NEW))

    def update_partially(self, missing: Sequence[str]) -> sql.Composed:
        """UPDATE, by the rows that lack these columns, of the others; its parameter has these columns' names."""
        columns = [column for column in self.target.columns or () if column not in missing]
        return sql.SQL("UPDATE {} AS {} SET {} FROM {} AS {} WHERE {}.{} = %s::text[] AND {}").format(
            self._table, STORED, self._set(columns), self._folded, NEW, NEW, escaped_name(MISSING), self._matched
        )


class _FromAggregated(AccumulateSql):
    """An Accumulate's statements, which read the table of amounts instead of the session's temporary table."""

    def __init__(self, target: SumTarget, layout: Layout, aggregated: Path, *, updates_first: bool) -> None:
        super().__init__(target, layout, updates_first=updates_first, has_distinct=True)
        self._stage = escaped_name(*aggregated)


def _add(tx: Tx, aggregated: Path, sink: Accumulate) -> None:
    """Add the aggregated values to their keys' rows, in key order."""
    if not is_there(tx.connection, aggregated):
        return
    layout = survey(tx.connection, sink.target).layout
    updates_first = looks_at_rows(tx.connection, sink.target)
    statements = _FromAggregated(sink.target, layout, aggregated, updates_first=updates_first)
    driver_of(tx.connection).execute(statements.merge, ())


def _merge(tx: Tx, folded: Path, sink: Upsert, truncated: Sequence[str | None] | None) -> None:
    """Apply the truncate with these values, if any, the tombstones, then the rows, under the sink's guards.

    Raises ReloadRefused for a row that lacks values without a row of its key in the table.
    """
    target = replace(sink.target, columns=remembered_columns(tx.connection, folded))
    counts = dict(rows(tx.connection, "SELECT {d}, count(*) FROM {t} GROUP BY 1", d=name(DELETED), t=folded))
    layout = survey(tx.connection, target).layout
    statements, execute = _FromFolded(target, layout, folded), driver_of(tx.connection).execute
    if statements.steps_back is not None and (row := execute(statements.steps_back, ()).fetchone()):
        went_back = WentBack(sink.order_by or "", *row[1:])
        raise ReloadRefused([f"{sink.tables[0]}: {went_back}: let a worker apply it, which stops with choices"])
    if truncated is not None:
        execute(statements.delete_all, [*([value] for value in truncated), *statements.gate])
    if counts.get(True):
        execute(statements.delete_staged, ())
    partials = [missing for (missing,) in rows(tx.connection, _PARTIALS, missing=name(MISSING), folded=folded)]
    if partials and (without := execute(statements.without_row, ()).fetchone()):
        key = ", ".join(f"{column} = {value}" for column, value in zip(target.key, without, strict=True))
        raise ReloadRefused([f"the newest record of {key} {NO_VALUES.format(sink.tables[0])}"])
    if counts.get(False):
        execute(statements.merge, ())
    for missing in partials:
        execute(statements.update_partially(missing), [missing])


_PARTIALS = "SELECT DISTINCT {missing} FROM {folded} WHERE {missing} IS NOT NULL"


def totals(tx: Step, source: PipelineSource, rows_of: RowsOf = StagedRows) -> Mapping[str, Any]:
    """The stored results of the batch: records, rows by table, dead letters and the group's next offsets."""
    chosen = coverage(tx).chosen
    staged = rows_of(tx.connection, Staging(tx.run.staging_schema), [source], chosen)
    written: dict[str, int] = dict.fromkeys(tx.run.tables, 0)
    for target in by_sink(tx, source):
        written[target.name] += staged.counts(target)
    offsets = {str(position.partition): position.end_offset for position in tx.positions()}
    if tx.run.strategy == "reprocess":  # a reprocess moves no position, so show the group's positions
        offsets = {str(Partition(row.topic, row.partition)): row.next_offset for row in tx.offsets()}
    return {
        "records": sum(attempt.records + attempt.dead_letters for attempt in chosen),
        "rows": written,
        "offsets": offsets,
        "dead_letters": sum(attempt.dead_letters for attempt in chosen),
        "failures": dead_letters_of(tx),
    }
