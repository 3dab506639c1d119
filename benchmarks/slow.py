"""A database that is far slower than Kafka: is memory bounded, is there no rebalance, is the pace the database's?

python benchmarks/slow.py [--records N] [--shares 10,100] [--quick]

``a line of 1/10 of Kafka's pace``: the rate of a bare consumer is measured first; then the connection to the database
carries a tenth of that, in bytes a second, so that the worker waits inside its COPY. ``each answer 50 ms later``: a
connection with latency and without that limit. ``transactions longer than max.poll.interval.ms``: a handler that takes
two and a half times as long as the group may wait for a poll. Measured: the worker's memory, the size of librdkafka's
queues (its statistics, each second), the records per second against what the connection allows, and whether Kafka took
a partition away. Rows are counted at the end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import make_url

from stage import BenchProcess, Stage, arguments, say, servers
from support.proxy import Proxy

PARTITIONS = 6
MAX_POLL = 6.0  # seconds
KAFKA = {"max.poll.interval.ms": int(MAX_POLL * 1000), "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
TELL = ["Assigned", "Revoked", "Committed", "MembershipRenewed", "Refused", "DatabaseTrouble", "KafkaTrouble"]
PIECE = 16 * 1024


class Narrow:
    """A proxy that carries ``rate`` bytes a second to the server, and any number back; ``carried`` counts the bytes."""

    def __init__(self, host: str, port: int) -> None:
        self._server, self._open = (host, port), True
        self.rate: float | None = None
        self.carried, self._free_at, self._turn = 0, 0.0, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(self._server)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)  # so that data waits at the sender
            threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        try:
            while data := source.recv(PIECE):
                if is_counted:
                    self._wait(len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one side is closed: close the other
            source.close()
            target.close()

    def _wait(self, size: int) -> None:
        with self._turn:
            self.carried += size
            if self.rate is None:
                return
            self._free_at = max(self._free_at, monotonic()) + size / self.rate
            wait = self._free_at - monotonic()
        if wait > 0:
            sleep(wait)

    def close(self) -> None:
        """Take no more connections."""
        self._open = False
        self._listener.close()


@contextmanager
def narrow(stage: Stage) -> Iterator[tuple[Narrow, str]]:
    """A Narrow proxy, and the database's URL through it."""
    url = make_url(stage.url)
    assert url.host, "the database's URL needs a host"
    line = Narrow(url.host, url.port or 5432)
    try:
        yield line, url.set(host="127.0.0.1", port=line.port).render_as_string(hide_password=False)
    finally:
        line.close()


def consume(stage: Stage, topic: str, records: int) -> float:
    """Records per second of a bare consumer that does nothing with them."""
    consumer = Consumer({"bootstrap.servers": stage.brokers, "group.id": f"bare-{stage.name}", "log_level": 0,
                         "fetch.queue.backoff.ms": 10, "enable.auto.commit": False})  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen, began = 0, None
    while seen < records:
        messages = consumer.consume(1000, 5)
        assert messages, f"only {seen} of {records} records"
        if began is None:
            began, seen = monotonic(), -len(messages)
            records -= 2 * len(messages)
        seen += len(messages)
    assert began is not None
    rate = seen / (monotonic() - began)
    consumer.close()
    return rate


def run(stage: Stage, mode: str, topic: str, records: int, **order: Any) -> tuple[BenchProcess, dict[str, Any]]:
    """Run one worker on all records; returns it, and its figures."""
    stage.fresh_table()
    defaults = {"group": f"{mode}-{stage.name}", "topic": topic, "sink": "append", "kafka": KAFKA, "tell": TELL}
    with stage.start(**{**defaults, "rss": True, "stats": True, **order}) as worker:
        worker.wait_until_passed(records, 900)
        worker.stop()
    rows = stage.rows()
    assert rows == (records, records), f"{mode}: {rows[0]} rows, {rows[1]} different, of {records} records"
    commits, stats = worker.all("Committed"), worker.all("Stats")
    seconds = commits[-1]["at"] - commits[0]["at"]
    assigned = [report for report in worker.all("Assigned") if report["partitions"]]
    taken = [report for report in worker.all("Revoked") if report["at"] < commits[-1]["at"]]
    settled = commits[len(commits) // 10 :]
    return worker, {
        "records": records,
        "seconds": round(seconds, 1),
        "records_per_second": round((records - commits[0]["records"]) / seconds) if seconds else None,
        "transactions": len(commits),
        "longest_transaction_seconds": round(max(c["seconds"] for c in commits), 2),
        "rebalances": len(assigned) - 1 + len(taken),
        "membership_renewed": len(worker.all("MembershipRenewed")),
        "troubles": len(worker.all("DatabaseTrouble")) + len(worker.all("KafkaTrouble")) + len(worker.all("Refused")),
        "rss_start_bytes": settled[0]["rss"],
        "rss_end_bytes": settled[-1]["rss"],
        "rss_max_bytes": max(c["rss"] for c in commits),
        "queued_max_bytes": max((s["bytes"] for s in stats), default=None),
        "queued_max_records": max((s["records"] for s in stats), default=None),
    }


def throttled(stage: Stage, topic: str, options: Any) -> None:
    """Measure connections that carry a share of Kafka's rate."""
    size, rate = stage.fill(topic, PARTITIONS, options.records), consume(stage, topic, options.records)
    with narrow(stage) as (line, url):
        _, free = run(stage, "wide", topic, options.records, database=url)
        per_record = line.carried / options.records
        for share in map(int, options.shares.split(",")):
            allowed, source, records = rate / share, topic, options.records
            if share > 20:  # as long as the others, in seconds
                source, records = stage.topic(f"slow-{share}", PARTITIONS), max(20_000, records * 10 // share)
                stage.fill(source, PARTITIONS, records)
            line.rate = allowed * per_record
            _, figures = run(stage, f"narrow-{share}", source, records, database=url)
            assert figures["rebalances"] == 0, "there was a rebalance"
            say(
                "slow database",
                f"a line of 1/{share} of Kafka's pace",
                **figures,
                kafka_records_per_second=round(rate),
                line_records_per_second=round(allowed),
                of_line=round(figures["records_per_second"] / allowed, 3),
                without_the_limit_records_per_second=free["records_per_second"],
                without_the_limit_rss_max_bytes=free["rss_max_bytes"],
                line_bytes_per_record=round(per_record, 1),
                value_bytes=round(size, 1),
                max_poll_interval_ms=KAFKA["max.poll.interval.ms"],
            )


def delayed(stage: Stage, topic: str, options: Any) -> None:
    """Measure a database that answers 50 ms later."""
    url = make_url(stage.url)
    assert url.host, "the database's URL needs a host"
    with Proxy(url.host, url.port or 5432) as proxy:
        proxy.delay(0.025)
        far = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        _, figures = run(stage, "far", topic, options.records, database=far)
    assert figures["rebalances"] == 0, "there was a rebalance"
    say("slow database", "each answer 50 ms later", **figures)


def stalling(stage: Stage, options: Any) -> None:
    """Measure transactions that are longer than the group may wait for a poll."""
    records = 3 * 1000
    topic = stage.topic("stalling", PARTITIONS)
    stage.fill(topic, PARTITIONS, records)
    seconds = MAX_POLL * (1.5 if options.quick else 2.5)
    _, figures = run(stage, "stalling", topic, records, sink="sleep", seconds=seconds, limits={"batch_records": 1000})
    assert figures["rebalances"] == 0, "there was a rebalance"
    assert figures["longest_transaction_seconds"] > MAX_POLL
    say(
        "slow database",
        "transactions longer than max.poll.interval.ms",
        **figures,
        max_poll_interval_ms=KAFKA["max.poll.interval.ms"],
        statement_seconds=seconds,
    )


def main() -> None:
    """Run all three."""
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="(1,000,000; quick: 200,000)")
    parser.add_argument("--shares", help="how many times slower than Kafka (10,100; quick: 20)")
    options = parser.parse_args()
    options.records = options.records or (200_000 if options.quick else 1_000_000)
    options.shares = options.shares or ("20" if options.quick else "10,100")
    with servers() as stage:
        stalling(stage, options)
        topic = stage.topic("slow", PARTITIONS)
        throttled(stage, topic, options)
        delayed(stage, topic, options)


if __name__ == "__main__":
    main()
