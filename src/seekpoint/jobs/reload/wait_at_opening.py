"""How long workers would wait for a merge at the least, predicted before anything is staged."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from sqlalchemy import Connection

from seekpoint.jobs.tables.sql_templates import Statements, regclass
from seekpoint.jobs.tables.targets import Target

MANY = 1_000_000  # rows of a table that is measured: a smaller one is searched in a fraction of a second
SAMPLE = 200_000  # rows that are read for the rate, twice: the first time they come from the disk
SEARCHES = 3  # of the live or the rebuilt table under the lock, whatever differs


def of_wait(connection: Connection, found: Sequence[Target], max_wait: float) -> list[str]:
    """Why a merge of these tables would be refused after all its staging: the search through them takes too long.

    What is to change comes on top, and is predicted after the comparison. No lock is taken. A table that was never
    analyzed has no known size, and is not refused here.
    """
    waits = {target.name: _least(connection, target) for target in found}
    predicted = sum(waits.values())
    if predicted <= max_wait:
        return []
    allowed = max(round(2 * predicted), 1)
    tables = ", ".join(name for name, wait in waits.items() if wait)
    reason = (
        f"{tables}: workers would wait about {predicted:.1f} s for a merge while it searches for rows written "
        f"meanwhile, and at most {max_wait:g} s are allowed: --max-wait {allowed}s (Reload(…, max_wait={allowed})), or "
        "strategy 'swap', whose wait does not grow with the rows"
    )
    return [reason]


def _least(connection: Connection, target: Target) -> float:
    """Seconds for the searches through one table; 0 for one that is small."""
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
