"""A group with applied records, and its reloads up to the cut-over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient

from seekpoint.jobs.reload import CutOver, Driver, Reload
from seekpoint.jobs.reload.catch_up import CatchUp
from support.events import Run
from support.reload_orders import OrdersGroup, gone, of
from support.topics import add_partitions

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]


def applied_by(worker: Run, orders_group: OrdersGroup, records: list[Any], partition: int = 0) -> None:
    """Produce records that the worker applies."""
    worker.reached(orders_group.topic, orders_group.put(records, partition), partition)


def working(orders_group: OrdersGroup, records: list[Any], partition: int = 0, **options: Any) -> Run:
    """Produce records; returns a running worker that has applied them."""
    end = orders_group.put(records, partition)
    worker = orders_group.worker(**options)
    worker.reached(orders_group.topic, end, partition)
    return worker


def settled(orders_group: OrdersGroup, records: list[Any] = FIRST, partition: int = 0, **options: Any) -> None:
    """Produce records, and let a worker apply them and stop."""
    working(orders_group, records, partition, **options).stop()


def widen(orders_group: OrdersGroup, partitions: int) -> None:
    """Add partitions to the group's topic, up to this number."""
    admin = AdminClient({"bootstrap.servers": orders_group.brokers, "log_level": 0})
    add_partitions(admin, orders_group.topic, partitions)


@contextmanager
def diffed(
    reload: Reload, *, driver: Driver | None = None, strategy: str = "merge"
) -> Iterator[tuple[Reload, Driver, CatchUp]]:
    """Drive a run, new or ``driver``'s, to just before its cut-over."""
    driver = driver or reload.open(strategy=strategy)
    reload.stage(driver)
    with CatchUp(driver, reload.sources, reload.kafka) as rounds:
        reload.catch_up(driver, rounds)
        if driver.run.strategy == "merge":
            reload.compare(driver, rounds)
        yield reload, driver, rounds


def started(reload: Reload, **options: Any) -> tuple[Reload, Driver]:
    """The reload, and the driver of a new run."""
    return reload, reload.open(**options)


def staged(reload: Reload, **options: Any) -> tuple[Reload, Driver]:
    """Drive a new run to the end of its staging."""
    reload, driver = started(reload, **options)
    reload.stage(driver)
    return reload, driver


def resume(reload: Reload, run: UUID) -> CutOver:
    """Take over a run, and drive it to its end."""
    return reload.run(reload.take_over(run))


def reloaded(reload: Reload, **options: Any) -> CutOver:
    """Run a reload from its opening to its end."""
    return reload.run(reload.open(**options))
