"""Checks before a merge takes its locks: how long workers would wait, and whether its changes are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import psycopg
from psycopg import sql as ident

from seekpoint.errors import CutOverRefused, ReloadRefused
from seekpoint.jobs.reload.compare import DIFFERENT_KEY, Difference, differing, distinct
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.run import Driver, Tx
from seekpoint.jobs.tables.dependencies import MERGE, of_inheritance, referencing, ties
from seekpoint.jobs.tables.sql_templates import Part, composed, names
from seekpoint.jobs.tables.staging_schema import Staging, StagingTables
from seekpoint.jobs.tables.targets import Target

SAMPLE = 20_000  # rows that are written once for the rate
FEW = 100  # changes that are not worth a measurement
LARGER = 1.5  # times as long as in the sample, which is small and in memory, takes a row of the live table (measured)
# Seconds for a row where no sample can be written: all rows are deleted, or the sample table refuses what only the live
# one's defaults fill in. A guess, above the 5 to 12 µs that were measured for a changed row (docs/concepts/reload.md).
UNSAMPLED = 20e-6


def forecast(driver: Driver, found: Sequence[Target], differences: Sequence[Difference]) -> float:
    """Predict for how many seconds workers wait for a merge, from the changes and from rates that are measured now.

    No lock is taken on anything live.
    """
    seconds = 0.0
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(found, differences, strict=True):
            tables = StagingTables(tx.connection, staging, target)
            if difference.changes >= FEW:
                seconds += difference.changes * _rate(tables, min(difference.changes, SAMPLE))
            # The merge searches the live table twice and the rebuilt one once for what was written and deleted since.
            for path in (target.path, target.path, tables.built):
                seconds += _timed(tables, "SELECT count(*) FROM {path}", path=path)[0]
    return seconds


def _rate(tables: StagingTables, sample: int) -> float:
    """Seconds for a row, measured on a sample; a guess where a table without the live one's defaults refuses that."""
    try:
        with tables.connection.begin_nested():
            return _seconds_a_row(tables, sample)
    except psycopg.errors.IntegrityError:
        return UNSAMPLED


def _seconds_a_row(tables: StagingTables, sample: int) -> float:
    """The slower of adding and changing rows of a table with the live one's columns, checks and indexes."""
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
        changes = ident.SQL(", ").join(composed("{a} = {b}", a=(one,), b=("diff", one)) for one in tables.others)
        change = "UPDATE {rate} AS live SET {changes} FROM {diff} AS diff WHERE {same}"
        changing, _ = _timed(tables, change, changes=changes)
    tables.run("DROP TABLE {rate}")
    return LARGER * max(adding, changing) / added if added else UNSAMPLED


def _timed(tables: StagingTables, statement: str, **parts: Part) -> tuple[float, int]:
    """The seconds that a statement takes, and the rows that it touches."""
    began = monotonic()
    touched = tables.run(statement, **parts)
    return monotonic() - began, touched


def require_no_extra(found: Sequence[Target], differences: Sequence[Difference]) -> None:
    """Raise ReloadRefused for extra rows of a compacted topic's table: compaction may have deleted their records."""
    pairs = zip(found, differences, strict=True)
    if reasons := [lost(target, each.extra) for target, each in pairs if target.is_compacted and each.extra]:
        raise ReloadRefused(reasons)


def require_allowed(
    driver: Driver, found: Sequence[Target], differences: Sequence[Difference], predicted: float, bounds: Bounds
) -> None:
    """Refuse a merge that would wait, delete or reach more than is allowed. Raises CutOverRefused with each reason."""
    reasons = []
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(found, differences, strict=True):
            reasons += of_deletes(target, difference.extra, difference.live, bounds)
            reasons += reaches(StagingTables(tx.connection, staging, target), bounds, deletes=difference.extra)
        if predicted > bounds.max_wait:
            changes, how = sum(difference.changes for difference in differences), others(tx, found)
            reasons.append(
                f"workers would wait about {predicted:.1f} s for {changes} changed rows, and at most "
                f"{bounds.max_wait:g} s are allowed: {allow_wait(driver, predicted)}; {how}"
            )
    if reasons:
        raise CutOverRefused(reasons, predicted=predicted)


def lost(target: Target, count: int) -> str:
    """Why rows of a compacted topic's table are not deleted."""
    return (
        f"{target.name}: {count} live rows are not in the rebuilt table, and its topic is compacted: the records that "
        "they were made of may be gone. Rebuild it from a topic that has every record, or delete the rows "
        "that no record explains (`seekpoint verify` shows them) and open another run"
    )


def of_deletes(target: Target, deletes: int, live: int, bounds: Bounds) -> list[str]:
    """Why so many rows of the table are not deleted."""
    live = max(live, deletes)  # of rows that came since they were counted
    if deletes <= bounds.max_deletes * live:
        return []
    share = deletes / max(live, 1)
    reason = (
        f"{target.name}: {deletes} of {live} live rows ({share:.0%}) are not in the rebuilt table and would go, "
        f"more than {bounds.max_deletes:.0%}: look at them with `seekpoint verify`; if they are to go, `seekpoint "
        f"reload resume --max-deletes {min(1.0, round(share + 0.005, 2)):g}` (Reload(…, max_deletes=…))"
    )
    return [reason]


def reaches(tables: StagingTables, bounds: Bounds, *, deletes: int, touched: bool = False) -> list[str]:
    """Why this table may not be changed, because of what that changes in other tables."""
    target = tables.target
    reasons = [] if bounds.allow_inheritance else of_inheritance(tables.connection, target)
    if bounds.allow_cascades:
        return reasons
    remedy = "allow it by --allow-cascades (Reload(…, allow_cascades=True))"
    for key in referencing(tables.connection, target):
        if key.on_delete and deletes:
            reasons.append(f"{target.name}: {deletes} rows would be deleted, and {key}: {remedy}")
        if key.on_update and (changed := _changed(tables, key.columns, touched=touched)):
            reasons.append(f"{target.name}: {changed} rows would get other values, and {key}: {remedy}")
    return reasons


def _changed(tables: StagingTables, columns: Sequence[str], *, touched: bool) -> int:
    """How many live rows would get other values in these columns."""
    if not (wanted := [one for one in differing(tables.target, columns) if one in tables.columns]):
        return 0
    return int(
        tables.value(
            "SELECT count(*) FROM {diff} AS diff JOIN {live} AS live USING ({key}) JOIN {built} AS built USING ({key}) "
            "WHERE diff.{kind} IN ('different', {different_key}, {touched_kind}) AND {distinct}",
            different_key=DIFFERENT_KEY,
            touched_kind="touched" if touched else None,
            distinct=distinct(wanted, "live", "built"),
        )
    )


def allow_wait(driver: Driver, seconds: float) -> str:
    """How a longer wait is allowed."""
    wait = max(round(2 * seconds), 1)
    return f"`seekpoint reload resume {driver.run.id} --max-wait {wait}s` (Reload(…, max_wait={wait}))"


def others(tx: Tx, found: Sequence[Target]) -> str:
    """Whether ``swap`` can take these tables, whose wait does not grow with the rows, or what is in its way."""
    reasons = "; ".join(_without_merge(reason) for target in found for reason in ties(tx.connection, target))
    if reasons:
        return f"strategy 'swap', whose wait does not grow with the rows, cannot take its place: {reasons}"
    return "or open another run with strategy 'swap', whose wait does not grow with the rows"


def _without_merge(reason: str) -> str:
    return reason.removesuffix(MERGE).removesuffix("; or ").removesuffix(": ")
