"""Checks before a merge takes its locks: the predicted wait of workers, and whether its changes are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import psycopg
from psycopg import sql as ident

from seekpoint.errors import CutOverRefused, ReloadRefused
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, Difference, differing, distinct
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.tables.dependencies import MERGE, of_inheritance, referencing, ties
from seekpoint.jobs.tables.sql_templates import Part, composed, names
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.targets import Target
from seekpoint.runs.run import Driver, Tx

SAMPLE = 20_000  # rows written to measure the rate
FEW = 100  # fewer changes are not worth a measurement
LARGER = 1.5  # by this measured factor, a row of the live table takes longer than one of the small sample table
# Seconds per row if no sample can be written: all rows are deleted, or the sample table lacks the live table's
# defaults. A guess above the measured 5 to 12 µs for a changed row (docs/concepts/reload.md).
UNSAMPLED = 20e-6


def forecast(driver: Driver, targets: Sequence[Target], differences: Sequence[Difference]) -> float:
    """Predict for how many seconds workers wait for a merge, from its changes and from rates measured now.

    Locks no live table.
    """
    seconds = 0.0
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(targets, differences, strict=True):
            tables = StagingTables(tx.connection, staging, target)
            if difference.changes >= FEW:
                seconds += difference.changes * _rate(tables, min(difference.changes, SAMPLE))
            # To find rows written or deleted since the comparison, the merge scans the live table twice and the rebuilt
            # one once.
            for path in (target.path, target.path, tables.built):
                seconds += _timed(tables, "SELECT count(*) FROM {path}", path=path)[0]
    return seconds


def _rate(tables: StagingTables, sample: int) -> float:
    """Seconds per row, measured on a sample; a guess if the sample violates a constraint for lack of defaults."""
    try:
        with tables.connection.begin_nested():
            return _seconds_a_row(tables, sample)
    except psycopg.errors.IntegrityError:
        return UNSAMPLED


def _seconds_a_row(tables: StagingTables, sample: int) -> float:
    """Seconds per row, for the slower of inserts and updates, on a table with the live columns, checks and indexes."""
    tables.run(
        "CREATE {unlogged} TABLE {rate} (LIKE {live} INCLUDING INDEXES INCLUDING GENERATED INCLUDING CONSTRAINTS)"
    )
    adding, added = _timed(
        tables,
        "INSERT INTO {rate} ({columns}) SELECT {built_columns} FROM {built} AS built "
        "JOIN {diff} AS diff USING ({key}) LIMIT {sample}",
        columns=names(tables.target.all_columns),
        built_columns=names(tables.target.all_columns, "built"),
        sample=sample,
    )
    changing = 0.0
    if tables.others:
        changes = ident.SQL(", ").join(
            composed("{a} = {b}", a=(column,), b=("diff", column)) for column in tables.others
        )
        change = "UPDATE {rate} AS live SET {changes} FROM {diff} AS diff WHERE {same}"
        changing, _ = _timed(tables, change, changes=changes)
    tables.run("DROP TABLE {rate}")
    return LARGER * max(adding, changing) / added if added else UNSAMPLED


def _timed(tables: StagingTables, statement: str, **parts: Part) -> tuple[float, int]:
    """The seconds that a statement takes, and its number of affected rows."""
    began = monotonic()
    touched = tables.run(statement, **parts)
    return monotonic() - began, touched


def require_no_extra(targets: Sequence[Target], differences: Sequence[Difference]) -> None:
    """Raise ReloadRefused for extra rows of a compacted topic's table: compaction may have deleted their records."""
    pairs = zip(targets, differences, strict=True)
    if reasons := [
        lost(target, difference.extra) for target, difference in pairs if target.is_compacted and difference.extra
    ]:
        raise ReloadRefused(reasons)


def require_allowed(
    driver: Driver, targets: Sequence[Target], differences: Sequence[Difference], predicted: float, bounds: Bounds
) -> None:
    """Raise CutOverRefused, with every reason, for a merge that exceeds the bounds."""
    reasons = []
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(targets, differences, strict=True):
            reasons += of_deletes(target, difference.extra, difference.live, bounds)
            reasons += reaches(StagingTables(tx.connection, staging, target), bounds, deletes=difference.extra)
        if predicted > bounds.max_wait:
            changes, how = sum(difference.changes for difference in differences), others(tx, targets)
            reasons.append(
                f"workers would wait about {predicted:.1f} s for {changes} changed rows, and at most "
                f"{bounds.max_wait:g} s are allowed: {allow_wait(driver, predicted, bounds)}; {how}"
            )
    if reasons:
        raise CutOverRefused(reasons, predicted=predicted)


def lost(target: Target, count: int) -> str:
    """The reason why a merge does not delete ``count`` rows of a compacted topic's table."""
    return (
        f"{target.name}: {count} live rows are not in the rebuilt table, and its topic is compacted, which may have "
        "removed their records. Rebuild the table from a topic that has every record, or delete the rows that should "
        "not be there (`seekpoint verify` shows them) and open another run"
    )


def of_deletes(target: Target, deletes: int, live: int, bounds: Bounds) -> list[str]:
    """Return why a merge may not delete this many rows; empty if the bounds allow that."""
    live = max(live, deletes)  # rows may have been added since the count
    if deletes <= bounds.max_deletes * live:
        return []
    share = deletes / max(live, 1)
    reason = (
        f"{target.name}: {deletes} of {live} live rows ({share:.0%}) are not in the rebuilt table and would be "
        f"deleted, more than {bounds.max_deletes:.0%}: look at them with `{bounds.verify}`; to delete them, "
        f"`{bounds.resume or 'seekpoint reload resume'} --max-deletes {min(1.0, round(share + 0.005, 2)):g}` "
        f"({bounds.call}(…, max_deletes=…))"
    )
    return [reason]


def reaches(tables: StagingTables, bounds: Bounds, *, deletes: int, touched: bool = False) -> list[str]:
    """Return why a merge may not change this table: rows of other tables would also change. Empty if it may.

    A merge changes these through inheritance or a foreign key's action.
    """
    target = tables.target
    reasons = [] if bounds.allow_inheritance else of_inheritance(tables.connection, target)
    if bounds.allow_cascades:
        return reasons
    remedy = f"allow it with --allow-cascades ({bounds.call}(…, allow_cascades=True))"
    for key in referencing(tables.connection, target):
        if key.on_delete and deletes:
            reasons.append(f"{target.name}: {deletes} rows would be deleted, and {key}: {remedy}")
        if key.on_update and (changed := _changed(tables, key.columns, touched=touched)):
            reasons.append(f"{target.name}: {changed} rows would get other values, and {key}: {remedy}")
    return reasons


def _changed(tables: StagingTables, columns: Sequence[str], *, touched: bool) -> int:
    """The number of live rows whose values in these columns would change."""
    if not (rebuilt := [column for column in differing(tables.target, columns) if column in tables.columns]):
        return 0
    return int(
        tables.value(
            "SELECT count(*) FROM {diff} AS diff JOIN {live} AS live USING ({key}) JOIN {built} AS built USING ({key}) "
            "WHERE diff.{kind} IN ('different', {different_key}, {touched_kind}) AND {distinct}",
            different_key=DIFFERENT_KEY,
            touched_kind="touched" if touched else None,
            distinct=distinct(rebuilt, "live", "built"),
        )
    )


def allow_wait(driver: Driver, seconds: float, bounds: Bounds) -> str:
    """The command that allows a longer wait."""
    wait = max(round(2 * seconds), 1)
    resume = bounds.resume or f"seekpoint reload resume {driver.run.id}"
    return f"`{resume} --max-wait {wait}s` ({bounds.call}(…, max_wait={wait}))"


def others(tx: Tx, targets: Sequence[Target]) -> str:
    """Advice about strategy ``swap``, whose wait does not grow with the rows: that it is possible, or why not."""
    reasons = "; ".join(_without_merge(reason) for target in targets for reason in ties(tx.connection, target))
    if reasons:
        return f"strategy 'swap', whose wait does not grow with the rows, cannot be used instead: {reasons}"
    return "or open another run with strategy 'swap', whose wait does not grow with the rows"


def _without_merge(reason: str) -> str:
    return reason.removesuffix(MERGE).removesuffix("; or ").removesuffix(": ")
