"""The operators' session: from a plain consumer to Seekpoint, random plans under load, and back to a plain consumer.

Twenty plans in the suite; ``make operators PLANS=200 SEED=7`` says how many, and which. A quarter of them under the
protocol of KIP-848, and as many on a topic whose producer uses transactions.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka.operators.prefix import Checker, Log, passed
from kafka.operators.random_plans import RandomPlans
from seekpoint import Limits, Partition
from seekpoint.kafka.identity import Identity
from seekpoint.kafka.members import members
from seekpoint.kafka.ranges import stable_ends
from support.command import seekpoint
from support.events import Run
from support.kafka_tools import describe
from support.operators_account import OperatorsAccount
from support.postgres_proxy import PostgresProxy
from support.recorded_rows import Stream, Transactions
from support.worker_group import PROTOCOLS, QUICK, WorkerGroup

PARTITIONS = 3
PLANS = int(os.environ.get("SEEKPOINT_PLANS", "20"))
# Short transactions: a plan takes the locks of all its partitions within a second, while workers catch up.
OFTEN = Limits(idle_check=0.1, lag_check=0.1, sample_positions=1, batch_records=500)
BACK = 20  # offsets that are read again at the end: more than a transaction has of a partition


@dataclass(frozen=True)
class Variant:
    """What all consumers of a session are configured with, and who produces."""

    kafka: Mapping[str, Any]
    stream: type[Stream | Transactions] = Stream
    plans: int = PLANS


VARIANTS = {
    "classic": Variant(QUICK),
    "848": Variant(PROTOCOLS["848"], plans=-(-PLANS // 4)),
    "transactions": Variant(QUICK, stream=Transactions, plans=-(-PLANS // 4)),
}


def run(worker_group: WorkerGroup, *words: str) -> str:
    return seekpoint(*words, *worker_group.server_options).stdout


def consume(
    worker_group: WorkerGroup, kafka: Mapping[str, Any], group: str, topic: str, until: Callable[[dict[int, int]], bool]
) -> list[tuple[int, int]]:
    """A plain consumer reads, writes rows, and commits to Kafka; returns partition and offset of each record."""
    consumer = Consumer({
        "bootstrap.servers": worker_group.broker, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "error", "log_level": 0, **kafka,
    })  # fmt: skip
    records: list[tuple[int, int]] = []
    ends: dict[int, int] = {}
    consumer.subscribe([topic])
    try:
        while not until(ends):
            for message in consumer.consume(200, 0.2):
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert message.error() is None
                assert partition is not None
                assert offset is not None
                assert value is not None
                records.append((partition, offset))
                ends[partition] = offset + 1
        rows = [{"topic": topic, "partition": p, "offset": offset, "value": "plain"} for p, offset in records]
        with worker_group.engine.begin() as tx:
            tx.execute(worker_group.record_table.table.insert(), rows)
        consumer.commit(offsets=[TopicPartition(topic, p, end) for p, end in ends.items()], asynchronous=False)
    finally:
        consumer.close()
    return records


def shown(worker_group: WorkerGroup, group: str) -> dict[Partition, int | None]:
    """What Kafka's own tool shows as the group's offsets."""
    return {number: line.current for (_, number), line in describe(worker_group.broker, group).items()}


def in_order(worker_group: WorkerGroup, log: Log) -> list[tuple[int, int]]:
    """What the workers and the plain consumer should have written of each partition, in the order of time."""
    with worker_group.engine.connect() as connection:
        spans = passed(connection, worker_group.schema, worker_group.group)
    return [(p, n) for p in sorted(spans) for offsets in log.records(p, spans[p]) for n in offsets]


def written(worker_group: WorkerGroup, topic: str) -> list[tuple[int, int]]:
    return sorted(worker_group.record_table.written(topic), key=lambda row: row[0])  # stable: in the order of writing


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_from_a_plain_consumer_and_back(
    worker_group: WorkerGroup, proxy: PostgresProxy, operators_account: OperatorsAccount, name: str
) -> None:
    """Nothing is lost or applied twice, and Kafka's own tool shows the ledger's positions at each step."""
    account, seed = operators_account, int(os.environ.get("SEED", secrets.randbelow(10**9)))
    print(f"SEED={seed}")
    account.seeds.append(seed)
    variant, (topic, stored), old = VARIANTS[name], worker_group.log(100, PARTITIONS), f"{worker_group.group}-old"

    def start() -> Run:
        return worker_group.worker(topic, kafka=variant.kafka, limits=OFTEN, mirror=True)

    with variant.stream(worker_group.broker, topic, PARTITIONS, rate=60) as stream:
        log = Log(stored, stream.stored) if variant.stream is Transactions else Log()
        _from_plain_consumer(worker_group, variant.kafka, account, topic, old)
        workers = [start() for _ in range(2)]
        with Checker(worker_group.engine, worker_group.schema, worker_group.group, log) as checker:
            chance = random.Random(seed)
            RandomPlans(worker_group, topic, proxy, account, chance, old, start, workers).run(variant.plans)
    ends = stable_ends({"bootstrap.servers": worker_group.broker}, [Partition(topic, n) for n in range(PARTITIONS)])
    worker_group.wait(lambda: worker_group.positions() == ends)
    account.snapshots += checker.snapshots
    account.add_rows(written(worker_group, topic), in_order(worker_group, log))
    assert written(worker_group, topic) == in_order(worker_group, log), "in the order of the log, and of the resets"
    _require_losses(worker_group)
    _mirrored(worker_group, account)
    for worker in workers:
        worker.stop()
    brokers = Identity({"bootstrap.servers": worker_group.broker}, 10)
    worker_group.wait(lambda: members(brokers, [worker_group.group]) == {worker_group.group: []})
    _to_plain_consumer(worker_group, variant.kafka, account, topic, log)


def _from_plain_consumer(
    worker_group: WorkerGroup, kafka: Mapping[str, Any], account: OperatorsAccount, name: str, old: str
) -> None:
    first = [TopicPartition(name, n, 0) for n in range(PARTITIONS)]
    starter = Consumer({"bootstrap.servers": worker_group.broker, "group.id": old})
    starter.commit(offsets=first, asynchronous=False)
    starter.close()
    consume(worker_group, kafka, old, name, lambda ends: len(ends) == PARTITIONS and min(ends.values()) >= 50)
    output = run(
        worker_group, "offsets", "import", worker_group.group, "--from-group", old, "--apply", "--reason", "moved"
    )
    positions = worker_group.positions()
    assert all(f"{partition} begins at {offset}, Kafka's commit" in output for partition, offset in positions.items())
    account.add_mirror(shown(worker_group, old), positions)


def _require_losses(worker_group: WorkerGroup) -> None:
    """What operators have skipped is a lost range each, and nothing else is."""
    columns = "partition, from_offset, to_offset"
    forward = f"SELECT {columns} FROM {{schema}}.admin_action WHERE action = 'reset' AND to_offset > from_offset"
    lost = worker_group.sql(f"SELECT {columns}, reason FROM {{schema}}.lost_range ORDER BY id")
    assert [tuple(row)[:3] for row in lost] == [tuple(row) for row in worker_group.sql(f"{forward} ORDER BY id")]
    assert {row.reason for row in lost} <= {"operator"}


def _mirrored(worker_group: WorkerGroup, account: OperatorsAccount) -> None:
    """Running workers bring Kafka's commits to the positions."""
    partitions = [TopicPartition(*place) for place in worker_group.positions()]

    def is_equal() -> bool:
        asked = ask(worker_group, partitions)
        return asked == worker_group.positions()

    worker_group.wait(is_equal)
    account.add_mirror(shown(worker_group, worker_group.group), worker_group.positions())


def ask(worker_group: WorkerGroup, partitions: list[TopicPartition]) -> dict[Any, int]:
    """The group's commits, as the brokers report them."""
    consumer = Consumer({"bootstrap.servers": worker_group.broker, "group.id": worker_group.group})
    try:
        committed = consumer.committed(partitions, timeout=20)
        return {Partition(position.topic, position.partition): position.offset for position in committed}
    finally:
        consumer.close()


def _to_plain_consumer(
    worker_group: WorkerGroup, kafka: Mapping[str, Any], account: OperatorsAccount, name: str, log: Log
) -> None:
    """Back: a last reset of the stopped group, its positions to Kafka, and the plain consumer reads on from there."""
    back = ["--all-topics", "--shift-by", f"-{BACK}", "--apply", "--reason", "look again"]
    run(worker_group, "offsets", "reset", worker_group.group, *back)
    run(worker_group, "offsets", "mirror", worker_group.group, "--apply", "--reason", "back to the plain consumer")
    positions = worker_group.positions()
    account.add_mirror(shown(worker_group, worker_group.group), positions)
    before = in_order(worker_group, log)
    left = {
        partition.number: next(log.records(partition.number, [(offset, offset + BACK)]))
        for partition, offset in positions.items()
    }
    ends = {number: offsets[-1] + 1 for number, offsets in left.items()}
    read = consume(worker_group, kafka, worker_group.group, name, lambda now: now == ends)
    assert sorted(read) == [(number, offset) for number in sorted(left) for offset in left[number]]
    account.add_rows(written(worker_group, name), before + read)
    account.add_mirror(shown(worker_group, worker_group.group), {Partition(name, n): end for n, end in ends.items()})
