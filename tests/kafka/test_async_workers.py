"""Workers with an async handler: one event loop and one set of resources for a life, and an end in time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from seekpoint import Batch, Limits, Poison, Worker
from seekpoint.admin import Admin
from seekpoint.errors import StopTimeout
from seekpoint.ledger.dead_letters import Where
from support.waiting import until
from support.worker_group import QUICK, WorkerGroup

Records = Batch[str, Any]


class Clients:
    """Resources that note who enters, uses and leaves them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, asyncio.AbstractEventLoop]] = []

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Clients]:
        self.note("entered")
        yield self
        self.note("left")

    def note(self, what: str) -> None:
        self.seen.append((what, asyncio.get_running_loop()))


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_one_loop_and_one_set_of_resources_serve_all_batches_and_replays(
    worker_group: WorkerGroup, clients: Clients
) -> None:
    """I1: a replay that an operator requests runs in the worker's loop, too, and its rows are written once."""
    name = worker_group.topic()
    bad = {"bad"}

    async def handle(tx: AsyncConnection, batch: Records, clients: Clients) -> None:
        clients.note("used")
        if broken := [record for record in batch if record.value in bad]:
            raise Poison("broken", *broken)
        await tx.run_sync(worker_group.record_table.enter, batch)

    pipeline = worker_group.pipeline(name, handle=handle, resources=clients, on_poison="dead_letter")
    run = worker_group.worker(pipeline, limits=Limits(idle_check=0.1, lag_check=0.1))
    stored = worker_group.produce(name, ["a", "bad", "b"])
    run.reached(name, 3)
    stored += worker_group.produce(name, ["c"])
    run.reached(name, 4)
    bad.clear()
    Admin(worker_group.engine, schema=worker_group.schema).request_replay(worker_group.group, Where(), reason="fixed")
    until(lambda: len(worker_group.record_table.written(name)) == 4, "the replay's row")
    run.stop()
    assert Counter(worker_group.record_table.written(name)) == Counter(stored)
    steps, loops = [what for what, _ in clients.seen], {loop for _, loop in clients.seen}
    assert (steps[0], steps[-1]) == ("entered", "left")
    assert set(steps[1:-1]) == {"used"}
    assert len(loops) == 1


def test_a_handler_that_waits_for_ever_is_given_up_and_nothing_is_written(worker_group: WorkerGroup) -> None:
    """I1, I2: its connection is closed beneath it, and the next worker applies its records once."""
    name, entered = worker_group.topic(), threading.Event()
    stored = worker_group.produce(name, 10)

    async def waits(tx: AsyncConnection, batch: Records) -> None:
        await tx.run_sync(worker_group.record_table.enter, batch)
        entered.set()
        await tx.execute(text("SELECT pg_sleep(600)"))

    worker = Worker(
        worker_group.pipeline(name, handle=waits),
        engine=worker_group.engine,
        schema=worker_group.schema,
        kafka={"bootstrap.servers": worker_group.broker, **QUICK},
    )
    with pytest.raises(StopTimeout), worker.running(grace=0.1):
        assert entered.wait(30)
    heir = worker_group.worker(name)
    heir.finish(name, 10)
    worker_group.record_table.assert_holds(name, stored)
