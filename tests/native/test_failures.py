"""Failures while rows are sent as compiled text: each record is applied once, in order."""

from __future__ import annotations

import json
import os
import secrets
from random import Random
from typing import Any

import pytest

from seekpoint import Limits, events
from support.events import Gate
from support.kafka_postgres import PROTOCOLS, Scene
from support.postgres_proxy import PostgresProxy

pytestmark = pytest.mark.usefixtures("short_backoff")

RECORDS, BATCH = 6000, 1500


@pytest.fixture
def random() -> Random:
    seed = int(os.environ.get("SEED") or secrets.randbits(32))
    print(f"SEED={seed}")
    return Random(seed)


def log(scene: Scene, random: Random, partitions: int = 1) -> tuple[str, list[tuple[int, int]]]:
    """A topic whose records say where they are; one in a hundred has to be decoded in Python."""
    name, stored = scene.topic(partitions), []
    for partition in range(partitions):
        values = [
            json.dumps({"topic": name, "partition": partition, "offset": n, "value": f"\t{n}"}) for n in range(RECORDS)
        ]
        for n in range(RECORDS):
            if random.random() < 0.01:
                values[n] = values[n].replace('"value"', '"\\u0076alue"')  # the compiled part reads no such name
        stored += scene.produce(name, values, partition=partition)
    return name, stored


@pytest.mark.parametrize("step", ["ChunkRead", "Applied", "Advanced", "Committed"])
def test_a_worker_is_killed(scene: Scene, random: Random, sent: list[bool], step: str) -> None:
    name, stored = log(scene, random)
    nth = random.randrange(2, 12) if step == "ChunkRead" else random.randrange(1, RECORDS // BATCH)
    options = {"partitions": [(name, 0)], "entries": True}
    scene.killed_process(name, stop_at=(step, nth), limits={"batch_records": BATCH}, **options)
    run = scene.worker(scene.pipeline(name, entries=True), partitions=options["partitions"])
    run.finish(name, len(stored))
    scene.book.assert_holds(name, stored)
    assert True in sent or step == "Committed"


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_postgres_is_away_during_commit(
    scene: Scene, proxy: PostgresProxy, random: Random, sent: list[bool], when: Any
) -> None:
    name, stored = log(scene, random)
    gate = Gate(events.Advanced)
    run = scene.worker(
        scene.pipeline(name, entries=True), observe=[gate], engine=proxy.dsn, limits=Limits(batch_records=BATCH)
    )
    gate.wait()
    proxy.arm(when)
    gate.open()
    assert proxy.fired.wait(20)
    run.finish(name, len(stored))
    scene.book.assert_holds(name, stored)
    assert run.seen.all(events.CommitUnknown)
    assert True in sent


def test_a_partition_is_taken_while_its_rows_are_written(scene: Scene, random: Random, sent: list[bool]) -> None:
    """A member is frozen in its transaction; the server ends that, and another member applies the same records."""
    name, stored = log(scene, random, partitions=2)
    limits: dict[str, Any] = {"transaction_age": 4.0, "claim_wait": 0.3, "batch_records": BATCH}
    kafka = PROTOCOLS["cooperative"]
    frozen = scene.worker_process(
        name, kafka=kafka, entries=True, stop_at=("Applied", random.randrange(1, 4)), limits=limits
    )
    frozen.wait_until_stopped()
    heir = scene.worker(scene.pipeline(name, entries=True), kafka=kafka, limits=Limits(**limits))
    heir.placed(2)
    heir.seen.wait_for(events.Committed)
    frozen.thaw()
    frozen.wait_for("DatabaseTrouble")
    scene.finish(heir, name, stored)
    scene.book.assert_holds(name, stored)
    assert True in sent
