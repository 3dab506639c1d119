"""Reloads one after the other under live load, their drivers killed at any moment; a reader looks all the time."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Limits, events
from seekpoint.errors import HandlerOutdated
from seekpoint.testing.child_process import NotReached
from support.background import Background
from support.producer_thread import OrderProducer
from support.reload_orders import OrdersGroup
from support.reload_process import Reloader

KILLED = 2  # drivers of each run


class Reader(Background):
    """Reads the table all the time; ``torn`` are the reads that are not of one moment."""

    def __init__(self, orders_group: OrdersGroup) -> None:
        super().__init__()
        self._orders_group = orders_group
        self.torn: list[Any] = []
        self.reads = 0

    def _run(self) -> None:
        """One version everywhere, and as many rows as the offsets say: in one statement, so of one moment."""
        schema = self._orders_group.schema
        query = text(
            f"SELECT count(*), count(DISTINCT amount), (SELECT sum(next_offset) FROM {schema}.partition_offset) "
            f"FROM {schema}.orders"
        )
        with self._orders_group.engine.connect() as connection:
            while not self._stop.wait(0.001):
                with connection.begin():
                    count, versions, position = connection.execute(query).one()
                self.reads += 1
                if count and (versions != 1 or count != position):
                    self.torn.append((count, versions, position))


def bring_through(orders_group: OrdersGroup, chance: Random, version: int, strategy: str) -> int:
    """One reload; its driver is killed a few times. Returns how many drivers it took."""
    run = orders_group.reload(version=version).open(strategy=strategy).run.id
    for driver in range(1, 20):
        reloader = Reloader(orders_group, run, version=version, width=500)
        if reloader.reaches("driving"):
            with suppress(NotReached):
                reloader.ended(chance.uniform(0, 1.5) if driver <= KILLED else 120.0)
        reloader.kill()
        state = orders_group.reload(version=version).runs.get(run)
        assert state.state != "failed", state.error
        if not state.is_open:
            return driver
    raise AssertionError("no driver brought it to its end")


@pytest.mark.long
@pytest.mark.timeout(600)  # nine drivers, most of which are killed, on a machine that may be busy
@pytest.mark.parametrize("seed", [1, 2])
def test_reloads_under_fire(orders_group: OrdersGroup, seed: int) -> None:
    print(f"seed {seed}")
    chance = Random(seed)
    with OrderProducer(orders_group), Reader(orders_group) as reader:
        worker = orders_group.worker(limits=Limits(batch_records=50))
        worker.seen.wait_for(events.Committed, count=5)
        for version, strategy in enumerate(chance.sample(["merge", "swap", "swap"], 3), start=2):
            drivers = bring_through(orders_group, chance, version, strategy)
            print(f"version {version} by {strategy}: {drivers} drivers")
            newer = orders_group.worker(version=version, limits=Limits(batch_records=50))
            newer.seen.wait_for(events.Committed, count=5)
            worker.ends_with(HandlerOutdated)
            worker = newer
    worker.stop()
    assert not reader.torn, reader.torn[:5]
    assert reader.reads > 100
    assert {row[1] for row in orders_group.rows()} == {4}
    ends = orders_group.execute("SELECT sum(next_offset) FROM {schema}.partition_offset")
    assert [(len(orders_group.rows()),)] == ends
