"""Before a merge takes its locks: how long workers would wait, and whether it may do what it would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

import psycopg
from psycopg import sql as ident

from seekpoint.errors import CutOverRefused, ReloadRefused
from seekpoint.jobs.reload.compare import Difference, compared, same_key
from seekpoint.jobs.reload.cutover_limits import Bounds
from seekpoint.jobs.reload.merge import lost, of_deletes, reaches
from seekpoint.jobs.run.run import Driver, Tx
from seekpoint.jobs.tables.compose import name, names, rows, run
from seekpoint.jobs.tables.dependencies import MERGE, ties, without_generations
from seekpoint.jobs.tables.staging_schema import Staging, unlogged
from seekpoint.jobs.tables.targets import Target

SAMPLE = 20_000  # rows that are written once for the rate
FEW = 100  # changes that are not worth a measurement
LARGER = 1.5  # times as long as in the sample, which is small and in memory, takes a row of the live table (measured)
# Seconds for a row where no sample can be written: all rows are deleted, or the sample table refuses what only the live
# one's defaults fill in. A guess, above the 5 to 12 µs that were measured for a changed row (docs/concepts/reload.md).
UNSAMPLED = 20e-6


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a merge is going to do: the rows that it changes, and the seconds for which workers wait, as predicted."""

    changes: int
    seconds: float


def forecast(driver: Driver, found: Sequence[Target], told: Sequence[Difference]) -> Forecast:
    """Predict a merge from the counted changes and rates that are measured now; no lock is taken on anything live."""
    seconds = 0.0
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(found, told, strict=True):
            changes = _changes(difference)
            if changes >= FEW:
                seconds += changes * _rate(tx, staging, target, min(changes, SAMPLE))
            seconds += _seconds_of_look(tx, staging, target)
    return Forecast(sum(map(_changes, told)), seconds)


def _changes(difference: Difference) -> int:
    return difference.missing + difference.extra + difference.different


def _rate(tx: Tx, staging: Staging, target: Target, sample: int) -> float:
    """Seconds for a row, measured on a sample; a guess where a table without the live one's defaults refuses that."""
    savepoint = tx.connection.begin_nested()
    try:
        seconds = _seconds_a_row(tx, staging, target, sample)
    except psycopg.errors.IntegrityError:
        savepoint.rollback()
        return UNSAMPLED
    savepoint.commit()
    return seconds


def _seconds_a_row(tx: Tx, staging: Staging, target: Target, sample: int) -> float:
    """The slower of adding and changing rows of a table with the live one's columns, checks and indexes."""
    parts = {
        "table": name(staging.schema, f"rate_{target.staged}"),
        "diff": name(*staging.diff(target)),
        "columns": names(target.all_columns),
        "key": names(target.key),
    }
    run(
        tx.connection,
        "CREATE {unlogged} TABLE {table} (LIKE {live} INCLUDING INDEXES INCLUDING GENERATED INCLUDING CONSTRAINTS)",
        **parts,
        unlogged=unlogged(staging.schema),
        live=name(*target.path),
    )
    began = monotonic()
    added = run(
        tx.connection,
        "INSERT INTO {table} ({columns}) SELECT {built_columns} FROM {built} AS built "
        "JOIN {diff} AS diff USING ({key}) LIMIT {sample}",
        **parts,
        built=name(*staging.table(target)),
        built_columns=names(target.all_columns, "built"),
        sample=ident.Literal(sample),
    )
    adding = monotonic() - began
    others = [one for one in compared(tx, staging, target) if one not in target.key]
    began = monotonic()
    if others:
        run(
            tx.connection,
            "UPDATE {table} AS live SET {changes} FROM {diff} AS diff WHERE {same}",
            **parts,
            changes=ident.SQL(", ").join(ident.SQL("{0} = {1}").format(name(one), name("diff", one)) for one in others),
            same=same_key(target, "live", "diff"),
        )
    changing = monotonic() - began
    run(tx.connection, "DROP TABLE {table}", **parts)
    return LARGER * max(adding, changing) / added if added else UNSAMPLED


def _seconds_of_look(tx: Tx, staging: Staging, target: Target) -> float:
    """Going through the live table twice and the rebuilt one once, for what was written and deleted since."""

    def count(path: tuple[str, str]) -> float:
        return _timed(lambda: rows(tx.connection, "SELECT count(*) FROM {table}", table=name(*path)))

    return 2 * count(target.path) + count(staging.table(target))


def _timed(work: Callable[[], object]) -> float:
    began = monotonic()
    work()
    return monotonic() - began


def require_no_extra(found: Sequence[Target], told: Sequence[Difference]) -> None:
    """A row whose record compaction took looks like one that is to be deleted. Raises ReloadRefused."""
    reasons = [
        lost(target, difference.extra)
        for target, difference in zip(found, told, strict=True)
        if target.is_compacted and difference.extra
    ]
    if reasons:
        raise ReloadRefused(reasons)


def require_allowed(
    driver: Driver, found: Sequence[Target], told: Sequence[Difference], predicted: Forecast, bounds: Bounds
) -> None:
    """Refuse a merge that would wait, delete or reach more than is allowed. Raises CutOverRefused with each reason."""
    reasons = []
    with driver.step("compared") as tx:
        staging = Staging(tx.run.staging_schema)
        for target, difference in zip(found, told, strict=True):
            reasons += of_deletes(target, difference.extra, difference.live, bounds)
            reasons += reaches(tx.connection, staging, target, bounds, deletes=difference.extra)
        if predicted.seconds > bounds.max_wait:
            how = others(tx, found)
            reasons.append(
                f"workers would wait about {predicted.seconds:.1f} s for {predicted.changes} changed rows, and at most "
                f"{bounds.max_wait:g} s are allowed: {allow_wait(driver, predicted.seconds)}; {how}"
            )
    if reasons:
        raise CutOverRefused(reasons, predicted=predicted.seconds)


def allow_wait(driver: Driver, seconds: float) -> str:
    """How a longer wait is allowed."""
    wait = max(round(2 * seconds), 1)
    return f"`seekpoint reload resume {driver.run.id} --max-wait {wait}s` (Reload(…, max_wait={wait}))"


def others(tx: Tx, found: Sequence[Target]) -> str:
    """Which other strategies can take these tables, and what is in the way of the rest."""
    obstacles: Mapping[str, list[str]] = {
        "swap": [reason for target in found for reason in ties(tx.connection, target)],
        "generation": [reason for target in found for reason in without_generations(tx.connection, target)],
    }
    told = [
        f"'{strategy}' cannot: {'; '.join(map(_without_merge, reasons))}" if reasons else f"'{strategy}' can"
        for strategy, reasons in obstacles.items()
    ]
    return f"of the other strategies, whose wait does not grow with the rows, {', and '.join(told)} (open another run)"


def _without_merge(reason: str) -> str:
    return reason.removesuffix(MERGE).removesuffix("; or ").removesuffix(": ")
