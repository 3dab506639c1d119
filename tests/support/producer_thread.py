"""Orders that are produced while a test reloads, on a thread of their own."""

from __future__ import annotations

from support.background import Background
from support.reload_orders import Shop, of
from support.waiting import until


class Feed(Background):
    """Produces orders on a thread of its own; ``all`` is what was produced."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop
        self.all: list[tuple[str, str | None]] = []

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            n = len(self.all)
            new = [of(k, 1) for k in range(n, n + 20)]
            self._shop.produce(self._shop.topic, new, partition=n // 20 % 2)
            self.all += new


def applied(shop: Shop, feed: Feed) -> None:
    """Wait until workers have committed all that was produced."""
    passed = "SELECT sum(next_offset) FROM {schema}.partition_offset"
    until(lambda: shop.execute(passed) == [(len(feed.all),)], f"{len(feed.all)} records to be committed")
