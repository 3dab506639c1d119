"""A shop whose table is settled, and a run of it just before its cut-over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seekpoint.reload import Driver, Reload
from seekpoint.reload.deltas import Rounds
from shop import Shop, gone, of

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]


def settled(shop: Shop, records: list[Any] = FIRST, **options: Any) -> None:
    """The records are in the table, and nobody works."""
    shop.produce(shop.topic, records, partition=0)
    work_up_to(shop, len(records), **options)


def work_up_to(shop: Shop, offset: int, **options: Any) -> None:
    worker = shop.worker(**options)
    worker.reached(shop.topic, offset)
    worker.stop()


@contextmanager
def diffed(reload: Reload, driver: Driver) -> Iterator[Rounds]:
    """The run just before its cut-over."""
    reload.stage(driver)
    with Rounds(driver, reload.sources, reload.kafka) as rounds:
        reload.follow(driver, rounds)
        if driver.run.strategy == "merge":
            reload.compare(driver, rounds)
        yield rounds
