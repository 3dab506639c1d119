"""Rebuilding what handlers write: from the first record on, in rounds of a bounded size, by the driver itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from seekpoint.reload import statements as sql
from seekpoint.reload.extend import Shrinking
from seekpoint.reload.rounds import Rounds
from seekpoint.reload.run import SERIALIZABLE_ENOUGH, Driver
from seekpoint.reload.targets import Source

FIRST, MOST = 5_000, 50_000  # records of one transaction
LONG = 20.0  # seconds that one takes at most, or fewer records are taken: whoever aborts the run waits for it


def rebuild(
    driver: Driver,
    sources: Sequence[Source],
    kafka: Mapping[str, Any],
    progress: Callable[[str, int, int], None],
    most: int = MOST,
) -> None:
    """Run the handlers until their copies are less than one round behind the groups' positions.

    Each round is one transaction with the rebuild's position: whoever takes the run goes on behind the last one. Raises
    ReloadRefused, WroteLiveTable, and what reading the log raises.
    """
    handled = {source.group for source in sources if source.has_handler}
    if not handled:
        return
    shrinking, size = Shrinking(), min(FIRST, most)
    with Rounds(driver, sources, kafka) as rounds:
        while True:
            with driver.step("staged", isolation=SERIALIZABLE_ENOUGH) as tx:
                began = monotonic()
                offsets = tx.execute(sql.OFFSETS, groups=list(driver.run.groups)).all()
                rounds.part(tx, offsets, size)
                positions = [at for at in tx.positions(driver.run.id) if at.group in handled]
            size = _next_size(size, most, monotonic() - began)
            its = [row for row in offsets if row.consumer_group in handled]
            now = {(row.consumer_group, row.topic, row.partition): row.next_offset for row in its}
            progress(
                "staging",
                sum(at.next_offset - at.first_offset for at in positions),
                sum(row.next_offset - row.first_offset for row in its),
            )
            if any(at.next_offset < at.end_offset for at in positions):
                continue
            left = sum(now[at.group, *at.partition] - at.next_offset for at in positions)
            if left <= most:
                return
            shrinking.take(left)


def _next_size(size: int, most: int, seconds: float) -> int:
    """How many records the next round takes, where one of ``size`` took so long: fewer at once, more by and by."""
    return max(1, min(most, 2 * size, int(size * LONG / max(seconds, 0.001))))
