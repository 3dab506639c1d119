"""What the ledger costs: one pipeline with hold and advance, and without them, alternately in one process.

Without them rows are committed and offsets are not; everything else is equal, claims included. BENCH_BATCH is the
number of records in a transaction, BENCH_LIMIT the number of records in each measurement.
"""

from __future__ import annotations

import json
import statistics

from append import pipeline
from seekpoint.ledger import GroupLedger
from seekpoint.worker import worker as running
from setting import BATCH, LIMIT, upgrade
from subject import check, fresh_table, row
from unit import Silent
from worker_pool import Run, work

PAIRS = 5


def turn(kind: type[GroupLedger]) -> Run:
    """Move all records once, with this ledger."""
    running.Ledger = kind  # type: ignore[attr-defined]  # the one that Worker makes
    fresh_table()
    run = work(pipeline, LIMIT)
    check(kind.__name__, run.records)
    return run


def main() -> None:
    """Measure in pairs, in alternating order."""
    upgrade()
    turn(GroupLedger)  # imports, the ledger's tables in cache
    runs: dict[type[GroupLedger], list[Run]] = {GroupLedger: [], Silent: []}
    for n in range(PAIRS):
        for kind in (GroupLedger, Silent) if n % 2 else (Silent, GroupLedger):
            runs[kind].append(turn(kind))
    with_it, without = ([run.ended - run.began for run in runs[kind]] for kind in (GroupLedger, Silent))
    records = sum(run.records for run in runs[GroupLedger])
    line = row(
        "ledger",
        f"Append, {BATCH:,} a transaction, with hold and advance",
        records,
        sum(with_it),
        sum(run.cpu_seconds for run in runs[GroupLedger]),
        pairs=PAIRS,
        without_records_per_second=round(records / sum(without)),
        of_without=round(statistics.median(b / a for a, b in zip(with_it, without, strict=True)), 3),
    )
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
