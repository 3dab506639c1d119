"""Throughput with one record in ten that fails once, by what waits for its retry: partition, key or none.

python benchmarks/retry_order.py [--records N] [--rounds N] [--wait SECONDS] [--quick]

One worker, whose handler raises at the first attempt of one record in ten; the second is WAIT seconds later. The rate
is that of all records until each has its row. ``of_partition`` is the ratio to the rate with
``retry_order="partition"`` of the same round; both are medians of the rounds. Machines are shared and noisy: compare
the rows of one run.
"""

from __future__ import annotations

import logging
import secrets
import statistics
import threading
from multiprocessing import get_context
from time import monotonic
from typing import Any

from confluent_kafka import Producer
from sqlalchemy import Connection, create_engine, text

from seekpoint import Batch, Pipeline, Retry, Text, Worker, events
from seekpoint.pipeline.policy import DeadLetterLimits
from setting import upgrade
from stage import Stage, arguments, say, servers

ORDERS = ("partition", "key", "none")
PARTITIONS, KEYS, SHARE = 6, 1000, 10


def pipeline(order: Any, topic: str, group: str, wait: float, tried: set[tuple[int, int]]) -> Pipeline:
    """Writes the records' numbers, and fails on one record in ten unless it is in ``tried``."""

    def handle(tx: Connection, batch: Batch[str, Any]) -> None:
        for record in batch:
            if int(record.value) % SHARE == 0 and (record.partition, record.offset) not in tried:
                raise TimeoutError("no answer")
        tx.execute(text("INSERT INTO orders (id) VALUES (:id)"), [{"id": int(record.value)} for record in batch])

    return Pipeline(
        group,
        topics=topic,
        value=Text(),
        handle=handle,
        retry=Retry(wait_initial=wait, jitter=0),
        retry_order=order,
        on_poison="dead_letter",
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
    )


def measure(order: str, topic: str, stage: Stage, records: int, wait: float) -> tuple[float, int]:
    """Records per second of one worker until every record has its row, and how many records were retried alone."""
    logging.getLogger("seekpoint.events").setLevel(logging.ERROR)  # a log line per failure would be measured, too
    stage.fresh_table()
    began: list[float] = []
    waiting: set[tuple[Any, int]] = set()
    tried: set[tuple[int, int]] = set()  # a second time: an attempt is announced before it begins
    passed, retried, done = [0], [0], threading.Event()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.ChunkRead) and not began:
            began.append(monotonic())
        if isinstance(event, events.SingleRecordAttempt):
            tried.add((event.partition.number, event.offset))
        if isinstance(event, events.Committed):
            passed[0] += sum(span.end - span.start for span in event.spans)
        if isinstance(event, events.WaitingForRetry):
            waiting.add((event.partition, event.offset))
        if isinstance(event, events.RetrySucceeded):
            waiting.discard((event.partition, event.offset))
            retried[0] += 1
        if passed[0] >= records and not waiting and stage.rows()[0] >= records:
            done.set()

    engine, kafka = create_engine(stage.url), {"bootstrap.servers": stage.brokers}
    declared = pipeline(order, topic, f"retry-order-{secrets.token_hex(4)}", wait, tried)
    with Worker(declared, engine=engine, kafka=kafka, observe=[observe]).running():
        assert done.wait(600), f"only {stage.rows()[0]} rows after 600 s"
        seconds = monotonic() - began[0]
    engine.dispose()
    assert stage.rows() == (records, records)
    return records / seconds, retried[0]


def produce(brokers: str, topic: str, records: int) -> None:
    """Send the records, each with one of ``KEYS`` keys."""
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for number in range(records):
        producer.produce(topic, f"{number}", f"{number % KEYS}", partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def main() -> None:
    """Measure all, each in a new process, and print the medians."""
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="(1,200; quick: 300)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wait", type=float, default=1.0, help="seconds until the retry (1, as by default)")
    options = parser.parse_args()
    records = options.records or (300 if options.quick else 1_200)
    results: dict[str, list[tuple[float, int]]] = {order: [] for order in ORDERS}
    with servers() as stage, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        upgrade(stage.url)
        topic = stage.topic("retry-order", PARTITIONS)
        produce(stage.brokers, topic, records)
        for _ in range(options.rounds):
            for order in ORDERS:
                results[order].append(pool.apply(measure, (order, topic, stage, records, options.wait)))
    for order, of_order in results.items():
        rates = [rate for rate, _ in of_order]
        ratios = [rate / base for rate, (base, _) in zip(rates, results["partition"], strict=True)]
        say(
            "retries",
            f"retry_order {order}, 1 in {SHARE} fails once",
            records=records,
            records_per_second=round(statistics.median(rates)),
            of_partition=round(statistics.median(ratios), 2),
            retried=round(statistics.median(count for _, count in of_order)),
        )


if __name__ == "__main__":
    main()
