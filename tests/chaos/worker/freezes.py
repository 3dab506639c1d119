"""Freeze a broker again and again, under each group protocol: after each thaw every worker commits again in time.

python tests/chaos/worker/freezes.py --freezes 30 --seed N

Clients have librdkafka's own settings, and workers their default limits. A broker that was frozen for longer than
``broker.session.timeout.ms`` (nine seconds) answers that there are no brokers until it is registered again. A consumer
that has dropped all brokers is replaced; if it cannot leave its group, a group of the classic protocol waits until its
session ends.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import Engine, create_engine

if __name__ == "__main__":  # run by path: the package is the folder around this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from seekpoint import Worker, events, schema
from seekpoint.testing.servers.pair import Pair, start_pair
from support.recorded_rows import RecordTable, Stream
from support.waiting import until

PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "eager": {},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
# A broker's own values: those of the test servers are shorter.
BROKER = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.heartbeat.interval.ms": "5000",
}
WORKERS, PARTITIONS = 2, 4
SHORTEST, LONGEST = 2.0, 20.0  # seconds of a freeze
SOON = 15.0  # seconds in which every worker must have committed after the thaw
SESSION = 45.0  # librdkafka's session.timeout.ms: a group waits as long for a consumer that could not leave


class Commits:
    """When each worker last committed, and last replaced its consumer, as observers report it."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._replaced: dict[str, float] = {}
        self._changed = threading.Condition()

    def of(self, name: str) -> Callable[[events.Event], None]:
        """The observer of worker ``name``."""

        def note(event: events.Event) -> None:
            if isinstance(event, events.Committed):
                with self._changed:
                    self._last[name] = monotonic()
                    self._changed.notify_all()
            elif isinstance(event, events.KafkaTrouble) and "two requests of the consumer" in event.error:
                with self._changed:
                    self._replaced[name] = monotonic()

        return note

    def replaced(self, since: float) -> set[str]:
        """The workers that have replaced their consumer after ``since``."""
        with self._changed:
            return {name for name, moment in self._replaced.items() if moment >= since}

    def missing(self, names: list[str], since: float, within: float) -> list[str]:
        """Wait until all these workers have committed after ``since``; returns those that have not in time."""

        def late() -> list[str]:
            return [name for name in names if self._last.get(name, 0.0) < since]

        with self._changed:
            self._changed.wait_for(lambda: not late(), within)
            return late()


class Groups:
    """The workers of one group for each protocol, and a topic for each group."""

    def __init__(self, pair: Pair, engine: Engine, stack: ExitStack) -> None:
        self.commits, self.names = Commits(), list[str]()
        self._streams: dict[str, Stream] = {}
        self._pair, self._engine, self._stack = pair, engine, stack
        self._record_table = RecordTable(engine, "seekpoint").create()
        admin = AdminClient({"bootstrap.servers": pair.kafka.bootstrap})
        for protocol in PROTOCOLS:
            topic = f"freezes-{protocol}-{secrets.token_hex(3)}"
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=20)[topic].result(30)
            self._begin(protocol, topic)

    def _begin(self, protocol: str, topic: str) -> None:
        kafka = {"bootstrap.servers": self._pair.kafka.bootstrap, **PROTOCOLS[protocol]}
        for number in range(WORKERS):
            name = f"{protocol} {number}"
            pipeline = self._record_table.pipeline(topic, topic)
            worker = Worker(pipeline, engine=self._engine, kafka=kafka, observe=[self.commits.of(name)])
            self._stack.enter_context(worker.running())
            self.names.append(name)
        self._streams[topic] = Stream(self._pair.kafka.bootstrap, topic, PARTITIONS, 100)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Produce to every topic; at the end, check that the workers apply every record once."""
        with ExitStack() as streams:
            for stream in self._streams.values():
                streams.enter_context(stream)
            yield
        for topic, stream in self._streams.items():
            until(partial(self._has_all, topic, stream), f"all records of {topic}", 60)
            self._record_table.assert_holds(topic, stream.stored)

    def _has_all(self, topic: str, stream: Stream) -> bool:
        return len(self._record_table.written(topic)) >= len(stream.stored)


def run(freezes: int, seed: int, *, longest: float = LONGEST, show: Callable[[str], None] = print) -> int:
    """Freeze the broker ``freezes`` times; returns how many consumers were replaced. Raises AssertionError."""
    chance, worst, replaced, pause = random.Random(seed), 0.0, 0, threading.Event()
    show(f"freezes: seed {seed}")
    with ExitStack() as servers:
        pair = servers.enter_context(start_pair(own=True, properties=BROKER))
        engine = create_engine(pair.postgres.url, pool_size=20)
        servers.callback(engine.dispose)
        schema.upgrade(engine)
        with ExitStack() as running:
            groups = Groups(pair, engine, running)
            with groups.load():
                assert not groups.commits.missing(groups.names, monotonic(), 60), "each worker commits at first"
                for number in range(1, freezes + 1):
                    freeze = _freeze(pair, groups, chance.uniform(SHORTEST, longest))
                    show(f"{number:3}/{freezes}  {freeze}")
                    assert not freeze.late, f"seed {seed}, freeze {number}: no commit of {', '.join(freeze.late)}"
                    worst, replaced = max(worst, freeze.committed_after), replaced + len(freeze.replaced)
                    pause.wait(chance.uniform(0.5, 3.0))
    show(f"worst: {worst:.1f} s; {replaced} consumers replaced")
    return replaced


@dataclass(frozen=True)
class Freeze:
    """The result of one freeze, in seconds; ``late`` are the workers that did not commit in time."""

    seconds: float
    committed_after: float
    replaced: set[str]
    late: list[str]

    def __str__(self) -> str:
        replaced = f", replaced: {', '.join(sorted(self.replaced))}" if self.replaced else ""
        return f"frozen for {self.seconds:4.1f} s, all commit after {self.committed_after:4.1f} s{replaced}"


def _freeze(pair: Pair, groups: Groups, seconds: float) -> Freeze:
    """Freeze the broker for ``seconds``, and wait until every worker has committed again."""
    began = monotonic()
    pair.kafka.freeze()
    threading.Event().wait(seconds)
    pair.kafka.thaw()
    thawed = monotonic()
    late = groups.commits.missing(groups.names, thawed, SOON)
    if late and may_wait(late, groups.commits.replaced(began)):
        late = groups.commits.missing(late, thawed, SESSION + SOON)
    return Freeze(seconds, monotonic() - thawed, groups.commits.replaced(began), late)


def may_wait(late: Iterable[str], replaced: Iterable[str]) -> bool:
    """Whether the late workers' groups may wait for the end of a session: classic ones that replaced a consumer."""
    waiting = {_protocol(name) for name in replaced} - {"consumer"}
    return all(_protocol(name) in waiting for name in late)


def _protocol(worker: str) -> str:
    return worker.split(maxsplit=1)[0]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freezes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    args = parser.parse_args()
    run(args.freezes, args.seed)


if __name__ == "__main__":
    main()
