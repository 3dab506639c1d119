"""Orders that are produced while a test reloads, on a thread of their own."""

from __future__ import annotations

from support.background import Background
from support.reload_orders import OrdersGroup, of
from support.waiting import until


class OrderProducer(Background):
    """Produces orders on a thread of its own; ``all`` is what was produced."""

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
    """Wait until workers have committed all that was produced."""
    passed = "SELECT sum(next_offset) FROM {schema}.partition_offset"
    until(
        lambda: orders_group.execute(passed) == [(len(order_producer.all),)],
        f"{len(order_producer.all)} records to be committed",
    )
