"""The least time that workers would wait for a merge, predicted before anything is staged."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from sqlalchemy import Connection

from seekpoint.jobs.tables.sql_templates import Statements, regclass
from seekpoint.jobs.tables.targets import Target

MANY = 1_000_000  # rows: a smaller table needs no measurement, because its scan takes a fraction of a second
SAMPLE = 200_000  # rows read to measure the rate; read twice, because the first time they may come from the disk
SEARCHES = 3  # scans of the live or rebuilt table under the lock, even without differences


def of_wait(connection: Connection, targets: Sequence[Target], max_wait: float) -> list[str]:
    """Return why a merge of these tables would be refused after staging: their scans take too long.

    Empty if the scans take at most ``max_wait`` seconds. The time for changes comes in addition, and is predicted after
    the comparison. Takes no lock. A table that was never analyzed has no known size, and is not refused here.
    """
    waits = {target.name: _least(connection, target) for target in targets}
    predicted = sum(waits.values())
    if predicted <= max_wait:
        return []
    allowed = max(round(2 * predicted), 1)
    tables = ", ".join(name for name, wait in waits.items() if wait)
    reason = (
        f"{tables}: workers would wait about {predicted:.1f} s for a merge while it searches for rows written "
        f"meanwhile, and at most {max_wait:g} s are allowed: give --max-wait {allowed}s (Reload(…, "
        f"max_wait={allowed})), or use strategy 'swap', whose wait does not grow with the rows"
    )
    return [reason]


def _least(connection: Connection, target: Target) -> float:
    """Seconds for the scans of one table; 0 for a small one."""
    table = Statements(connection, live=target.path, its=regclass(target.path), sample=SAMPLE)
    count = int(table.value("SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = {its}"))
    if count <= MANY:
        return 0.0
    seconds = []
    for _ in range(2):
        began = monotonic()
        read = int(table.value("SELECT count(*) FROM (SELECT FROM {live} LIMIT {sample}) AS sample"))
        seconds.append((monotonic() - began) / max(read, 1))
    return SEARCHES * count * min(seconds)
