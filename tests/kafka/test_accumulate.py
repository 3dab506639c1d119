"""Sums on real servers: a COMMIT without an answer, workers that come and go, two workers on the same keys."""

from __future__ import annotations

from typing import Any

import pytest

from seekpoint import Accumulate, Pipeline, Text, events
from seekpoint.errors import ConfigError
from seekpoint.ledger.repeats import tables_with_sums
from seekpoint.ledger.status import StatusTables
from support.events import Gate, Run
from support.postgres_proxy import MOVES, PostgresProxy
from support.waiting import until
from support.worker_group import WorkerGroup

pytestmark = pytest.mark.usefixtures("short_backoff")


def counting(worker_group: WorkerGroup, topic: str) -> Pipeline:
    """A group that counts a topic's records and adds their numbers up, in one row and in ten."""
    worker_group.sql(
        "CREATE TABLE IF NOT EXISTS {schema}.sums (digit text PRIMARY KEY, n bigint, total bigint, most bigint)"
    )

    def rows(record: Any) -> list[tuple[Any, ...]]:
        number = int(record.value)
        return [("all", 1, number, number), (str(number % 10), 1, number, number)]

    path = (worker_group.schema, "sums")
    sink = Accumulate(path, key=["digit"], add=["n", "total"], most=["most"], rows=rows)
    return Pipeline(worker_group.group, topics=topic, value=Text(), sinks=[sink])


def stored(worker_group: WorkerGroup) -> dict[str, tuple[int, int, int]]:
    rows = worker_group.sql("SELECT digit, n, total, most FROM {schema}.sums")
    return {row.digit: (row.n, int(row.total), row.most) for row in rows}


def expected(numbers: list[int]) -> dict[str, tuple[int, int, int]]:
    """What a plain loop makes of these numbers."""
    groups = {"all": numbers} | {str(d): [n for n in numbers if n % 10 == d] for d in range(10)}
    return {digit: (len(some), sum(some), max(some)) for digit, some in groups.items() if some}


def commit_through(worker_group: WorkerGroup, proxy: PostgresProxy, name: str, when: Any) -> Run:
    """A worker whose first batch meets the fault at its COMMIT."""
    gate = Gate(events.Advanced)
    run = worker_group.worker(counting(worker_group, name), observe=[gate], engine=proxy.dsn)
    gate.wait()
    proxy.arm(when, MOVES)
    gate.open()
    proxy.wait_until_fired()
    return run


@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
def test_a_commit_without_an_answer_adds_once(worker_group: WorkerGroup, proxy: PostgresProxy, when: Any) -> None:
    """I1, I3: whether it took effect or not, no record counts twice, and none is left out."""
    name, _ = worker_group.log(30)
    run = commit_through(worker_group, proxy, name, when)
    run.seen.wait_for(events.CommitUnknown)
    worker_group.produce(name, map(str, range(100, 130)))
    run.finish(name, 60)
    assert stored(worker_group) == expected([*range(30), *range(100, 130)])


def test_two_workers_add_to_the_same_keys(worker_group: WorkerGroup) -> None:
    """I1: each has a partition, both write all keys in each transaction; one leaves, and another comes."""
    name = worker_group.topic(2)
    numbers = list(range(500))  # each transaction of the one waits for the other's: few records in each take long
    for partition in range(2):
        worker_group.produce(name, map(str, numbers), partition=partition)
    first, second = (worker_group.worker(counting(worker_group, name)) for _ in range(2))
    until(lambda: stored(worker_group).get("all", (0,))[0] > 0, "the first sums")
    first.stop()
    third = worker_group.worker(counting(worker_group, name))
    until(
        lambda: {position.next_offset for position in worker_group.ledger.read()} == {len(numbers)},
        "the end of the log",
    )
    for run in (second, third):
        run.stop()
    assert stored(worker_group) == expected(numbers * 2)


def test_a_reset_knows_the_sums_before_the_first_record_is_added(
    worker_group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: the claim stores them, and not only the thread that writes what operators look at."""
    monkeypatch.setattr(StatusTables, "declare", lambda *_: None)
    name, _ = worker_group.log(10)
    gate = Gate(events.BatchOpened)
    run = worker_group.worker(counting(worker_group, name), observe=[gate])
    gate.wait()
    [row] = worker_group.sql("SELECT declared FROM {schema}.consumer_group")
    assert tables_with_sums(row.declared, name) == (f"{worker_group.schema}.sums",)
    gate.open()
    run.finish(name, 10)
    with pytest.raises(ConfigError, match="would count records twice"):
        worker_group.ledger.reset_offset(name, 0, 5, reason="a test", log=(0, 10))
    assert stored(worker_group) == expected([*range(10)])
