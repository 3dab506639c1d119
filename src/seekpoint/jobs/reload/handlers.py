"""Rebuilds what handlers write: the driver applies the log from the first record on, in passes of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any

from sqlalchemy import Row, delete

from seekpoint.jobs.reload.catch_up import CatchUp
from seekpoint.jobs.run import Driver, StagedPosition
from seekpoint.jobs.staging.extend_snapshot import CatchUpProgress, key_of
from seekpoint.jobs.tables.constraints import breaks, check_references, references
from seekpoint.jobs.tables.sql_templates import run
from seekpoint.jobs.tables.staging_schema import Staging, of_partition
from seekpoint.jobs.tables.targets import PipelineSource, Target
from seekpoint.postgres.backoff import retried
from seekpoint.postgres.sqlstates import is_conflict

FIRST, MOST = 5_000, 50_000  # records of one transaction
LONG = 20.0  # seconds; a pass that takes longer is followed by a smaller one, because an abort waits for its end


def rebuild(
    driver: Driver,
    sources: Sequence[PipelineSource],
    kafka: Mapping[str, Any],
    progress: Callable[[str, int, int], None],
    most: int = MOST,
) -> None:
    """Run the handlers until less than one pass is left up to the groups' positions.

    Each pass is one transaction with the run's positions: a driver that takes over continues after the last one. Raises
    ReloadRefused, WroteLiveTable, and what reading the log raises.
    """
    handled = {source.group for source in sources if source.has_handler}
    if not handled:
        return
    with CatchUp(driver, sources, kafka) as passes:
        _catch_up(driver, handled, passes, progress, most)
        if driver.run.strategy != "swap" and _begins_again(driver, handled, passes.targets):
            _catch_up(driver, handled, passes, progress, most)


def _begins_again(driver: Driver, handled: Collection[str], found: Sequence[Target]) -> bool:
    """Whether the handlers have to run from the first record again, because rows of the copies break foreign keys.

    Then each row is checked when it is written. The first time only the result is checked: a row may refer to one that
    is deleted by now, if a later record deletes the row itself, too.
    """
    with driver.step("staged") as tx:
        staging = Staging(tx.run.staging_schema)
        copies = [target for target in found if target.handled_as]
        its = {target: references(tx.connection, staging, target, found) for target in copies}
        if not any(breaks(tx.connection, staging.table(target), one) for target in copies for one in its[target]):
            return False
        for target in copies:
            check_references(tx.connection, staging, target, its[target])
            run(tx.connection, "TRUNCATE {table}", table=staging.table(target))
        positions = [at for at in tx.positions() if at.group in handled]
        tx.advance({(at.group, at.partition): at.first_offset for at in positions})
        for at in positions:
            dead_letters, left_out = staging.dead_letters.c, staging.left_out.c
            tx.execute(delete(staging.dead_letters).where(*of_partition(dead_letters, at.group, at.partition)))
            after = left_out.record_offset >= at.end_offset
            tx.execute(delete(staging.left_out).where(*of_partition(left_out, at.group, at.partition), after))
    return True


def _catch_up(
    driver: Driver, handled: Collection[str], passes: CatchUp, progress: Callable[[str, int, int], None], most: int
) -> None:
    pace, size = CatchUpProgress(), min(FIRST, most)

    def part() -> tuple[Sequence[Row[Any]], list[StagedPosition], float]:
        with driver.step("staged") as tx:  # a handler gets rows that others write as they are then, as in a worker
            began = monotonic()
            offsets = tx.offsets()
            passes.part(tx, offsets, size)
            positions = [at for at in tx.positions() if at.group in handled]
        return offsets, positions, monotonic() - began

    while True:
        offsets, positions, seconds = retried(part, is_conflict)
        size = _next_size(size, most, seconds)
        its = {key_of(row): row for row in offsets if row.consumer_group in handled}
        done = sum(at.next_offset - at.first_offset for at in positions)
        progress("staging", done, sum(row.next_offset - row.first_offset for row in its.values()))
        if any(at.next_offset < at.end_offset for at in positions):
            continue
        left = sum(int(its[at.group, at.partition].next_offset) - at.next_offset for at in positions)
        if left <= most:
            return
        pace.require_shrinking(left)


def _next_size(size: int, most: int, seconds: float) -> int:
    """How many records the next pass takes, after one of ``size`` took so long: at most twice as many."""
    return max(1, min(most, 2 * size, int(size * LONG / max(seconds, 0.001))))
