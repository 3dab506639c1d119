"""The cost of a commit by how many partitions its batch touches: 1, 6, 100, 1,000; end to end, from Kafka.

python benchmarks/commits.py [--partitions 1,6,100,1000] [--batches N] [--quick]
python benchmarks/commits.py --one-of 1000    a worker that owns 1,000 partitions, of which one has records

Each transaction writes a thousand records. The log has them in short runs, and a fetch brings few of each partition, so
that a batch touches all partitions; the row has the median of their number. The worker reads a fixed list of
partitions, from a backlog. Its events split the time: *hold* from the batch's opening to the locked rows, *advance*
from the applied rows to the moved offsets, *commit* from there to COMMIT's answer; the rest is reading, decoding and
COPY. Rows are counted at the end.
"""

from __future__ import annotations

import statistics
from typing import Any

from seekpoint.testing.child_process import Report
from stage import BenchProcess, Stage, arguments, median_ms, say, servers

BATCH = 1000  # records of a transaction
STEPS = {"hold": ("BatchOpened", "Held"), "advance": ("Applied", "Advanced"), "commit": ("Advanced", "Committed")}
TELL = ["BatchOpened", "Held", "Applied", "Advanced", "Committed"]
OVERHEAD, VALUE = 61 + 20, 150  # bytes of a run of records in the log, and of one record, at most


def transactions(worker: BenchProcess) -> list[dict[str, Report]]:
    """The events of each full transaction that was tried once, by name."""
    batches, current = [], dict[str, Report]()
    for report in worker.reports:
        if report["event"] == "BatchOpened":
            current = {}
        current[report["event"]] = report
        if report["event"] == "Committed" and report["records"] == BATCH and len(current) == len(TELL):
            batches.append(current)
    return batches


def run(stage: Stage, partitions: int, batches: int, *, filled: int = 0) -> None:
    """Measure one worker on a backlog; only ``filled`` of its partitions have records (0: all)."""
    stage.fresh_table()
    topic, records = stage.topic(f"commits-{partitions}-{filled}", partitions), BATCH * batches
    in_a_run = max(1, BATCH // (filled or partitions))
    feed = {"topic": topic, "partitions": filled or partitions, "rate": 0, "run": in_a_run}
    with stage.start(feed=records, **feed, producer={"linger.ms": 10_000, "batch.num.messages": in_a_run}) as feeder:
        feeder.finish()
    kafka = {"fetch.message.max.bytes": max(200, OVERHEAD + in_a_run * VALUE), "queued.min.messages": 4 * in_a_run}
    order = {"group": topic, "topic": topic, "sink": "append", "kafka": kafka, "limits": {"batch_records": BATCH}}
    with stage.start(**order, partitions=partitions, later=True, tell=TELL) as worker:
        stage.wait_for_rows(records)
        worker.stop()
    rows = stage.rows()
    assert rows == (records, records), f"{rows[0]} rows, {rows[1]} different, of {records} records"
    full = transactions(worker)
    assert full, "no transaction was full"
    seconds: dict[str, list[float]] = {
        step: [batch[end]["at"] - batch[start]["at"] for batch in full] for step, (start, end) in STEPS.items()
    }
    whole = [batch["Committed"]["seconds"] for batch in full]
    say(
        "commit",
        f"{partitions:,} partitions" + (f", records in {filled}" if filled else ""),
        partitions=partitions,
        records_per_transaction=BATCH,
        partitions_per_batch=statistics.median(len(batch["Advanced"]["spans"]) for batch in full),
        transactions=len(worker.all("Committed")),
        full_transactions=len(full),
        whole_p50_ms=median_ms(whole),
        **{f"{step}_p50_ms": median_ms(took) for step, took in seconds.items()},
        ledger_p50_ms=median_ms([sum(parts) for parts in zip(*seconds.values(), strict=True)]),
        records=records,
    )


def main() -> None:
    """Each number of partitions in turn."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", help="(1,6,100,1000; quick: 1,6,100)")
    parser.add_argument("--batches", type=int, help="records, in full transactions (300; quick: 30)")
    parser.add_argument("--one-of", type=int, metavar="N", help="partitions, one of which has records")
    options: Any = parser.parse_args()
    batches = options.batches or (30 if options.quick else 300)
    with servers() as stage:
        if options.one_of:
            run(stage, options.one_of, batches, filled=1)
            return
        for partitions in (options.partitions or ("1,6,100" if options.quick else "1,6,100,1000")).split(","):
            run(stage, int(partitions), batches)


if __name__ == "__main__":
    main()
