"""A process of the operational questions: a worker that tells its events, or a feeder that produces at a pace.

The order is one line of JSON on stdin. A worker: ``group``, ``topic``, ``sink`` (``append``, ``upsert``, ``sleep``),
``kafka`` and ``limits`` to add, ``tell`` (the events' names), ``later`` (tell them at the end, so that nothing is
printed while it is measured; but for those in ``now``), ``rss`` (with each commit), ``stats`` (librdkafka's queue, each
second), ``poison`` (one bad record in so many), ``places`` (columns for partition and offset), ``partitions`` (so many,
without a group). A feeder: ``feed`` (records; 0: until SIGTERM), ``rate`` (a second; 0: as fast as it goes), ``first``,
``step``, ``run`` (so many after each other to one partition), ``producer`` to add.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
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
from stage import TABLE, percentile

ORPHANED = 3
KINDS = ("transfer", "card payment", "refund", "standing order")
COLUMNS = ("id", "made", "account", "amount", "kind", "at")
ACCOUNTS = 1_000_000


class Order(msgspec.Struct, frozen=True, gc=False):
    """One record; ``made`` is when, by the machine's monotonic clock, in nanoseconds."""

    id: int
    made: int
    account: int
    amount: str
    kind: str
    at: str


def main() -> None:
    """Do as ordered."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_watch_parent, daemon=True).start()
    if "feed" in order:
        Feeder(order).run()
    else:
        work(order)


def _watch_parent() -> None:
    """Whoever started us is gone when its end of the pipe is."""
    sys.stdin.read()
    os._exit(ORPHANED)


# -- a worker -------------------------------------------------------------------------------------------


class Reporter:
    """An observer that writes lines of JSON, at once or at the end."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._wanted, self._is_later, self._turn = set(order["tell"]), order.get("later", False), threading.Lock()
        self._now, self._kept = set(order.get("now", ())), list[events.Event]()
        self._process = psutil.Process() if order.get("rss") else None

    def __call__(self, event: events.Event) -> None:
        name = type(event).__name__
        if name not in self._wanted and name not in self._now:
            return
        if self._is_later and name not in self._now:
            self._kept.append(event)
        else:
            self._say(event)

    def flush(self) -> None:
        """Tell what was kept."""
        for event in self._kept:
            self._say(event)

    def say(self, name: str, **more: Any) -> None:
        """One line that is no event of the worker's."""
        with self._turn:
            sys.stdout.write(json.dumps({"event": name, **more}) + "\n")
            sys.stdout.flush()

    def _say(self, event: events.Event) -> None:
        told: dict[str, Any] = {"at": event.at}
        match event:
            case events.Committed():
                told |= {"spans": [(s.partition.number, s.start, s.end) for s in event.spans]}
                told |= {"records": event.records, "seconds": event.seconds}
                if self._process is not None:
                    told["rss"] = self._process.memory_info().rss
            case events.Revoked() | events.Assigned() | events.Released():
                told["partitions"] = [p.number for p in event.partitions]
            case events.Activated():
                told["partitions"] = [event.partition.number]
            case events.Advanced():
                told["partitions"] = len(event.spans)
            case events.DatabaseTrouble() | events.KafkaTrouble():
                told["error"] = str(event.error)
        self.say(type(event).__name__, **told)

    def on_stats(self, text_: str) -> None:
        """What lies in librdkafka's queue."""
        stats = json.loads(text_)
        partitions = [p for topic in stats["topics"].values() for p in topic["partitions"].values()]
        self.say(
            "Stats",
            at=monotonic(),
            records=max((p["fetchq_cnt"] for p in partitions), default=0),  # they share one queue, and each tells of it
            bytes=max((p["fetchq_size"] for p in partitions), default=0),
            rebalances=stats.get("cgrp", {}).get("rebalance_cnt", 0),
        )


def work(order: dict[str, Any]) -> None:
    """Run one worker until SIGTERM."""
    logging.getLogger("seekpoint.events").setLevel(logging.ERROR)  # a line per dead letter is not what is measured
    reporter = Reporter(order)
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
        given = [dict(zip(COLUMNS, row(record), strict=True)) for record in batch]
        tx.execute(text(f"INSERT INTO {TABLE} VALUES (:id, :made, :account, :amount, :kind, :at)"), given)

    made: dict[str, Any] = {"row": row, "columns": COLUMNS} if share else {}
    if places:
        made["provenance"] = {"partition": "partition", "offset": "offset"}
    sinks: dict[str, Callable[[], dict[str, Any]]] = {
        "append": lambda: {"sinks": [Append(TABLE, **made)]},
        "upsert": lambda: {"sinks": [Upsert(TABLE, key=["account"], **made)]},
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
    """Produces records, in turn to every partition, each at its own moment: late ones are sent at once."""

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
        """Until all are sent, or SIGTERM; tells how many, and how late the latest was."""
        feed, rate = self._order["feed"], self._order["rate"]
        first, step = self._order.get("first", 0), self._order.get("step", 1)
        began, sent, late = monotonic(), 0, 0.0
        while not self._stopping.is_set() and (not feed or sent < feed):
            if rate:
                due = began + sent / rate
                while (early := due - monotonic()) > 0:
                    if early > 0.001:
                        self._producer.poll(early)  # it counts in milliseconds, and ends when it has told something
                    else:
                        sleep(early)
                late = max(late, monotonic() - due)
            self._send(first + sent * step)
            sent += 1
        seconds = monotonic() - began
        assert self._producer.flush(60) == 0, "the broker did not take every record within 60 s"
        assert not self._refused, f"the broker refused records: {self._refused[0]}"
        told = {"event": "Fed", "records": sent, "seconds": seconds, "late": late, "bytes": self._bytes}
        if self._acks:
            told |= {"ack_p50": percentile(self._acks, 0.5), "ack_p99": percentile(self._acks, 0.99)}
        print(json.dumps(told), flush=True)

    def _send(self, number: int) -> None:
        order, partitions, run = self._order, self._order["partitions"], self._order.get("run", 1)
        keys = order.get("keys") or number + 1
        value = self._encode(
            Order(
                number % keys,
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
