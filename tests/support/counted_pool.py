"""Counts the connections that are checked out of an engine's pool."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine, event


class CountedPool:
    """The most connections of a pool in use at one time, and the threads that used them."""

    def __init__(self, engine: Engine) -> None:
        self._pool: Any = engine.pool
        self.most, self.threads = 0, set[str]()
        event.listen(engine, "checkout", self._taken)

    def _taken(self, _driver: object, _record: object, proxy: Any) -> None:
        if proxy._pool is self._pool:  # listeners are those of the connections outside of it, too
            self.most = max(self.most, self._pool.checkedout())
            self.threads.add(threading.current_thread().name)
