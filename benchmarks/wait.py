"""Waiting for a record to be applied: by polling, or by a notification (LISTEN/NOTIFY).

python benchmarks/wait.py [--seconds N] [--rounds N] [--committers N ...] [--waiters N]

Committers, each a process with its own partition, move their row by one offset per transaction. Waiters, threads of one
process, each wait ten times a second for an offset that is not there yet. Measured: how long after COMMIT's answer a
wait ended (p50, p99), the committers' transactions per second, and the waiters' share of a processor. Offsets of paced
rounds come every 20 ms per partition, as after a click; others as fast as the server takes them. Machines are shared
and noisy: compare the rows of one run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from time import monotonic, process_time
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from sqlalchemy import create_engine

from seekpoint import Partition, schema
from seekpoint.errors import NotApplied
from seekpoint.ledger import GroupLedger
from seekpoint.testing.servers.postgres import PostgresServer, start_postgres

TOPIC, GROUP, ROOM = "orders", "bench", 500_000
PACE = 0.02  # seconds between commits of a paced committer
REST = 0.1  # seconds between the waits of one waiter
CHANNEL = "applied"
ADVANCE = (
    "UPDATE seekpoint.partition_offset SET next_offset = next_offset + 1, committed_at = clock_timestamp()"
    f" WHERE consumer_group = '{GROUP}' AND topic = '{TOPIC}' AND partition = %s AND next_offset = %s"
)
# In the same statement, so that the notification costs no round trip, only the server's work.
NOTIFY = f" RETURNING pg_notify('{CHANNEL}', partition || ':' || next_offset)"

WAYS = {0.0: ("nobody waits", "notified", "looks", "told"), PACE: ("nobody waits", "looks", "told")}

Wait = Callable[[int, int], None]
Row = dict[str, Any]


class Shared(NamedTuple):
    """What the processes of a round share: its end, the time of each COMMIT's answer, and the number of COMMITs."""

    stop: Event
    times: Any  # by partition and offset; the clock is the same for all processes
    done: Any  # by partition


def commit(dsn: str, statement: str, number: int, pace: float, shared: Shared) -> None:
    """One committer: the offsets of one partition, one by one."""
    stop, times, done = shared
    with psycopg.connect(dsn, autocommit=True) as connection:
        offset = done[number]
        while not stop.wait(pace * random.uniform(0.5, 1.5)) if pace else not stop.is_set():
            connection.execute(statement, (number, offset), prepare=True)
            times[number * ROOM + offset] = monotonic()
            offset += 1
            done[number] = offset


class Listener:
    """One connection that listens for the whole process, and notifies its waiters."""

    def __init__(self, dsn: str, partitions: int) -> None:
        self._news = threading.Condition()
        self._at = [0] * partitions
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"LISTEN {CHANNEL}")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._ended.is_set():
            for heard in self._connection.notifies(timeout=0.2):
                number, position = map(int, heard.payload.split(":"))
                with self._news:
                    self._at[number] = max(self._at[number], position)
                    self._news.notify_all()

    def wait(self, number: int, offset: int) -> None:
        """Wait until the position is past the offset."""
        with self._news:
            if not self._news.wait_for(lambda: self._at[number] > offset, 2):
                raise NotApplied(Partition(TOPIC, number), offset, None, "no notification within 2 s")

    def close(self) -> None:
        """Stop listening."""
        self._ended.set()
        self._thread.join()
        self._connection.close()


@contextmanager
def way(name: str, server: PostgresServer, committers: int, waiters: int) -> Iterator[Wait | None]:
    """The wait function of this round; None without waiters."""
    if name == "told":
        listener = Listener(server.dsn, committers)
        yield listener.wait
        listener.close()
    elif name == "looks":
        engine = create_engine(server.url, pool_size=waiters)
        ledger = GroupLedger(engine, GROUP)
        yield lambda number, offset: _look(ledger, number, offset)
        engine.dispose()
    else:
        yield None


def _look(ledger: GroupLedger, number: int, offset: int) -> None:
    ledger.wait_until_applied(TOPIC, number, offset, timeout=2)


def wait(how: Wait, shared: Shared, latencies: list[float]) -> None:
    """Run one waiter, on random partitions and offsets a little ahead of them."""
    stop, times, done = shared
    chance = random.Random()
    while not stop.is_set():
        number = chance.randrange(len(done))
        offset = done[number] + chance.randrange(3)
        try:
            how(number, offset)
        except NotApplied:
            continue  # the round is over
        now = monotonic()
        if committed_at := times[number * ROOM + offset]:
            latencies.append(max(0.0, now - committed_at))
        stop.wait(REST * chance.uniform(0.5, 1.5))


def run(name: str, server: PostgresServer, *, committers: int, waiters: int, pace: float, seconds: float) -> Row:
    """Measure one round."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("UPDATE seekpoint.partition_offset SET next_offset = 0")
        connection.execute("CHECKPOINT")
    spawn = multiprocessing.get_context("spawn")
    shared = Shared(spawn.Event(), spawn.RawArray("d", ROOM * committers), spawn.RawArray("q", committers))
    statement = ADVANCE + (NOTIFY if name in {"told", "notified"} else "")
    workers = [spawn.Process(target=commit, args=(server.dsn, statement, n, pace, shared)) for n in range(committers)]
    latencies: list[float] = []
    with way(name, server, committers, waiters) as how:
        threads = [threading.Thread(target=wait, args=(how, shared, latencies)) for _ in range(waiters) if how]
        for worker in workers:
            worker.start()
        pause = threading.Event()
        while not all(shared.done):
            pause.wait(0.01)
        for thread in threads:
            thread.start()
        began, before, busy = monotonic(), sum(shared.done), process_time()
        pause.wait(seconds)
        took, commits, busy = monotonic() - began, sum(shared.done) - before, process_time() - busy
        shared.stop.set()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.join()
    counted = {"commits_per_second": round(commits / took), "waiters_cpu": round(busy / took, 3)}
    return {"way": name, "committers": committers, "paced": bool(pace), **counted, **percentiles(latencies)}


def percentiles(latencies: list[float]) -> Row:
    """Milliseconds from COMMIT's answer to the end of the wait."""
    if len(latencies) < 100:
        return {}
    cuts = statistics.quantiles(latencies, n=100)
    return {"waits": len(latencies), "p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


def prepare(url: str, partitions: int) -> None:
    """Create the ledger with a row for each partition."""
    engine = create_engine(url)
    schema.upgrade(engine)
    every = {Partition(TOPIC, n): 0 for n in range(partitions)}
    GroupLedger(engine, GROUP).claim(every, {TOPIC: uuid4()}, cluster_id="bench", start=lambda _: every)
    engine.dispose()


def main() -> None:
    """Run every way, round by round; print a JSON row for each, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--committers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--waiters", type=int, default=20)
    options = parser.parse_args()
    rounds = [(n, pace, name) for n in options.committers for pace, names in WAYS.items() for name in names]
    rows: dict[str, list[Row]] = {}
    with start_postgres(own=True) as server:
        prepare(server.url, max(options.committers))
        print(json.dumps({"server": server.describe(), "waiters": options.waiters}), flush=True)
        for committers, pace, name in rounds * options.rounds:
            arguments = {"committers": committers, "waiters": options.waiters, "pace": pace, "seconds": options.seconds}
            row = run(name, server, **arguments)
            print(json.dumps(row), flush=True)
            rows.setdefault(f"{committers:>2} {'paced' if pace else 'full '} {name:<12}", []).append(row)
    for label, several in rows.items():
        print(label, json.dumps(medians(several)))


def medians(rows: list[Row]) -> Row:
    """The medians of the figures that all rows have."""
    figures = ("commits_per_second", "waiters_cpu", "p50_ms", "p99_ms")
    return {key: statistics.median(row[key] for row in rows) for key in figures if all(key in row for row in rows)}


if __name__ == "__main__":
    main()
