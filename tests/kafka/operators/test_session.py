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
from seekpoint.kafka.ranges import stable_ends
from support.command import seekpoint
from support.events import Run
from support.kafka_postgres import PROTOCOLS, QUICK, Scene
from support.kafka_tools import describe
from support.operators_account import OperatorsAccount
from support.postgres_proxy import PostgresProxy
from support.recorded_rows import Stream, Transactions

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


def run(scene: Scene, *words: str) -> str:
    servers = ["--database-url", scene.dsn, "--schema", scene.schema, "--kafka", f"bootstrap.servers={scene.broker}"]
    return seekpoint(*words, *servers).stdout


def consume(
    scene: Scene, kafka: Mapping[str, Any], group: str, topic: str, until: Callable[[dict[int, int]], bool]
) -> list[tuple[int, int]]:
    """A plain consumer reads, writes rows, and commits to Kafka; returns partition and offset of each record."""
    consumer = Consumer({
        "bootstrap.servers": scene.broker, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "error", "log_level": 0, **kafka,
    })  # fmt: skip
    found: list[tuple[int, int]] = []
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
                found.append((partition, offset))
                ends[partition] = offset + 1
        rows = [{"topic": topic, "partition": p, "offset": at, "value": "plain"} for p, at in found]
        with scene.engine.begin() as tx:
            tx.execute(scene.book.table.insert(), rows)
        consumer.commit(offsets=[TopicPartition(topic, p, end) for p, end in ends.items()], asynchronous=False)
    finally:
        consumer.close()
    return found


def shown(scene: Scene, group: str) -> dict[Partition, int | None]:
    """What Kafka's own tool shows as the group's offsets."""
    return {at: line.current for (_, at), line in describe(scene.broker, group).items()}


def in_order(scene: Scene, log: Log) -> list[tuple[int, int]]:
    """What the workers and the plain consumer should have written of each partition, in the order of time."""
    with scene.engine.connect() as connection:
        spans = passed(connection, scene.schema, scene.group)
    return [(p, n) for p in sorted(spans) for offsets in log.records(p, spans[p]) for n in offsets]


def written(scene: Scene, topic: str) -> list[tuple[int, int]]:
    return sorted(scene.book.written(topic), key=lambda row: row[0])  # stable: in the order of writing


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_from_a_plain_consumer_and_back(
    scene: Scene, proxy: PostgresProxy, operators_account: OperatorsAccount, name: str
) -> None:
    """Nothing is lost or applied twice, and Kafka's own tool shows the ledger's positions at each step."""
    account, seed = operators_account, int(os.environ.get("SEED", secrets.randbelow(10**9)))
    print(f"SEED={seed}")
    account.seeds.append(seed)
    variant, (topic, stored), old = VARIANTS[name], scene.log(100, PARTITIONS), f"{scene.group}-old"

    def start() -> Run:
        return scene.worker(topic, kafka=variant.kafka, limits=OFTEN, mirror=True)

    with variant.stream(scene.broker, topic, PARTITIONS, rate=60) as stream:
        log = Log(stored, stream.stored) if variant.stream is Transactions else Log()
        _from_plain_consumer(scene, variant.kafka, account, topic, old)
        workers = [start() for _ in range(2)]
        with Checker(scene.engine, scene.schema, scene.group, log) as checker:
            chance = random.Random(seed)
            RandomPlans(scene, topic, proxy, account, chance, old, start, workers).run(variant.plans)
    ends = stable_ends({"bootstrap.servers": scene.broker}, [Partition(topic, n) for n in range(PARTITIONS)])
    scene.wait(lambda: scene.positions() == ends)
    account.snapshots += checker.snapshots
    account.add_rows(written(scene, topic), in_order(scene, log))
    assert written(scene, topic) == in_order(scene, log), "in the order of the log, and of the resets"
    _require_losses(scene)
    _mirrored(scene, account)
    for worker in workers:
        worker.stop()
    _to_plain_consumer(scene, variant.kafka, account, topic, log)


def _from_plain_consumer(
    scene: Scene, kafka: Mapping[str, Any], account: OperatorsAccount, name: str, old: str
) -> None:
    first = [TopicPartition(name, n, 0) for n in range(PARTITIONS)]
    starter = Consumer({"bootstrap.servers": scene.broker, "group.id": old})
    starter.commit(offsets=first, asynchronous=False)
    starter.close()
    consume(scene, kafka, old, name, lambda ends: len(ends) == PARTITIONS and min(ends.values()) >= 50)
    said = run(scene, "offsets", "import", scene.group, "--from-group", old, "--apply", "--reason", "moved")
    positions = scene.positions()
    assert all(f"{at} begins at {offset}, Kafka's commit" in said for at, offset in positions.items())
    account.add_mirror(shown(scene, old), positions)


def _require_losses(scene: Scene) -> None:
    """What operators have skipped is a lost range each, and nothing else is."""
    columns = "partition, from_offset, to_offset"
    forward = f"SELECT {columns} FROM {{schema}}.admin_action WHERE action = 'reset' AND to_offset > from_offset"
    lost = scene.sql(f"SELECT {columns}, reason FROM {{schema}}.lost_range ORDER BY id")
    assert [tuple(row)[:3] for row in lost] == [tuple(row) for row in scene.sql(f"{forward} ORDER BY id")]
    assert {row.reason for row in lost} <= {"operator"}


def _mirrored(scene: Scene, account: OperatorsAccount) -> None:
    """Running workers bring Kafka's commits to the positions."""
    at = [TopicPartition(*place) for place in scene.positions()]

    def is_equal() -> bool:
        asked = ask(scene, at)
        return asked == scene.positions()

    scene.wait(is_equal)
    account.add_mirror(shown(scene, scene.group), scene.positions())


def ask(scene: Scene, partitions: list[TopicPartition]) -> dict[Any, int]:
    """The group's commits, as the brokers answer."""
    consumer = Consumer({"bootstrap.servers": scene.broker, "group.id": scene.group})
    try:
        found = consumer.committed(partitions, timeout=20)
        return {Partition(one.topic, one.partition): one.offset for one in found}
    finally:
        consumer.close()


def _to_plain_consumer(scene: Scene, kafka: Mapping[str, Any], account: OperatorsAccount, name: str, log: Log) -> None:
    """Back: a last reset of the stopped group, its positions to Kafka, and the plain consumer reads on from there."""
    back = ["--all-topics", "--shift-by", f"-{BACK}", "--apply", "--reason", "look again"]
    run(scene, "offsets", "reset", scene.group, *back)
    run(scene, "offsets", "mirror", scene.group, "--apply", "--reason", "back to the plain consumer")
    positions = scene.positions()
    account.add_mirror(shown(scene, scene.group), positions)
    before = in_order(scene, log)
    left = {at.number: next(log.records(at.number, [(offset, offset + BACK)])) for at, offset in positions.items()}
    ends = {number: offsets[-1] + 1 for number, offsets in left.items()}
    read = consume(scene, kafka, scene.group, name, lambda now: now == ends)
    assert sorted(read) == [(number, offset) for number in sorted(left) for offset in left[number]]
    account.add_rows(written(scene, name), before + read)
    account.add_mirror(shown(scene, scene.group), {Partition(name, n): end for n, end in ends.items()})
