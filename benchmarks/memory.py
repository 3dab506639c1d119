"""Whether a worker's memory grows: one process over ten million records, with and without bad ones among them.

python benchmarks/memory.py [--records N] [--poison N] [--modes append,upsert,...] [--quick]

The resident size of the worker's process is read at each commit. Rows have the first size, the sizes after a million
records and at the end, the peak (the kernel's, if known), and the growth per million records after the first million,
by least squares. ``append`` and ``upsert`` (each account ten times) write every record; ``poisoned`` variants
dead-letter one record in ``--poison``. The backlog is complete before the worker starts, so that the client's queue is
always full. Rows and dead letters are counted at the end.
"""

from __future__ import annotations

import statistics
from itertools import accumulate
from pathlib import Path
from typing import Any

from stage import BenchProcess, Stage, arguments, say, servers
from worker_process import ACCOUNTS

PARTITIONS = 6
MODES = ("append", "upsert", "append poisoned", "upsert poisoned")
MILLION = 1_000_000


def peak(worker: BenchProcess, seen: int) -> int:
    """The largest resident size, in bytes: the kernel's count, or the largest that was seen."""
    status = Path(f"/proc/{worker.process.pid}/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return max(seen, int(line.split()[1]) * 1024)
    return seen


def run(stage: Stage, mode: str, topic: str, options: Any) -> None:
    """Measure one worker on all records."""
    sink, _, is_poisoned = mode.partition(" ")
    poison, records = options.poison if is_poisoned else 0, options.records
    stage.fresh_table(key="account" if sink == "upsert" else "")
    group = f"{mode.replace(' ', '-')}-{stage.name}"
    order = {"group": group, "topic": topic, "sink": sink, "poison": poison, "rss": True, "tell": ["Committed"]}
    with stage.start(**order) as worker:
        worker.wait_until_passed(records)
        commits = worker.all("Committed")
        resident = [c["rss"] for c in commits]
        most = peak(worker, max(resident))
        worker.stop()
    bad = sum(1 for _ in range(poison // 2, records, poison)) if poison else 0
    parked, (rows, _) = stage.parked(group), stage.rows()
    assert parked == bad, f"{parked} dead letters of {bad} bad records"
    if sink == "append":
        assert rows == records - bad, f"{rows} rows of {records - bad} good records"
    else:
        assert rows == _accounts(records, poison), f"{rows} accounts"
    passed = list(accumulate(sum(end - start for _, start, end in c["spans"]) for c in commits))
    seconds = commits[-1]["at"] - commits[0]["at"]
    settled = next((n for n, p in enumerate(passed) if p >= min(MILLION, records // 4)), 0)
    growth = statistics.linear_regression(passed[settled:], resident[settled:]).slope
    say(
        "memory",
        f"{mode}, {records:,} records",
        records=records,
        seconds=round(seconds, 1),
        records_per_second=round((records - passed[0]) / seconds),
        poison_one_in=poison or None,
        dead_letters=parked,
        transactions=len(commits),
        rss_start_bytes=resident[0],
        rss_settled_bytes=resident[settled],
        settled_after_records=passed[settled],
        rss_end_bytes=resident[-1],
        rss_max_bytes=most,
        growth_per_million_bytes=round(growth * MILLION),
        samples=[[passed[n], resident[n]] for n in range(0, len(passed), max(1, len(passed) // 20))],
    )


def _accounts(records: int, poison: int) -> int:
    """How many accounts have a good record: an account's records are ACCOUNTS numbers apart."""
    if not poison:
        return min(records, ACCOUNTS)
    return len({n % ACCOUNTS for n in range(records) if n % poison != poison // 2})


def main() -> None:
    """Each mode in turn, on the same topic."""
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="(10,000,000; quick: 200,000)")
    parser.add_argument("--poison", type=int, default=1000, help="one bad record in N")
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    options.records = options.records or (200_000 if options.quick else 10_000_000)
    with servers() as stage:
        topic = stage.topic("memory", PARTITIONS)
        stage.fill(topic, PARTITIONS, options.records)
        for mode in options.modes.split(","):
            run(stage, mode, topic, options)


if __name__ == "__main__":
    main()
