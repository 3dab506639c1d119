"""Produces orders on a separate thread while a test reloads."""

from __future__ import annotations

from support.background import Background
from support.reload_orders import OrdersGroup, of
from support.waiting import until


class OrderProducer(Background):
    """Produces orders on a separate thread; ``all`` has the produced records."""

    def __init__(self, orders_group: OrdersGroup) -> None:
        super().__init__()
        self._orders_group = orders_group
        self.all: list[tuple[str, str | None]] = []

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            n = len(self.all)
            new = [of(k, 1) for k in range(n, n + 20)]
            self._orders_group.produce(self._orders_group.topic, new, partition=n // 20 % 2)
            self.all += new


def applied(orders_group: OrdersGroup, order_producer: OrderProducer) -> None:
    """Wait until workers have committed all produced records."""
    passed = "SELECT sum(next_offset) FROM {schema}.partition_offset"
    until(
        lambda: orders_group.execute(passed) == [(len(order_producer.all),)],
        f"{len(order_producer.all)} records to be committed",
    )
