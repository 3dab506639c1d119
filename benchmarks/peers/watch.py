"""Times a peer by its table, from the first visible rows to the last, because its own clock cannot be read."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
import psycopg
from psycopg import sql

from peers import kinds
from peers.trial import PeerError, Trial
from seekpoint.testing.servers.process import Child

PATIENCE = 90.0  # seconds without a new page after which a peer counts as stuck


@dataclass(frozen=True)
class Seen:
    """``records`` became visible in ``seconds``, the last at ``last`` (wall clock); ``cpu_seconds`` of the process."""

    seconds: float
    records: int
    last: float
    cpu_seconds: float


def watch(trial: Trial, child: Child, *, table: str | None = None, all_of_it: bool = False) -> Seen:
    """Watch until the table has every record.

    The first rows that it sees are not counted, so start-up is left out. While the table grows only its size is
    queried, which costs the server almost nothing; exact counts begin near the end. Raises PeerError if the process
    ends early, the table stops growing, or all rows appear at once, unless ``all_of_it``: another clock has the start.
    """
    name = sql.Identifier(table or trial.kind.name)
    with psycopg.connect(trial.dsn, autocommit=True) as connection:
        count = sql.SQL("SELECT count(*) FROM {}").format(name)
        expected = kinds.expect(trial.kind, trial.dsn, trial.records)
        near = 0.9 * _size(connection, expected)
        first = first_cpu = 0.0
        first_rows = rows = size = 0
        moved = time.monotonic()
        while True:
            alive, now = child.running, time.monotonic()
            if first_rows == 0 or size >= near or not alive:
                rows = _one(connection, count)
                if rows and not first_rows:
                    first, first_rows, first_cpu = now, rows, cpu(child)
                if rows >= trial.records:
                    break
                if not alive:
                    raise PeerError(f"it ended with {rows} of {trial.records} rows written\n{child.log_tail()}")
            if (grown := _size(connection, name.as_string())) != size:
                size, moved = grown, now
            if now - moved > PATIENCE:
                raise PeerError(f"nothing was written for {PATIENCE:.0f} s, at {rows} rows\n{child.log_tail()}")
            time.sleep(0.05 if first_rows else 0.02)
    if first_rows >= trial.records and not all_of_it:
        raise PeerError(f"all {trial.records} rows appeared at once: take more records, or smaller batches")
    return Seen(now - first, trial.records - first_rows, time.time() - (time.monotonic() - now), cpu(child) - first_cpu)


def cpu(child: Child) -> float:
    """Seconds of processor time that the process has used, with its children; 0 when it is gone."""
    try:
        process = psutil.Process(child.pid)
        family = [process, *process.children(recursive=True)]
        return float(sum(sum(member.cpu_times()[:2]) for member in family))
    except psutil.NoSuchProcess:
        return 0.0


def _one(connection: psycopg.Connection[tuple[int]], query: sql.Composed) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def _size(connection: psycopg.Connection[tuple[int]], name: str) -> int:
    row = connection.execute("SELECT pg_relation_size(%s)", [name]).fetchone()
    assert row is not None
    return row[0]
