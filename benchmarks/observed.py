"""A worker with ``Append``, observed by operators (``on``) or not (``off``): what monitoring costs. Exactly once.

``on``: each second metrics are collected, and the worker writes its row and a sample of its positions (by default every
10 and 60 seconds) and mirrors its positions to Kafka (by default every 5). ``off``: no metrics, no samples, no mirror,
and the worker's row only at the start.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from append import pipeline
from seekpoint import Limits, Worker
from seekpoint.metrics import Tally
from seekpoint.metrics.prometheus import Collector
from setting import BATCH, LIMIT, upgrade
from subject import check, fresh_table, row
from worker_pool import work

EVERY = 1.0  # seconds between two rows of the worker, two samples of its positions, and two collections
LIMITS = {
    "on": Limits(batch_records=BATCH, lag_check=EVERY, sample_positions=EVERY),
    "off": Limits(batch_records=BATCH, lag_check=3600.0, sample_positions=0),
}


@contextmanager
def collected(worker: Worker) -> Iterator[None]:
    """Count the worker's events, and collect all metrics each second, as a scrape does."""
    collector, ended = Collector(Tally(worker)), threading.Event()

    def scrape() -> None:
        while not ended.wait(EVERY):
            list(collector.collect())

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main(mode: str) -> None:
    """Move the records once; check the table, print the row."""
    fresh_table()
    upgrade()
    if mode == "on":
        run = work(pipeline, LIMIT, limits=LIMITS[mode], around=collected, mirror=True)
    else:
        run = work(pipeline, LIMIT, limits=LIMITS[mode])
    check("observed", run.records)
    seconds, transactions = run.ended - run.began, run.transactions
    line = row("observed", f"Append, {mode}", run.records, seconds, run.cpu_seconds, transactions=transactions)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
