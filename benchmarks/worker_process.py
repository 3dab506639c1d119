"""A process of the operational questions: a worker that reports its events, or a feeder that produces records.

The order is one line of JSON. A worker: ``group``, ``topic``, ``sink`` (``append``, ``upsert``, ``sleep``),
``kafka`` and ``limits`` to add, ``tell`` (the events' names), ``later`` (report them at the end, so that nothing is
printed while it is measured, except those in ``now``), ``rss`` (with each commit), ``stats`` (librdkafka's queue, each
second), ``poison`` (one bad record in N), ``places`` (columns for partition and offset), ``partitions`` (how many,
without a group). A feeder: ``feed`` (records; 0: until SIGTERM), ``rate`` (a second; 0: as fast as possible),
``first``, ``step``, ``run`` (records in a row to one partition), ``producer`` to add.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from array import array
from collections.abc import Callable
from time import monotonic, monotonic_ns, sleep
from typing import Any

import msgspec
import psutil
from confluent_kafka import Producer
from sqlalchemy import Connection, text

from seekpoint import Append, Batch, Json, Pipeline, Upsert, Worker, events
from seekpoint.pipeline.policy import DeadLetterLimits, Limits, Retry
from seekpoint.testing.child_process import Reporter, obey, plain_event, receive, report
from stage import TABLE, percentile

KINDS = ("transfer", "card payment", "refund", "standing order")
COLUMNS = ("id", "made", "account", "amount", "kind", "at")
ACCOUNTS = 1_000_000


class Order(msgspec.Struct, frozen=True, gc=False):
    """One record; ``made`` is its time by the machine's monotonic clock, in nanoseconds."""

    id: int
    made: int
    account: int
    amount: str
    kind: str
    at: str


def main() -> None:
    """Carry out the order."""
    order = receive()
    obey()
    if "feed" in order:
        Feeder(order).run()
    else:
        work(order)


# -- a worker -------------------------------------------------------------------------------------------


class BenchReporter(Reporter):
    """Reports events of some names, at once or at the end."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__()
        self._later, self._now = set(order["tell"]), set(order.get("now", ()))
        if not order.get("later"):
            self._now |= self._later
        self._kept = list[events.Event]()
        self._process = psutil.Process() if order.get("rss") else None

    def __call__(self, event: events.Event) -> None:
        """Report or keep the event."""
        name = type(event).__name__
        if name in self._now:
            self.report(name, event)
        elif name in self._later:
            self._kept.append(event)

    def flush(self) -> None:
        """Report the kept events."""
        for event in self._kept:
            self.report(type(event).__name__, event)

    def report(self, step: str, event: events.Event) -> None:
        """Report the event, at a commit with the process's memory if the order has ``rss``."""
        more: dict[str, Any] = {}
        if self._process is not None and isinstance(event, events.Committed):
            more["rss"] = self._process.memory_info().rss
        report(step, **plain_event(event), **more)

    def on_stats(self, text_: str) -> None:
        """Report the size of librdkafka's queue."""
        stats = json.loads(text_)
        partitions = [p for topic in stats["topics"].values() for p in topic["partitions"].values()]
        report(
            "Stats",
            at=monotonic(),
            records=max(
                (p["fetchq_cnt"] for p in partitions), default=0
            ),  # they share one queue, and each reports its size
            bytes=max((p["fetchq_size"] for p in partitions), default=0),
            rebalances=stats.get("cgrp", {}).get("rebalance_cnt", 0),
        )


def work(order: dict[str, Any]) -> None:
    """Run one worker until SIGTERM."""
    logging.getLogger("seekpoint.events").setLevel(logging.ERROR)  # a log line per dead letter would be measured, too
    reporter = BenchReporter(order)
    kafka = {"bootstrap.servers": order["brokers"], **order.get("kafka", {})}
    if order.get("stats"):
        kafka |= {"statistics.interval.ms": 1000, "stats_cb": reporter.on_stats}
    worker = Worker(
        pipeline(order),
        engine=order["database"],
        kafka=kafka,
        limits=Limits(**order.get("limits", {})),
        partitions=[(order["topic"], n) for n in range(order["partitions"])] if "partitions" in order else None,
        observe=[reporter],
    )
    worker.run()
    reporter.flush()


def pipeline(order: dict[str, Any]) -> Pipeline:
    """What the worker does with each record."""
    share, places = order.get("poison", 0), order.get("places")

    def row(record: Any) -> tuple[Any, ...]:
        value = record.value
        if share and value.id % share == share // 2:
            raise ValueError("broken")
        return value.id, value.made, value.account, value.amount, value.kind, value.at

    def wait(tx: Connection, batch: Batch[Order, Any]) -> None:
        tx.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": order["seconds"]})
        rows = [dict(zip(COLUMNS, row(record), strict=True)) for record in batch]
        tx.execute(text(f"INSERT INTO {TABLE} VALUES (:id, :made, :account, :amount, :kind, :at)"), rows)

    options: dict[str, Any] = {"row": row, "columns": COLUMNS} if share else {}
    if places:
        options["provenance"] = {"partition": "partition", "offset": "offset"}
    sinks: dict[str, Callable[[], dict[str, Any]]] = {
        "append": lambda: {"sinks": [Append(TABLE, **options)]},
        "upsert": lambda: {"sinks": [Upsert(TABLE, key=["account"], **options)]},
        "sleep": lambda: {"handle": wait},
    }
    writes: dict[str, Any] = sinks[order["sink"]]()
    return Pipeline(
        order["group"],
        topics=order["topic"],
        value=Json(Order),
        on_poison="dead_letter" if share else "stop",
        retry=Retry(attempts=1) if share else Retry(),
        dead_letter_limits=DeadLetterLimits(consecutive=None, ratio=None),
        **writes,
    )


# -- a feeder -------------------------------------------------------------------------------------------


class Feeder:
    """Produces records to the partitions in turn, each at its due time; late ones are sent at once."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order, self._stopping = order, threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": order["brokers"], "log_level": 0, "acks": "all", **order.get("producer", {})}
        )
        self._encode = msgspec.json.Encoder().encode
        self._refused: list[Any] = []
        self._bytes = 0
        self._acks = array("d")
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())

    def run(self) -> None:
        """Produce until all are sent, or SIGTERM; reports how many, and how late the latest was."""
        feed, rate = self._order["feed"], self._order["rate"]
        first, step = self._order.get("first", 0), self._order.get("step", 1)
        began, sent, late = monotonic(), 0, 0.0
        while not self._stopping.is_set() and (not feed or sent < feed):
            if rate:
                due = began + sent / rate
                while (early := due - monotonic()) > 0:
                    if early > 0.001:
                        self._producer.poll(early)  # counts in milliseconds; a delivery report ends it
                    else:
                        sleep(early)
                late = max(late, monotonic() - due)
            self._send(first + sent * step)
            sent += 1
        seconds = monotonic() - began
        assert self._producer.flush(60) == 0, "the broker did not take every record within 60 s"
        assert not self._refused, f"the broker refused records: {self._refused[0]}"
        fed = {"records": sent, "seconds": seconds, "late": late, "bytes": self._bytes}
        if self._acks:
            fed |= {"ack_p50": percentile(self._acks, 0.5), "ack_p99": percentile(self._acks, 0.99)}
        report("Fed", **fed)

    def _send(self, number: int) -> None:
        order, partitions, run = self._order, self._order["partitions"], self._order.get("run", 1)
        value = self._encode(
            Order(
                number,
                monotonic_ns(),
                number * 7919 % ACCOUNTS,
                f"{number * 31 % 100_000 / 100:.2f}",
                KINDS[number % len(KINDS)],
                f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.000Z",
            )
        )
        while True:
            try:
                self._producer.produce(
                    order["topic"], value, partition=number // run % partitions, on_delivery=self._told
                )
            except BufferError:  # the client's queue is full: let some of it go first
                self._producer.poll(0.1)
            else:
                self._bytes += len(value)
                if number % 100 < 2 or order["rate"]:
                    self._producer.poll(0)
                return

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error)
        elif self._order["rate"]:
            self._acks.append(message.latency())  # seconds from produce() to the broker's answer


if __name__ == "__main__":
    main()
