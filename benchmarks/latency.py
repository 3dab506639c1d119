"""From produce to a visible row: at 1, 100 and 10,000 records a second.

python benchmarks/latency.py [--seconds N] [--rates 1,100,10000] [--quick]

Each record carries the time right before it was given to the producer, by the machine's monotonic clock. One process
produces records evenly, another is the worker. From 1,000 a second on the producer lingers 1 ms, and sends 10 ms of
records to one partition after the other, as the client does with records without a key: otherwise each record would be
a request, and the broker the bottleneck. A row counts as visible when its COMMIT was answered (event ``Committed``),
because others see it then. Separate rounds check that with a reader, which queries the table for new rows as fast as it
can: ``reader_step`` is the time between two queries. Rows are matched by partition and offset. Records of the first
second do not count (plans, caches, the first fetch). Rows also have the broker's time to answer the producer.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from time import monotonic

from stage import BenchProcess, Stage, arguments, ms, say, servers

PARTITIONS = 6
WARM = 1.0  # seconds at the start that do not count


class Reader(threading.Thread):
    """Queries for new rows continuously, and notes when it first saw each."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._connection, self._stopping = stage.connect(), threading.Event()
        self.seen: dict[int, float] = {}
        self.steps: list[float] = []
        self.start()

    def run(self) -> None:
        """Query by id. Ids come in order within a partition, so ids below the lowest missing one are not queried."""
        low, before = 0, monotonic()
        asked = "SELECT id FROM orders WHERE id >= %s"
        while not self._stopping.is_set():
            rows = self._connection.execute(asked, [low], prepare=True).fetchall()
            now = monotonic()
            self.steps.append(now - before)
            before = now
            for (number,) in rows:
                self.seen.setdefault(number, now)
            while low in self.seen:
                low += 1

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self.join()
        self._connection.close()


def visible(worker: BenchProcess) -> dict[int, tuple[list[int], list[float]]]:
    """By partition: the ends of its commits, and when each was answered."""
    commits: dict[int, tuple[list[int], list[float]]] = {number: ([], []) for number in range(PARTITIONS)}
    for report in worker.all("Committed"):
        for partition, _, end in report["spans"]:
            commits[partition][0].append(end)
            commits[partition][1].append(report["at"])
    return commits


def run(stage: Stage, rate: int, seconds: float, *, read: bool) -> None:
    """Measure one worker and one producer at this rate; ``read``: with the reader."""
    stage.fresh_table(key="id", more=', partition integer, "offset" bigint')
    topic, name = stage.topic(f"latency-{rate}-{'read' if read else 'plain'}", PARTITIONS), f"{rate:,} a second"
    records, linger = max(10, round(rate * seconds)), 1 if rate >= 1000 else 0
    order = {"group": f"{topic}", "topic": topic, "sink": "append", "places": True}
    feed = {"topic": topic, "partitions": PARTITIONS, "rate": rate, "run": max(1, rate // 100)}
    with stage.start(**order, later=True, now=["Activated"], tell=["Committed"]) as worker:
        worker.wait_for("Activated", count=PARTITIONS, timeout=120)
        reader = Reader(stage) if read else None
        feeder = stage.start(**feed, feed=records, producer={"linger.ms": linger})
        feeder.finish()
        stage.wait_for_rows(records, 120)
        assert stage.rows() == (records, records)
        if reader is not None:
            reader.stop()
        worker.stop()
    commits = visible(worker)
    with stage.connect() as connection:
        rows = connection.execute('SELECT id, made, partition, "offset" FROM orders').fetchall()
    began = min(made_at for _, made_at, _, _ in rows) / 1e9
    latency, seen = [], []
    for number, made_at, partition, offset in rows:
        ends, times = commits[partition]
        if made_at / 1e9 < began + min(WARM, seconds / 5):
            continue
        latency.append(times[bisect_right(ends, offset)] - made_at / 1e9)
        if reader is not None:
            seen.append(reader.seen[number] - made_at / 1e9)
    assert min(latency) > 0, "visible before it was made: the processes' clocks differ"
    transactions = len(worker.all("Committed"))
    say(
        "latency",
        f"{name}, checked by a reader" if reader else name,
        rate_per_second=rate,
        records=records,
        counted=len(latency),
        records_per_transaction=round(records / transactions, 2),
        **ms("latency", latency, 0.5, 0.99),
        **ms("seen_by_reader", seen, 0.5, 0.99),
        **ms("reader_step", reader.steps if reader else [], 0.5, 0.99),
        linger_ms=linger,
        producer_late_max_ms=round(feeder.all("Fed")[0]["late"] * 1000, 3),
        broker_ack_p50_ms=round(feeder.all("Fed")[0]["ack_p50"] * 1000, 3),
        broker_ack_p99_ms=round(feeder.all("Fed")[0]["ack_p99"] * 1000, 3),
        produced_per_second=round(records / feeder.all("Fed")[0]["seconds"], 1),
    )


def main() -> None:
    """Each rate, plain and with the reader."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="seconds of each rate, and at least ten records (30; quick: 5)")
    parser.add_argument("--rates", default="1,100,10000")
    options = parser.parse_args()
    seconds = options.seconds or (5 if options.quick else 30)
    with servers() as stage:
        for rate in map(int, options.rates.split(",")):
            for read in (False, True):
                run(stage, rate, seconds, read=read)


if __name__ == "__main__":
    main()
