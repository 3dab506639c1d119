"""For any mix of good, transient, poison and killing records and any crash point: each passed offset ended once.

``SEEKPOINT_SEEDS=100-200`` runs other seeds; every failure begins with its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import Engine

from seekpoint.ledger import GroupLedger
from support import random_failures
from support.random_failures import CREATE, Died, RandomCase, StoredOutcome, die, run_until_crash
from support.sink_tables import SinkTables
from support.worker_group import QUICK

MOST_WORKERS = 40


def seeds(count: int) -> range:
    """Those that are asked for, or the first ones."""
    first, _, last = os.environ.get("SEEKPOINT_SEEDS", f"0-{count - 1}").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.fixture
def prepare(
    seekpoint_engine: Engine, seekpoint_schema: str, seekpoint_broker: str, topic: Callable[..., str], group: str
) -> Callable[[RandomCase], dict[str, Any]]:
    """The log in the broker, empty tables beside the ledger; returns where everything is."""

    def make(random_case: RandomCase) -> dict[str, Any]:
        print(random_case)
        SinkTables(seekpoint_engine, seekpoint_schema).sql(CREATE)
        name = topic(len(random_case.log))
        producer = Producer({"bootstrap.servers": seekpoint_broker, "enable.idempotence": True, "log_level": 0})
        for partition in random_case.log:
            for key, value in random_case.values(partition):
                producer.produce(name, value, key, partition=partition)
        assert producer.flush(30) == 0
        kafka = {"bootstrap.servers": seekpoint_broker, **QUICK}
        return {"topic": name, "group": group, "schema": seekpoint_schema, "kafka": kafka}

    return make


@pytest.mark.long("some of its cases take seconds")
@pytest.mark.parametrize("seed", seeds(24))
def test_each_offset_that_is_passed_ended_once(
    prepare: Callable[[RandomCase], dict[str, Any]],
    seekpoint_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """A crash is an exception that is not caught; what has crashed releases nothing."""
    random_case = RandomCase(seed)
    where = prepare(random_case)
    dead = False
    release = GroupLedger.release

    def release_if_alive(self: GroupLedger, claims: Any) -> None:
        if not dead:
            release(self, claims)

    def die_for_good() -> Any:
        nonlocal dead
        dead = True
        die()

    monkeypatch.setattr(GroupLedger, "release", release_if_alive)
    for number in range(MOST_WORKERS):
        dead = False
        try:
            run_until_crash(random_case, number, where, seekpoint_engine, die_for_good)
        except Died:
            continue
        break
    else:
        pytest.fail(f"not done after {MOST_WORKERS} workers")
    StoredOutcome.read(seekpoint_engine, where["schema"], where["group"]).judge(random_case, deaths=number)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3))
def test_each_offset_ended_once_though_processes_are_killed(
    prepare: Callable[[RandomCase], dict[str, Any]], seekpoint_engine: Engine, seed: int
) -> None:
    """Real processes, which kill themselves by SIGKILL."""
    random_case = RandomCase(seed + 500)
    where = prepare(random_case)
    dsn = seekpoint_engine.url.render_as_string(hide_password=False)
    for number in range(MOST_WORKERS):
        what = json.dumps({**where, "dsn": dsn, "seed": random_case.seed, "number": number})
        done = subprocess.run(
            [sys.executable, "-W", "error", str(Path(random_failures.__file__)), what],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode in {0, -signal.SIGKILL}, done.stderr
        if done.returncode == 0:
            break
    else:
        pytest.fail(f"not done after {MOST_WORKERS} workers")
    StoredOutcome.read(seekpoint_engine, where["schema"], where["group"]).judge(random_case, deaths=number)
