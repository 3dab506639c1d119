"""Orders that go on coming while a test reloads, on a thread of their own."""

from __future__ import annotations

import threading
from time import monotonic

from support.background import Background
from support.events import Run
from support.reload_orders import Shop, of


class Feed(Background):
    """Orders that go on coming, on a thread of their own; ``all`` is what was produced."""

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


def applied(shop: Shop, feed: Feed, worker: Run) -> None:
    """Until the worker has committed all that was produced."""
    deadline, pause = monotonic() + 30, threading.Event()
    while shop.execute("SELECT sum(next_offset) FROM {schema}.partition_offset") != [(len(feed.all),)]:
        assert monotonic() < deadline, worker.seen.events[-20:]
        pause.wait(0.02)
